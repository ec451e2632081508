"""Packed rows: every document is predicted, scored and trained as if it were alone."""

import json
from dataclasses import replace

import pytest
import torch
from support.ranks import run_ranks
from support.train_steps import run_step, step_of
from support.training_runs import losses, reported, tiny_run, train_here

import gidd
from gidd.common.config.components import component
from gidd.data.batch import Batch
from gidd.data.loading.loader import BatchSource, open_split
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion import HybridSchedule
from gidd.diffusion.loss import loss_at, noisy_tokens
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.weighting import TightWeighting
from gidd.errors import ConfigError
from gidd.models.backbones.bidirectional import BidirectionalConfig
from gidd.models.backbones.dit_config import DiTConfig
from gidd.models.backbones.scaled import GiddScalingConfig
from gidd.models.denoiser import Denoiser
from gidd.runs.data import loader_config
from gidd.training.build import GivenComponents, build_step
from gidd.vocab import Vocab

VOCAB, LENGTH = Vocab(13, mask_id=12), 40
SCHEDULE = HybridSchedule(VOCAB, 0.2)
WEIGHTING = TightWeighting(SCHEDULE)
SIZES = {"vocab_size": VOCAB.size, "max_length": LENGTH, "width": 32, "num_layers": 3}
LLAMA = {"mlp_width": 48, "num_kv_heads": 2, "rotary_base": 1e4, "norm_eps": 1e-6}
NETWORKS = {
    "dit": DiTConfig(**SIZES, num_heads=4, time_width=16),
    "bidirectional": BidirectionalConfig(**SIZES, num_heads=4, **LLAMA),
}
DOCUMENTS = ((0, 7, 28, 40), (0, 1, 12, 33))
"""Bounds of the documents of each row; the second row ends with padding."""

T = torch.tensor([0.3, 0.8])


def segments_of(bounds) -> torch.Tensor:
    segments = torch.full((LENGTH,), -1, dtype=torch.int32)
    for number, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        segments[start:stop] = number
    return segments


SEGMENTS = torch.stack([segments_of(bounds) for bounds in DOCUMENTS])
PLACES = [
    (row, slice(start, stop))
    for row, bounds in enumerate(DOCUMENTS)
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True)
]
X = torch.randint(12, (2, LENGTH), generator=torch.Generator().manual_seed(0))
U = random_integers(0, Stream.NOISE, 0, torch.arange(2), torch.arange(LENGTH))


