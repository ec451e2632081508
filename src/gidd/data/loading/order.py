"""The order of samples as a pure function of the position: no stored list and no state.

A shuffle is a keyed permutation of 0 .. n - 1 that can be evaluated at any position. The cost does
not depend on n, nothing is stored, and all machines get the same sample for position k.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gidd.diffusion.randomness import Stream, philox
from gidd.errors import ConfigError

_ROUNDS = 8
_LARGEST = 1 << 62
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))

Indices = NDArray[np.int64]


def shuffled(place: Indices, size: int, seed: int, epoch: int) -> Indices:
    """Return the sample at each `place` of an epoch's order; a permutation of 0 .. size - 1.

    A Feistel network permutes the integers with the bit length of `size`. Results outside the range
    are permuted again until they are inside (cycle walking), which is again a permutation and takes
    fewer than two iterations on average.
    """
    if not 1 <= size < _LARGEST:
        raise ConfigError(
            f"size must be between 1 and 2**62 samples, got {size}. Prepare some data first."
        )
    bits = max(2, (size - 1).bit_length())
    keys = _round_keys(seed, epoch)
    result = _feistel(place.astype(np.uint64), bits, keys)
    while (outside := result >= size).any():
        result[outside] = _feistel(result[outside], bits, keys)
    return result.astype(np.int64)


def _feistel(value: NDArray[np.uint64], bits: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """Permute integers: the two halves of the bits are XORed in turn with a hash of the other."""
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
    """Hash a value by two multiplications modulo 2**64."""
    mixed = (value ^ key) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX[1]
    return mixed ^ (mixed >> np.uint64(32))


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    """Return the eight 64-bit round keys of (seed, epoch)."""
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    counter = (epoch & 0xFFFFFFFF, epoch >> 32, int(Stream.SHUFFLE))
    words = (philox((number, *counter), key) for number in range(_ROUNDS))
    return [np.uint64((int(high) << 32) | int(low)) for high, low, *_ in words]
