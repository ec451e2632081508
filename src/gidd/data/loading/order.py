"""The order of samples as a pure function of an integer: no list, no state, any length.

A shuffle is a keyed permutation of 0 .. n - 1 that can be asked for any one place. Asking for
place k costs the same whether n is a thousand or ten trillion, so nothing is stored, and whoever
asks for place k, on any machine, gets the same sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gidd.diffusion.randomness import Stream, philox
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROUNDS = 8
_LARGEST = 1 << 62
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))

Indices = NDArray[np.int64]


def shuffled(place: Indices, size: int, seed: int, epoch: int) -> Indices:
    """Which sample stands at each `place` of an epoch's order; a permutation of 0 .. size - 1.

    A Feistel network permutes the integers of as many bits as `size` has. A result outside the
    range is permuted again until it is inside, which keeps it a permutation (cycle walking); fewer
    than two tries are needed on average.
    """
    if not 1 <= size < _LARGEST:
        raise ConfigError(
            f"an order must have between 1 and 2**62 samples, got {size}. Prepare some data first."
        )
    bits = max(2, (size - 1).bit_length())
    keys = list(_round_keys(seed, epoch))
    result = _feistel(place.astype(np.uint64), bits, keys)
    while (outside := result >= size).any():
        result[outside] = _feistel(result[outside], bits, keys)
    return result.astype(np.int64)


def epoch_and_place(sample: Indices, size: int) -> tuple[Indices, Indices]:
    """Samples are counted through all epochs: which epoch, and which place in its order."""
    return sample // size, sample % size


def _feistel(value: NDArray[np.uint64], bits: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """Two halves of the bits take turns in changing each other: one to one, whatever is mixed."""
    low_bits = np.uint64(bits // 2)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high, low = value >> low_bits, value & low_mask
    for number, key in enumerate(keys):
        if number % 2:
            low = low ^ (_mix(high, key) & low_mask)
        else:
            high = high ^ (_mix(low, key) & high_mask)
    return (high << low_bits) | low


def _mix(value: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Bits of the value, spread by two multiplications modulo 2**64."""
    mixed = (value ^ key) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX[1]
    return mixed ^ (mixed >> np.uint64(32))


def _round_keys(seed: int, epoch: int) -> Iterator[np.uint64]:
    """Eight 64-bit keys that belong to (seed, epoch)."""
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    for number in range(_ROUNDS):
        words = philox((number, epoch & 0xFFFFFFFF, epoch >> 32, int(Stream.SHUFFLE)), key)
        yield np.uint64((int(words[0]) << 32) | int(words[1]))
