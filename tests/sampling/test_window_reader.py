"""Windows of several jobs share forward passes, a few at a time, and one that fails fails alone."""

import asyncio

import pytest
import torch
from support.sampling_worlds import random_denoiser

from gidd.diffusion.schedules import HybridSchedule
from gidd.errors import CheckpointError, DataError
from gidd.pipeline.noise_level import estimate_noise
from gidd.sampling import Session, ban, gather, run_sync
from gidd.sampling.windows import PASSES_AT_ONCE, PosteriorPass, WindowReader, WindowTokens
from gidd.vocab import Vocab

VOCAB = Vocab(33, mask_id=32)
SCHEDULE = HybridSchedule(VOCAB, 0.2)
TOKENS = torch.randint(31, (400,), generator=torch.Generator().manual_seed(0)).tolist()
DAMAGED = 31
"""A token that the network fails on."""


class Counting:
    """A network that counts its forward passes, and predicts NaN for windows with `DAMAGED`."""

    def __init__(self) -> None:
        self.network, self.shapes = random_denoiser(VOCAB, gain=0.0), []

    def hidden(self, z, t):
        self.shapes.append(tuple(z.shape))
        features = self.network.hidden(z, t)
        return features.masked_fill((z == DAMAGED).any(-1)[:, None, None], torch.nan)

    def distribution(self, hidden):
        return self.network.distribution(hidden)


def reader(rows: int, **options) -> WindowReader:
    return WindowReader(Session(Counting(), SCHEDULE, batch_size=rows), **options)


def window(length: int, start: int = 0, editable: bool = True) -> WindowTokens:
    return WindowTokens(tuple(TOKENS[start : start + length]), (editable,) * length)


def x_theta(rows, t):
    return rows.current, rows.dense


def read(windows: WindowReader, items, t: float = 0.1) -> list:
    return run_sync(windows.read([(item, t) for item in items], x_theta))


