"""Training in blocks: one forward pass of clean and noisy rows is the sum over blocks."""

from dataclasses import replace

import pytest
import torch
from support.block_networks import LENGTH, NETWORKS, VOCAB, block_denoiser, hidden_block_by_block
from support.ranks import run_ranks
from support.small_networks import MARKOV_VOCAB, markov_losses
from support.train_steps import run_step, step_of
from support.training_runs import final_tensors, losses, reported, speeches, tiny_run, train_here

from gidd.data.batch import Batch
from gidd.diffusion import HybridSchedule
from gidd.diffusion.elbo import elbo_terms
from gidd.diffusion.likelihood import NelboEstimator, ScoredText
from gidd.diffusion.loss import loss_at, noisy_tokens
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.weighting import ElboWeighting, TightWeighting
from gidd.errors import ConfigError
from gidd.models import Denoiser, DiT, DiTConfig
from gidd.models.backbones.bidirectional import BidirectionalConfig
from gidd.models.context import block_index_of
from gidd.sources import MarkovSource
from gidd.training import Corruption
from gidd.training.build import GivenComponents, build_step
from gidd.training.config import FSDP, Diffusion
from gidd.training.objectives import Drafts

pytest.importorskip("transformers", reason="needs the extra `hf`")

SCHEDULE = HybridSchedule(VOCAB, 0.2)
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randint(12, (3, LENGTH), generator=GENERATOR)
T = torch.tensor([0.2, 0.5, 0.9])
U = random_integers(0, Stream.NOISE, 0, torch.arange(3), torch.arange(LENGTH))
Z = noisy_tokens(SCHEDULE, T, X, U)


def index_of(*lengths: int) -> torch.Tensor:
    return block_index_of(torch.tensor(lengths), LENGTH)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("block_length", [5, 8, LENGTH])
def test_the_fused_loss_is_the_sum_of_the_nelbos_of_blocks(name, block_length):
    """The definition: `elbo_terms` of each block alone, given keys and values of those before."""
    denoiser = block_denoiser(name)
    with torch.no_grad():
        hidden = hidden_block_by_block(denoiser, Z, T, X, block_length)
        expected = elbo_terms(SCHEDULE, T, X, Z, denoiser.distribution(hidden))
        index = index_of(*[block_length] * 3)
        parts = denoiser, SCHEDULE, ElboWeighting(SCHEDULE), T, X, Z, 1.0
        terms = loss_at(*parts, block_index=index)
    value = (expected.weight * expected.divergence).sum()
    torch.testing.assert_close(terms.loss, value.to(terms.loss), rtol=1e-5, atol=0)
    torch.testing.assert_close(terms.weight, expected.weight.to(terms.weight))
    if block_length == LENGTH:
        whole = loss_at(*parts)
        torch.testing.assert_close(terms.loss, whole.loss, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["mixing", "converted"])
def test_a_block_reads_itself_and_the_clean_blocks_before_it(name):
    denoiser, index = block_denoiser(name), index_of(4, 8, 16)
    with torch.no_grad():
        hidden = denoiser.hidden(Z, T, clean=X, block_index=index)
        for row, place in ((0, 9), (1, 9), (2, 20)):
            for is_clean in (True, False):
                other = (X if is_clean else Z).clone()
                other[row, place] = (other[row, place] + 1) % 12
                z, clean = (Z, other) if is_clean else (other, X)
                changed = denoiser.hidden(z, T, clean=clean, block_index=index) - hidden
                is_changed = changed.abs().amax(-1) > 1e-5
                own = index[row, place]
                reads = (index[row] > own) if is_clean else index[row] == own
                assert (is_changed[row] == reads).all()
                is_changed[row] = False
                assert not is_changed.any()


