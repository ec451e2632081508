"""The objectives match their definitions, and their sums can be added in any order."""

import math

import numpy as np
import pytest
import torch
from support.train_steps import run_step, step_of
from support.training_runs import speeches

from gidd.data.batch import Batch
from gidd.data.loading.loader import BatchSource, LoaderConfig, open_split
from gidd.data.loading.shards import ShardSet, TokenShard
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.elbo import elbo_terms
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.diffusion.times import stratified_times, time_weights
from gidd.diffusion.weighting import ClampWeighting, DynamicWeighting, ElboWeighting
from gidd.models import Denoiser, DiT, DiTConfig
from gidd.models.networks import Initializer
from gidd.runs.evaluate import ratio_of_sums, unigram_entropy, validate
from gidd.training.metrics import NAMES, summary
from gidd.training.world import open_world
from gidd.vocab import Vocab

VOCAB = Vocab(11, mask_id=10, pad_id=9)
SIZE = DiTConfig(vocab_size=11, max_length=6, width=16, num_layers=1, num_heads=2, time_width=8)
SCHEDULES = [MaskedSchedule(VOCAB), HybridSchedule(VOCAB, p_uniform=0.2), UniformSchedule(VOCAB)]
WEIGHTINGS = [ElboWeighting, ClampWeighting, DynamicWeighting]


def random_batch(num_samples=8, length=6):
    torch.manual_seed(0)
    tokens = torch.randint(0, 9, (num_samples, length))
    lengths = torch.arange(num_samples) % length + 1
    valid = torch.arange(length) < lengths[:, None]
    return Batch(tokens.masked_fill(~valid, 9), valid, torch.arange(100, 100 + num_samples))


def denoiser():
    torch.manual_seed(1)
    model = DiT(SIZE)
    for parameter in model.parameters():  # a fresh head predicts nothing
        torch.nn.init.normal_(parameter, std=0.3)
    return Denoiser(model, VOCAB)


def sums_of(objective, batch, scale=1.0):
    outcome = run_step(objective, batch, 3, 8, scale)
    return outcome.loss, dict(zip(NAMES, outcome.sums.tolist(), strict=True))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=lambda w: w.__name__)
def test_sums_are_those_of_the_definition(schedule, weighting):
    """Eq. 14 on the dense distribution; padding counts in the loss, not in the NELBO."""
    if weighting is DynamicWeighting and isinstance(schedule, UniformSchedule):
        pytest.skip("the paper's dynamic weights are not defined for uniform noise")
    batch, model = random_batch(), denoiser()
    weights = weighting(schedule)
    loss, sums = sums_of(step_of(model, schedule, weights, seed=5), batch, scale=0.25)

    x, valid = batch.tokens, batch.valid
    t = stratified_times(5, 3, batch.sample_index % 8, 8)
    z = noise(
        schedule, t, x, random_integers(5, Stream.NOISE, 0, batch.sample_index, torch.arange(6))
    )
    terms = elbo_terms(schedule, t, x, z, model(z, t))
    weighted = weights(t, x, z) * terms.divergence
    nelbo = (terms.weight * terms.divergence)[valid]
    assert loss.item() == pytest.approx(0.25 * weighted.sum().item(), rel=1e-5)
    assert sums["loss"] == pytest.approx(weighted.sum().item(), rel=1e-5)
    assert sums["tokens"] == x.numel()
    assert sums["valid"] == valid.sum().item()
    assert sums["nelbo"] == pytest.approx(nelbo.sum().item(), rel=1e-4)
    assert sums["kl"] + sums["itakura_saito"] == pytest.approx(sums["nelbo"], rel=1e-5)
    kinds = [sums[f"nelbo_{kind}"] for kind in ("masked", "replaced", "kept")]
    assert sum(kinds) == pytest.approx(sums["nelbo"], rel=1e-5)
    is_mask = z == 10
    assert sums["num_masked"] == (is_mask & valid).sum().item()
    assert sums["num_kept"] == ((z == x) & valid).sum().item()
    assert sums["num_replaced"] == (~is_mask & (z != x) & valid).sum().item()


def test_sums_do_not_depend_on_how_a_batch_is_split():
    batch = random_batch()
    objective = step_of(denoiser(), SCHEDULES[1], DynamicWeighting(SCHEDULES[1]))
    whole = run_step(objective, batch, 3, 8)
    for parts in (2, 3, 8):
        pieces = [run_step(objective, part, 3, 8) for part in batch.split(parts)]
        torch.testing.assert_close(sum(piece.sums for piece in pieces), whole.sums)
        torch.testing.assert_close(sum(piece.loss for piece in pieces), whole.loss)


def test_units():
    sums = dict.fromkeys(NAMES, 0.0) | {"loss": 30.0, "tokens": 10.0}
    metrics = summary(sums | {"nelbo": 8 * math.log(2), "valid": 4.0, "bytes": 16.0})
    assert metrics["loss"] == 3
    assert metrics["bits_per_token"] == pytest.approx(2)
    assert metrics["ppl"] == pytest.approx(4)
    assert metrics["bits_per_byte"] == pytest.approx(0.5)