def are_equal(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("rows", [1, 4])
def test_values_are_those_of_the_network(rows):
    windows = reader(rows)
    items = [window(8, k) for k in range(3)]
    for item, (found, dense) in zip(items, read(windows, items), strict=True):
        z = torch.tensor([item.tokens])
        network = windows.session.network.network
        with torch.no_grad():
            expected = network.distribution(network.hidden(z, torch.tensor([0.1]).double()))[0]
        torch.testing.assert_close(dense, expected)
        assert torch.equal(found, dense.gather(-1, z[0, :, None])[:, 0])


def test_texts_share_forward_passes_and_get_the_same_values():
    """Three texts with different times and functions: 12 windows, 4 in a forward pass."""
    texts = [[window(16, 20 * job + k) for k in range(4)] for job in range(3)]
    times = (0.1, 0.2, 0.1)

    def reads(windows):
        posteriors = PosteriorPass(windows)
        return (
            windows.read([(w, times[0]) for w in texts[0]], x_theta),
            windows.read([(w, times[1]) for w in texts[1]], x_theta),
            posteriors(texts[2], 0.3),
        )

    together, apart = reader(4), reader(4)
    for own, other in zip(run_sync(gather(reads(together))), reads(apart), strict=True):
        assert all(map(are_equal, own, run_sync(other)))
    assert together.session.network.shapes == [(4, 16)] * 3
    few = [together.read([(texts[0][k], 0.1)], x_theta) for k in range(4)]
    together.session.network.shapes.clear()
    run_sync(gather(few))
    assert together.session.network.shapes == [(4, 16)]  # one by one, four


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_few_windows_are_pending_and_forward_passes_are_full(rows):
    """Sorted lengths: as many forward passes as if all windows were submitted at once."""
    lengths = [6] * 3 + [7] + [8] * 41
    taken, done, most = 0, 0, 0

    def stream():
        nonlocal taken, most
        for k, length in enumerate(lengths):
            taken += 1
            most = max(most, taken - done)
            yield window(length, k), 0.1

    def count():
        nonlocal done
        done += 1

    windows = reader(rows)
    found = run_sync(windows.read(stream(), x_theta, count))
    assert [len(values[0]) for values in found] == lengths
    assert done == taken == len(lengths)
    assert most <= PASSES_AT_ONCE * rows
    passes = [-(-number // rows) for number in (3, 1, 41)]
    shapes = windows.session.network.shapes
    assert [sum(length == n for _, length in shapes) for n in (6, 7, 8)] == passes


def test_requests_that_are_pending_are_bounded():
    windows, most = reader(2), 0
    items = ((window(8, k), 0.1) for k in range(100))

    async def watch() -> list:
        nonlocal most
        task = asyncio.ensure_future(windows.read(items, x_theta))
        while not task.done():
            await asyncio.sleep(0)
            most = max(most, windows.session.pending)
        return await task

    assert len(run_sync(watch())) == 100
    assert most == 2 * PASSES_AT_ONCE


@pytest.mark.parametrize("rows", [1, 4])
def test_windows_without_judged_positions_are_zero_and_cost_nothing(rows):
    windows = reader(rows, processors=(ban(VOCAB, [3]),))
    items = [window(8), window(12, editable=False), window(8, 1), window(8, 2, editable=False)]
    found = read(windows, items)
    assert [tuple(map(len, values)) for values in found] == [(8, 8), (12, 12), (8, 8), (8, 8)]
    for item, (own, dense) in zip(items, found, strict=True):
        assert dense.shape == (len(item.tokens), VOCAB.size)
        assert own.dtype == dense.dtype == torch.float32
        assert bool(own.any()) == bool(dense.any()) == any(item.editable)
    assert len(windows.session.network.shapes) == (2 if rows == 1 else 1)
    windows.session.network.shapes.clear()
    posteriors = PosteriorPass(windows, num_alternatives=2)
    (empty,) = run_sync(posteriors([window(8, editable=False)], 0.2))
    assert empty.tokens.shape == empty.probabilities.shape == (8, 2)
    assert not any(value.any() for value in empty)
    assert windows.session.network.shapes == []
    assert run_sync(windows.read([], x_theta)) == []


@pytest.mark.parametrize("rows", [1, 4])
def test_a_text_that_fails_does_not_disturb_others(rows):
    """Damaged predictions, a token that does not exist, and a function that raises."""
    windows = reader(rows)
    good = [window(16, k) for k in range(6)]
    damaged = [window(16), WindowTokens((DAMAGED,) * 16, (True,) * 16), *good]
    unknown = [window(16), WindowTokens((VOCAB.size,) * 16, (True,) * 16)]

    def fail(rows, t):
        raise ZeroDivisionError

    items = ([(w, 0.1) for w in each] for each in (good, damaged, good, unknown, good))
    functions = (x_theta, x_theta, fail, x_theta, x_theta)

    async def read_all() -> list:
        pairs = zip(items, functions, strict=True)
        reads = [windows.read(own, function) for own, function in pairs]
        return await asyncio.gather(*reads, return_exceptions=True)

    first, nan, raises, refused, last = run_sync(read_all())
    expected = read(reader(rows), good)
    assert all(map(are_equal, first, expected)) and all(map(are_equal, last, expected))
    assert isinstance(nan, CheckpointError) and "not finite" in str(nan)
    assert isinstance(raises, ZeroDivisionError)
    assert isinstance(refused, DataError) and "token ids must be in" in str(refused)


@pytest.mark.slow
def test_noise_levels_are_estimated_together():
    documents = [[window(16, 40 * k + 16 * i) for i in range(2)] for k in range(4)]

    def estimates(windows):
        return [estimate_noise(windows, cut) for cut in documents]

    together, apart = reader(8), reader(8)
    found = run_sync(gather(estimates(together)))
    assert found == [run_sync(estimate) for estimate in estimates(apart)]
    ideal = -(-sum(level.forward_passes for level in found) // 8)
    assert len(together.session.network.shapes) <= ideal + 4 < len(apart.session.network.shapes)
