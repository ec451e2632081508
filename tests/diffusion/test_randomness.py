"""Random numbers by address: correct, uniform, independent, and the same on every device.

Every statistical test states the p-value below which it fails. The numbers are a fixed function of
fixed addresses, so a test that passes once passes always; the bounds say how surprising a failure
would have been.
"""

import numpy as np
import pytest
import scipy.stats
import torch
from support.cases import few

from gidd.diffusion.process import noise
from gidd.diffusion.randomness import UNIT_BITS, Stream, philox, random_integers, uniforms
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import stratified_times
from gidd.vocab import Vocab

P_VALUE = 1e-4

# the generator's published known answers: counter, key, output
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, expected, device):
    assert philox(counter, key) == expected
    words = [torch.tensor([word], device=device) for word in (*counter, *key)]
    actual = philox(tuple(words[:4]), tuple(words[4:]))
    assert tuple(int(word) for word in actual) == expected


@pytest.mark.parametrize("num_parts", [1, 2, 4, 8, 16])
def test_times_and_noise_do_not_depend_on_the_split(num_parts, device):
    """A global batch of 64: identical t and z_t however many parts draw it."""
    seed, step, length, vocab = 11, 1234, 96, Vocab(50258, mask_id=50257)
    schedule = HybridSchedule(vocab, 0.2)
    slot = torch.arange(64, device=device)
    sample = step * 64 + slot
    position = torch.arange(length, device=device)
    x = (sample[:, None] * 31 + position * 17) % 50257

    def draw(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        t = stratified_times(seed, step, slot[rows], num_samples=64)
        u = random_integers(seed, Stream.NOISE, step, sample[rows], position)
        return t, noise(schedule, t, x[rows], u)

    full_t, full_z = draw(slot)
    assert (full_z != x).float().mean() > 0.3
    parts = [draw(rows) for rows in slot.chunk(num_parts)]
    assert torch.equal(torch.cat([t for t, _ in parts]), full_t)
    assert torch.equal(torch.cat([z for _, z in parts]), full_z)
    # nor on the order in which a rank meets its samples
    shuffled = torch.randperm(64, generator=torch.Generator().manual_seed(0)).to(device)
    t, z = draw(shuffled)
    assert torch.equal(t, full_t[shuffled])
    assert torch.equal(z, full_z[shuffled])


def test_numbers_do_not_depend_on_the_device(device):
    """Every device agrees with Python's exact integers."""
    samples, positions = [5, 2**40 + 3, 2**62 - 1], [0, 1, 2**32 - 1]
    actual = random_integers(
        2**60 + 42,
        Stream.NOISE,
        7,
        torch.tensor(samples, device=device),
        torch.tensor(positions, device=device),
    )
    key = philox((Stream.NOISE, 0, 0, 0), (42, 2**28))[:2]
    for i, sample in enumerate(samples):
        for j, position in enumerate(positions):
            words = philox((position, sample % 2**32, sample // 2**32, 7), key)
            assert int(actual[i, j]) == words[0] * 2**30 + words[1] // 4


def test_every_part_of_the_address_counts():
    """Change any one of seed, stream, step, sample, position: the number changes."""
    base = {"seed": 1, "stream": Stream.NOISE, "step": 2, "sample": 3, "position": 4}
    others = [
        {"seed": 2},
        {"seed": 1 + 2**32},
        {"stream": Stream.TIMES},
        {"stream": Stream.PRIOR},
        {"step": 3},
        {"sample": 4},
        {"sample": 3 + 2**32},
        {"position": 5},
        {"seed": 2, "step": 1},
        {"step": 3, "sample": 2},
        {"sample": 4, "position": 3},
    ]
    seen = set()
    for change in [{}, *others]:
        address = base | change
        sample, position = torch.tensor([address["sample"]]), torch.tensor([address["position"]])
        seen.add(
            int(
                random_integers(
                    address["seed"], address["stream"], address["step"], sample, position
                )
            )
        )
    assert len(seen) == 1 + len(others)


def test_one_seed_and_step_per_sample():
    """A batch of requests, each with its own seed and step, gets what each would get alone."""
    seed, step = torch.tensor([3, 2**50 + 1, 3]), torch.tensor([0, 9, 1])
    sample, position = torch.tensor([7, 7, 8]), torch.arange(5)
    together = random_integers(seed, Stream.NOISE, step, sample, position)
    for i in range(3):
        alone = random_integers(
            int(seed[i]), Stream.NOISE, int(step[i]), sample[i : i + 1], position
        )
        assert torch.equal(together[i : i + 1], alone)


def addresses_along(axis: str, num: int) -> torch.Tensor:
    """`num` numbers along one axis of the address space, in order."""
    fixed, run = torch.tensor([3]), torch.arange(num)
    if axis == "position":
        return random_integers(1, Stream.NOISE, 2, fixed, run)[0]
    if axis == "sample":
        return random_integers(1, Stream.NOISE, 2, run, fixed)[:, 0]
    if axis == "step":
        return random_integers(1, Stream.NOISE, run, fixed.expand(num), fixed)[:, 0]
    if axis == "seed":
        return random_integers(run, Stream.NOISE, 2, fixed.expand(num), fixed)[:, 0]
    # a training set: many samples, many positions
    return random_integers(
        1, Stream.NOISE, 2, torch.arange(num // 1024), torch.arange(1024)
    ).flatten()


NUM_DRAWS = 1 << 21  # five axes: 1.05e7 draws in all


@pytest.mark.slow
@pytest.mark.parametrize("axis", few(["position", "sample", "step", "seed", "batch"], every=3))
def test_uniformity_and_independence(axis):
    """Chi-square of 4,096 cells and of 64 x 64 cells of neighbours; correlations; every bit."""
    numbers = addresses_along(axis, NUM_DRAWS)
    assert numbers.min() >= 0
    assert numbers.max() < 2**UNIT_BITS

    cells = torch.bincount(numbers >> (UNIT_BITS - 12), minlength=4096)
    assert scipy.stats.chisquare(cells.numpy()).pvalue > P_VALUE

    low_cells = torch.bincount(numbers & 4095, minlength=4096)
    assert scipy.stats.chisquare(low_cells.numpy()).pvalue > P_VALUE

    coarse = numbers >> (UNIT_BITS - 6)
    for lag in (1, 2, 3, 64, 1024):
        pairs = torch.bincount(coarse[:-lag] * 64 + coarse[lag:], minlength=4096)
        assert scipy.stats.chisquare(pairs.numpy()).pvalue > P_VALUE, lag
        u = numbers.double() / 2**UNIT_BITS - 0.5
        z_score = (u[:-lag] * u[lag:]).sum() * 12 / (len(u) - lag) ** 0.5
        assert 2 * scipy.stats.norm.sf(abs(float(z_score))) > P_VALUE, lag

    for bit in range(UNIT_BITS):
        ones = int(((numbers >> bit) & 1).sum())
        assert scipy.stats.binomtest(ones, len(numbers)).pvalue > P_VALUE, bit

    u = (numbers.double() / 2**UNIT_BITS).numpy()
    assert scipy.stats.kstest(u, "uniform").pvalue > P_VALUE


def test_streams_and_seeds_are_independent_of_each_other():
    """No correlation between what different streams, seeds or steps give at the same places."""
    position, sample = torch.arange(1 << 16), torch.tensor([0])
    rows = [
        uniforms(seed, stream, step, sample, position, dtype=torch.float64)[0]
        for seed in (0, 1, 2**32)
        for stream in (Stream.TIMES, Stream.NOISE, Stream.PRIOR)
        for step in (0, 1)
    ]
    correlation = np.corrcoef(torch.stack(rows).numpy())
    off_diagonal = correlation[np.triu_indices(len(rows), 1)] * 2**8  # standard normal
    # 153 correlations: bound the largest by the union of their tails
    assert 2 * scipy.stats.norm.sf(np.abs(off_diagonal).max()) * len(off_diagonal) > P_VALUE
    assert scipy.stats.kstest(off_diagonal, "norm").pvalue > P_VALUE


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 24), (torch.float64, 53)])
def test_uniforms_use_the_bits_of_their_type(dtype, bits):
    u = uniforms(0, Stream.NOISE, 0, torch.arange(64), torch.arange(1024), dtype=dtype)
    assert u.dtype == dtype
    assert u.min() >= 0
    assert u.max() < 1
    scaled = u.double() * 2**bits
    assert torch.equal(scaled, scaled.round())
    assert (scaled % 2 == 1).double().mean() == pytest.approx(0.5, abs=0.02)
