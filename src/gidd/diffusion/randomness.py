"""Stateless random numbers: each is a pure function of (seed, stream, step, sample, position).

The same address gives the same number on any device, in any batch, on any number of ranks and after
a restart. The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", SC 2011), in int64 operations of torch; on CUDA they are compiled, with the same bits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from gidd.common.devices import define_kernel, has_kernels

if TYPE_CHECKING:
    from jaxtyping import Float, Int

UNIT_BITS = 62
"""A fixed-point uniform is an integer u in [0, 2**UNIT_BITS); it represents u / 2**UNIT_BITS."""
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Word = int | Tensor
"""A 32-bit unsigned word, stored in a Python integer or an int64 tensor."""
Indices: TypeAlias = 'Int[Tensor, " N"]'
Number: TypeAlias = "int | Indices"
"""One for the batch, or one per sample."""


class Stream(IntEnum):
    """The use of a random number. Streams are independent; add new ones at the end."""

    TIMES = 0  # diffusion times of a training batch
    NOISE = 1  # noisy tokens z_t given x
    PRIOR = 2  # tokens z_1 of the prior
    SOURCE = 3  # samples of a `gidd.sources` source
    SHUFFLE = 4  # order of the samples in an epoch
    CROP = 5  # start of the window into a long document
    REDRAW = 6  # whether a sampling step redraws a token
    RENOISE = 7  # whether a redrawn token is noise, and which token
    TOKEN = 8  # tokens drawn from x_theta
    PLACE = 9  # which positions a corrector selects
    CORRUPTION = 10  # errors that an evaluation adds to a text
    CHOICE = 11  # which option a slot has
    DRAFT = 12  # which samples of a training batch are drafted
    WINDOW = 13  # order of the samples in a window of blocks
    BLOCK = 14  # length of the blocks of a sample of a training batch


def philox(
    counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]
) -> tuple[Word, Word, Word, Word]:
    """Philox4x32-10: four pseudorandom words from a 128-bit counter and a 64-bit key.

    Products of 32-bit words wrap modulo 2**64 in int64: both halves are correct after masking.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _WORD) ^ c1 ^ k0,
            product1 & _WORD,
            ((product0 >> 32) & _WORD) ^ c3 ^ k1,
            product0 & _WORD,
        )
        k0 = (k0 + _KEY_STEPS[0]) & _WORD
        k1 = (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def random_integers(
    seed: Number, stream: Stream, step: Number, sample: Indices, position: Indices
) -> Int[Tensor, "B L"]:
    """Return fixed-point uniforms at the given addresses: integers in [0, 2**62).

    `sample` is an index into the data set (any int64 >= 0), not into the batch. `seed` and `step`
    are one for the batch or one per sample, and so are positions, [L] or [B, L]. `step` and
    `position` must be below 2**32.
    """
    compute = _random_integers_kernel if has_kernels(sample) else _random_integers
    numbers = *_number_or_tensor(seed), int(stream), *_number_or_tensor(step)
    return compute(*numbers, sample, position)


def _random_integers(*address: Any) -> Any:
    seed, seeds, stream, step, steps, sample, position = address
    seed = seed if seeds is None else seeds[:, None]
    step = step if steps is None else steps[:, None]
    return _fixed_point(seed, stream, step, sample[:, None], position)


def _fixed_point(seed: Word, stream: int, step: Word, sample: Word, position: Word) -> Word:
    # the key of the stream: the seed, encrypted with the stream as counter
    key = philox((stream, 0, 0, 0), (seed & _WORD, (seed >> 32) & _WORD))[:2]
    high, low, _, _ = philox((position, sample & _WORD, (sample >> 32) & _WORD, step), key)
    return (high << 30) | (low >> 2)


def uniform_number(seed: int, stream: Stream, step: int, bits: int = 24) -> float:
    """Return the uniform in [0, 1) of sample 0, position 0, computed on the host; as `uniforms`."""
    integer = _fixed_point(seed, int(stream), step, 0, 0)
    return float(integer >> (UNIT_BITS - bits)) * 2.0**-bits


def uniforms(*address: Any, dtype: torch.dtype = torch.float32) -> Float[Tensor, "B L"]:
    """Return uniforms in [0, 1) at `random_integers(*address)`, with full precision."""
    bits = 53 if dtype == torch.float64 else 24
    integers = random_integers(*address)
    return (integers >> (UNIT_BITS - bits)).to(dtype) * 2.0**-bits


def _number_or_tensor(value: int | Tensor) -> tuple[int, Tensor | None]:
    """Return a signed 64-bit number, or 0 and a tensor."""
    if isinstance(value, Tensor):
        return 0, value
    return (value + (1 << 63)) % (1 << 64) - (1 << 63), None


_random_integers_kernel = define_kernel(
    "random_integers(int seed, Tensor? seeds, int stream, int step, Tensor? steps, Tensor sample,"
    " Tensor position) -> Tensor",
    definition=_random_integers,
    shapes=lambda *a: a[-2].new_empty(len(a[-2]), a[-1].shape[-1]),
)