@pytest.fixture(params=NETWORKS)
def denoiser(request):
    network = NETWORKS[request.param].build()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.normal_(std=0.15, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
    return Denoiser(network, VOCAB)


@torch.no_grad()
def test_a_packed_document_is_predicted_as_if_alone(denoiser):
    packed = denoiser.hidden(X, T, segments=SEGMENTS)
    together = denoiser.hidden(X, T)
    assert packed.isfinite().all()
    for row, place in PLACES:
        alone = denoiser.hidden(X[row : row + 1, place], T[row : row + 1])[0]
        torch.testing.assert_close(packed[row, place], alone, rtol=1e-5, atol=1e-5)
        assert (together[row, place] - alone).abs().max() > 1e-2  # the mask matters


def test_no_gradient_reaches_another_document(denoiser):
    embedded = []

    def keep(module, inputs, output):
        output.retain_grad()
        embedded.append(output)

    network = denoiser.backbone
    embedding = network.embedding if hasattr(network, "embedding") else network.embed_tokens
    embedding.register_forward_hook(keep)
    for row, place in PLACES:
        denoiser.hidden(X, T, segments=SEGMENTS)[row, place].square().sum().backward()
        gradient = embedded.pop().grad
        assert (gradient[row, place].abs().sum(-1) > 0).all()
        gradient[row, place] = 0
        assert (gradient == 0).all()


def loss_of(denoiser, t, x, u, **options):
    z = noisy_tokens(SCHEDULE, t, x, u, options.get("given"))
    return loss_at(denoiser, SCHEDULE, WEIGHTING, t, x, z, 1.0, **options).loss


def gradients(denoiser):
    found = [p.grad.clone() for p in denoiser.parameters() if p.grad is not None]
    denoiser.zero_grad()
    return found


def test_the_loss_of_a_packed_batch_is_the_sum_over_documents(denoiser):
    """And so is its gradient; padding adds nothing."""
    padding = SEGMENTS < 0
    packed = loss_of(denoiser, T, X, U, given=padding, valid=~padding, segments=SEGMENTS)
    packed.backward()
    together, total = gradients(denoiser), 0.0
    for row, place in PLACES:
        alone = loss_of(denoiser, T[[row]], X[[row], place], U[[row], place])
        alone.backward()
        total += alone.item()
    assert packed.item() == pytest.approx(total, rel=1e-5)
    for found, expected in zip(together, gradients(denoiser), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * expected.abs().max())


def test_the_objective_and_diffusion_loss_keep_documents_apart(denoiser):
    """Another document B changes nothing in the loss of A."""
    batch = Batch(X, SEGMENTS >= 0, torch.arange(2), SEGMENTS != 1, SEGMENTS)
    changed = batch._replace(tokens=torch.where(SEGMENTS == 1, X, (X + 1) % 12))
    step = step_of(denoiser, SCHEDULE, WEIGHTING, hides_padding=True)
    options = {"step": 0, "given": batch.given, "valid": batch.valid}
    for is_apart in (True, False):
        segments = SEGMENTS if is_apart else None
        pair = [run_step(step, one._replace(segments=segments), 0, 2) for one in (batch, changed)]
        found = [(one.loss.item(), one.sums[2].item()) for one in pair]
        assert (found[0] == found[1]) == is_apart
        found = [
            gidd.diffusion_loss(denoiser, SCHEDULE, one, segments=segments, **options).loss.item()
            for one in (batch.tokens, changed.tokens)
        ]
        assert (found[0] == found[1]) == is_apart


def test_parts_of_a_packed_batch_keep_their_segments():
    batch = Batch(X, SEGMENTS >= 0, torch.arange(2), segments=SEGMENTS)
    assert [part.segments.tolist() for part in batch.split(2)] == SEGMENTS[:, None].tolist()
    assert batch.to("cpu").segments is not None


# ------------------------------------------------------------------------------------- refused


RUN = tiny_run(None)
PACKED = replace(RUN, data=replace(RUN.data, packing=True, padding="ignored", folder="data"))


def shifted():
    return BidirectionalConfig(**SIZES, num_heads=4, **LLAMA, shifted_mask_id=12).build()


def hf():
    pytest.importorskip("transformers", reason="needs the extra `hf`")
    options = {"width": 32, "num_layers": 2, "num_heads": 2, "family": "llama"}
    made = component("backbone", "llama-bidirectional", **options)
    return made.build(vocab_size=VOCAB.size, max_length=16).build()


REFUSED = {
    "mixing": lambda: DiTConfig(**SIZES, num_heads=4, mixing_width=3).build(),
    "shifted": shifted,
    "scaled": lambda: GiddScalingConfig(**SIZES, num_heads=4).build(),  # one key has no position
    "hf": hf,
}


@pytest.mark.parametrize(
    "name", ["mixing", "shifted", "scaled", pytest.param("hf", marks=pytest.mark.slow)]
)
def test_a_network_that_reads_other_documents_is_refused(name):
    network = REFUSED[name]()
    kind = type(network).__name__
    with pytest.raises(ConfigError, match=rf"data\.packing .*{kind}.*accepts_segments"):
        build_step(PACKED, VOCAB, components=GivenComponents(network=network))
    with pytest.raises(ConfigError, match=rf"{kind} .*accepts_segments"):
        Denoiser(network, VOCAB).hidden(X, T, segments=SEGMENTS)
    assert build_step(PACKED, VOCAB).corrupt.hides_padding


# ---------------------------------------------------------------------------------------- trained


@pytest.mark.slow
def test_a_packed_run_is_the_same_on_two_ranks(tmp_path):
    texts = [{"text": "abcdefg"[: 1 + 5 * n % 7]} for n in range(60)]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(text) + "\n" for text in texts))
    data = tmp_path / "data"
    prepare([file], Tokenizer.load("bytes"), data, validation=8, quiet=True)
    run = tiny_run(data, steps=10, accumulate=2)
    run = replace(run, data=replace(run.data, packing=True, padding="ignored"))
    for ranks in (1, 2):
        run_ranks(train_here, ranks, run, tmp_path / str(ranks))
    alone, two = losses(tmp_path / "1"), losses(tmp_path / "2")
    assert len(alone) == 10
    torch.testing.assert_close(two, alone, rtol=1e-4, atol=0)
    nelbo = [[line["nelbo"] for line in reported(tmp_path / ranks)] for ranks in "12"]
    assert nelbo[0] == pytest.approx(nelbo[1], rel=1e-4)
    source = BatchSource(open_split(data), loader_config(run, Tokenizer.load(data)))
    assert source[0]["segments"].max() > 1  # it was packed