@pytest.mark.slow
def test_bytes_of_tokens_are_the_bytes_of_their_text(tmp_path):
    """On real text: a window is a piece of a document, so its bytes are those of its decoding."""
    folder = speeches(tmp_path, vocab_size=400, documents=20)
    tokenizer = Tokenizer.load(folder)
    config = LoaderConfig(global_batch=16, length=64, pad_id=tokenizer.end_id, vocab_size=400)
    arrays = BatchSource(open_split(folder), config)[0]
    sizes = torch.tensor(tokenizer.num_bytes())
    for row, valid in zip(arrays["tokens"], arrays["valid"], strict=True):
        text = [int(token) for token in row[valid] if token != tokenizer.end_id]
        decoded = tokenizer.decode(text)
        if "\ufffd" not in decoded:  # a window may begin within a character
            assert sizes[row[valid]].sum() == len(decoded.encode())


def test_bytes_are_counted_without_becoming_part_of_a_checkpoint():
    """Also after a model was built on the meta device."""
    sizes = torch.arange(1, 12)
    with torch.device("meta"):
        network = DiT(SIZE)
    weights, model = DynamicWeighting(SCHEDULES[1]), Denoiser(network, VOCAB)
    objective = step_of(model, SCHEDULES[1], weights, token_bytes=sizes)
    objective.model.to_empty(device="cpu")
    network.reset_parameters(Initializer(0))
    batch = random_batch()
    _, sums = sums_of(objective, batch)
    assert sums["bytes"] == sizes[batch.tokens][batch.valid].sum().item()
    assert sums["tokens"] == batch.tokens.numel()
    assert objective.model.state_dict().keys() == dict(objective.model.named_parameters()).keys()


def test_validation_is_the_same_however_it_is_batched():
    objective = step_of(denoiser(), SCHEDULES[1], DynamicWeighting(SCHEDULES[1]))
    batch = random_batch()
    with open_world("cpu") as world:
        whole = validate(objective, batch, world, batch_size=8)
        parts = validate(objective, batch, world, batch_size=3)
        assert objective.model.training
    assert parts == pytest.approx(whole, rel=1e-5)
    assert 0 < whole["nelbo_se"] < whole["nelbo"]
    assert whole["nelbo"] > whole["reconstruction"] > 0


def test_a_repeated_document_is_one_observation_of_the_standard_error():
    """Repeating all documents 16 times adds no text: without this the error would be a quarter."""
    objective = step_of(denoiser(), SCHEDULES[0], DynamicWeighting(SCHEDULES[0]))
    batch, documents = random_batch(), torch.randperm(8, generator=torch.manual_seed(0))
    with open_world("cpu") as world:
        windows = validate(objective, batch, world, documents=documents)
        single = validate(objective, batch, world, documents=torch.zeros(8))
    values, sizes = torch.rand(8), batch.valid.sum(-1).double()
    repeated = ratio_of_sums(values.repeat(16), sizes.repeat(16), documents.repeat(16))
    assert repeated == pytest.approx(ratio_of_sums(values, sizes, documents), rel=1e-5)
    assert windows.pop("nelbo_se") > 0
    assert single == windows  # the error of one observation is unknown


def test_unigram_entropy_is_that_of_the_first_tokens():
    files = {"a.ds": [0, 1, 2, 3], "b.ds": [5, 5, 5, 5]}.items()
    shards = ShardSet([TokenShard(name, np.array(ids), np.array([4])) for name, ids in files])
    assert unigram_entropy(shards, 11, max_tokens=4) == pytest.approx(math.log(4))
    assert unigram_entropy(shards, 11) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(8))


def test_a_batch_is_split_in_order():
    batch = random_batch()
    parts = batch.split(3)
    assert [len(part.tokens) for part in parts] == [3, 3, 2]
    for number in range(3):
        assert torch.equal(torch.cat([part[number] for part in parts]), batch[number])


def test_a_density_of_times_changes_the_loss_and_not_the_nelbo():
    """`nelbo` is weighted by the density; `loss` is not: it emphasises the times that are drawn."""
    schedule, batch, model = SCHEDULES[1], random_batch(), denoiser()
    objective = step_of(model, schedule, ElboWeighting(schedule), seed=5, time_power=3.0)
    loss, sums = sums_of(objective, batch)
    x, valid = batch.tokens, batch.valid
    t = stratified_times(5, 3, batch.sample_index % 8, 8, power=3.0)
    u = random_integers(5, Stream.NOISE, 0, batch.sample_index, torch.arange(6))
    terms = elbo_terms(schedule, t, x, noise(schedule, t, x, u), model(noise(schedule, t, x, u), t))
    integrand = (terms.weight * terms.divergence).detach()
    assert float(loss.detach()) == pytest.approx(float(integrand.sum()), rel=1e-5)
    expected = (time_weights(t, power=3.0)[:, None] * integrand)[valid].sum()
    assert sums["nelbo"] == pytest.approx(float(expected), rel=1e-5)
