"""The kernel of random integers gives the bits of its definition."""

import pytest
import torch
from support.interpreted import interpret, needs_triton

from gidd.diffusion.randomness import Stream, random_integers

SAMPLES = [5, 2**31, 2**62 + 12345]
SEEDS = [1, 2**40 + 3, -7]


def number_or_tensor(value: int | torch.Tensor) -> tuple[int, torch.Tensor | None]:
    return (0, value) if isinstance(value, torch.Tensor) else (value, None)


def different_bits() -> list[str]:
    """Return the addresses at which the kernel differs."""
    from gidd.diffusion.kernels.random import launch_random_integers

    sample, position = torch.tensor(SAMPLES), torch.arange(40) * 107_000_000  # up to 4.2e9
    steps = torch.arange(3) * 1000
    different = []
    for seed, step in [
        (0, 0),
        (2**31, 2**32 - 1),
        (2**63 - 1, 1),
        (-5, steps),
        (2**64 - 3, 7),
        (torch.tensor(SEEDS), 2**31),
        (torch.tensor(SEEDS), steps),
    ]:
        address = seed, Stream.TOKEN, step, sample, position
        numbers = *number_or_tensor(seed), int(Stream.TOKEN), *number_or_tensor(step)
        found = launch_random_integers(*numbers, sample, position)
        if not torch.equal(found, random_integers(*address)):
            different.append(str(address))
    position = torch.arange(1100)  # of several programs
    found = launch_random_integers(3, None, int(Stream.NOISE), 5, None, sample[:1], position)
    if not torch.equal(found, random_integers(3, Stream.NOISE, 5, sample[:1], position)):
        different.append("many positions")
    return different


@pytest.mark.slow
@needs_triton
def test_bits_are_equal_for_all_seeds_samples_and_steps():
    assert interpret(different_bits) == []