def test_blocks_of_packed_documents_are_those_of_the_document_alone():
    denoiser = block_denoiser("dit")
    segments = torch.full((1, LENGTH), -1)
    segments[0, :7], segments[0, 7:24] = 0, 1
    index = block_index_of(torch.tensor([4]), LENGTH, segments)
    assert index[0, :12].tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1]
    with torch.no_grad():
        packed = denoiser.hidden(Z[:1], T[:1], segments=segments, clean=X[:1], block_index=index)
        for place in (slice(0, 7), slice(7, 24)):
            size = place.stop - place.start
            alone = index_of(4)[:, :size]
            z, x = Z[:1, place], X[:1, place]
            expected = denoiser.hidden(z, T[:1], clean=x, block_index=alone)
            torch.testing.assert_close(packed[:, place], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mixing", "converted"])
def test_padding_is_not_read(name):
    denoiser, index = block_denoiser(name), index_of(4, 8, 16)
    valid = torch.arange(LENGTH) < torch.tensor([LENGTH, 18, 3])[:, None]
    with torch.no_grad():
        hidden = denoiser.hidden(Z, T, valid, clean=X, block_index=index)
        noise = torch.where(valid, Z, (Z + 1) % 12), torch.where(valid, X, (X + 1) % 12)
        again = denoiser.hidden(noise[0], T, valid, clean=noise[1], block_index=index)
    assert hidden.isfinite().all()
    torch.testing.assert_close(again[valid], hidden[valid], rtol=0, atol=1e-6)


def test_each_sample_draws_its_block_length():
    tokens = torch.zeros(64, 16, dtype=torch.int64)
    batch = Batch(tokens, tokens == 0, torch.arange(64))
    weighting = TightWeighting(SCHEDULE)
    corrupt = Corruption(schedule=SCHEDULE, weighting=weighting, block_lengths=(2, 4, 16), seed=3)
    index = corrupt(batch, 5, 64, 1.0).block_index
    lengths = {16 // (int(row.max()) + 1) for row in index}
    assert lengths == {2, 4, 16}
    halves = [corrupt(half, 5, 64, 1.0).block_index for half in batch.split(2)]
    assert torch.equal(torch.cat(halves), index)
    assert corrupt(batch._replace(sample_index=batch.sample_index + 64), 6, 64, 1.0) is not None
    plain = Corruption(schedule=SCHEDULE, weighting=weighting)(batch, 5, 64, 1.0)
    assert plain.block_index is None


def test_given_tokens_and_drafts_are_trained_in_blocks():
    denoiser, weighting = block_denoiser("dit"), TightWeighting(SCHEDULE)
    given = torch.arange(LENGTH).expand(3, -1) < 6
    batch = Batch(X, torch.ones_like(given), torch.arange(3), given)
    for objective in ({}, {"objective": Drafts(fraction=1.0)}):
        step = step_of(denoiser, SCHEDULE, weighting, block_lengths=(4,), **objective)
        plain = step_of(denoiser, SCHEDULE, weighting, **objective)
        outcome, other = (run_step(one, batch, 0, 3) for one in (step, plain))
        assert outcome.loss.isfinite() and outcome.loss != other.loss
        later = X.clone()
        later[:, 28:] = (later[:, 28:] + 1) % 12  # noise depends on the position: not earlier
        assert outcome.loss != run_step(step, batch._replace(tokens=later), 0, 3).loss


def test_the_estimator_adds_up_blocks():
    denoiser = block_denoiser("dit")
    texts = [ScoredText(row, index) for index, row in enumerate(X)]
    whole = NelboEstimator(denoiser, SCHEDULE, nodes=4)
    same = replace(whole, block_length=LENGTH)
    costs = []
    blocks = replace(whole, block_length=4, run=lambda f, cost: costs.append(cost) or f())
    torch.testing.assert_close(same.draw(texts, 0), whole.draw(texts, 0), rtol=1e-5, atol=0)
    assert (blocks.draw(texts, 0) - whole.draw(texts, 0)).abs().min() > 1e-3
    assert sum(costs) == 2 * 3 * LENGTH * (4 + 1)
    # tokens after a block change nothing in it: the last ones change the last block alone
    cut = [ScoredText(row[:-4], index) for index, row in enumerate(X)]
    assert (blocks.draw(cut, 0)[:, 1] != blocks.draw(texts, 0)[:, 1]).all()


@pytest.mark.long
def test_a_network_learns_to_write_in_blocks():
    """A chain whose next token is nearly certain: blocks of one token learn p(next | before)."""
    torch.manual_seed(0)
    config = DiTConfig(vocab_size=9, max_length=16, width=32, num_layers=2, num_heads=2)
    network = DiT(config)
    markov_losses(network, steps=150, block_lengths=(1, 4, 16))
    source, schedule = MarkovSource.random(8, concentration=0.05), HybridSchedule(MARKOV_VOCAB, 0.1)
    x = source.sample(1, torch.arange(64), 16)
    texts = [ScoredText(row, index) for index, row in enumerate(x)]
    entropy = -float(source.log_prob(x).mean())
    unigram = 16 * float(torch.special.entr(torch.bincount(x.flatten()) / x.numel()).sum())
    for block_length in (1, 4, 16):
        estimator = NelboEstimator(
            Denoiser(network.eval(), MARKOV_VOCAB), schedule, nodes=8, block_length=block_length
        )
        nelbo = float((estimator.draw(texts, 0).sum(-1) + estimator.prior(texts)).mean())
        assert entropy - 0.5 < nelbo < (entropy + unigram) / 2, block_length


# ------------------------------------------------------------------------------------------ runs


def in_blocks(run, **changes):
    return replace(run, objective=replace(run.objective, block_lengths=(4, 8, 16), **changes))


@pytest.mark.long
def test_a_run_in_blocks_resumes_to_the_last_bit(tmp_path):
    run = in_blocks(tiny_run(speeches(tmp_path / "data", 300, 8), steps=6, save_every=3))
    train_here(run, tmp_path / "alone")
    train_here(replace(run, train=replace(run.train, steps=3)), tmp_path / "resumed")
    train_here(run, tmp_path / "resumed")
    expected, resumed = (final_tensors(run, tmp_path / name) for name in ("alone", "resumed"))
    assert all(torch.equal(resumed[name], tensor) for name, tensor in expected.items())
    assert any("nelbo_se" in line for line in reported(tmp_path / "alone"))


@pytest.mark.long
@pytest.mark.parametrize("parallel", [None, FSDP()], ids=["DDP", "FSDP"])
def test_a_run_in_blocks_is_the_same_on_two_ranks(parallel, tmp_path):
    run = in_blocks(tiny_run(speeches(tmp_path / "data", 300, 8), steps=6))
    for ranks in (1, 2):
        run_ranks(train_here, ranks, run, tmp_path / str(ranks), parallel)
    torch.testing.assert_close(losses(tmp_path / "2"), losses(tmp_path / "1"), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("network", "changes", "message"),
    [
        (
            lambda: BidirectionalConfig(
                **{**vars(NETWORKS["bidirectional"]), "shifted_mask_id": 12}
            ).build(),
            {},
            r"objective\.block_lengths must be empty for this BidirectionalTransformer",
        ),
        (NETWORKS["hf"].build, {"attention_warmup": 2}, r"objective\.attention_warmup must be 0"),
    ],
)
def test_networks_that_do_not_read_blocks_are_refused(network, changes, message):
    run = in_blocks(tiny_run(None), **changes)
    with pytest.raises(ConfigError, match=message):
        build_step(run, VOCAB, components=GivenComponents(network=network()))


def test_lengths_are_integers():
    for wrong in ((0,), (4, -1), 4, ("4",)):
        run = replace(tiny_run(None), objective=Diffusion(block_lengths=wrong))
        with pytest.raises(ConfigError, match=r"objective\.block_lengths must be integers"):
            run.check()
