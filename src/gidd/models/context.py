"""What a block reads besides itself: the finished blocks before it, in training and in sampling.

The noisy tokens of a block read each other, and the clean tokens of the blocks before it: a context
extends the keys and values of every layer by those of the clean tokens.

If the output at a token predicts the next one (`start_id`), the token before a block is read beside
it and predicts its first token; clean inputs begin with this token as well, and end one earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, final

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

Extend = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(keys, values) of a layer, each [B, H, L, head_width] -> those that its queries read."""


class Context(Protocol):
    """What `hidden(z, t, context=...)` of a backbone reads besides z."""

    mask: Bool[Tensor, "B 1 queries keys"]
    """True where a query reads a key of `extend`."""
    positions: Int[Tensor, "B L"] | None
    """Position of each input; None: 0 .. L - 1."""
    groups: Int[Tensor, "B L"] | None
    """Number of the block of each input, -1 at padding; None: a row is one block."""

    def extend(self, layer: int) -> Extend:
        """Return the function that extends the keys and values of a layer."""
        ...


def start_id_of(backbone: Any) -> int | None:
    """Return the token that a backbone reads before the first, if outputs predict the next one."""
    return getattr(getattr(backbone, "config", None), "start_id", None)


@final
class CleanBlocks:
    """The context of clean rows, then noisy ones: one forward pass for all blocks of sequences.

    A noisy input reads those of its block and the clean inputs of earlier blocks; a clean input
    reads the clean inputs of its block and of earlier ones.
    """

    def __init__(
        self,
        clean: Int[Tensor, "B L"],
        noisy: Int[Tensor, "B L"],
        is_read: Bool[Tensor, "2 B L"] | None = None,
        segments: Int[Tensor, "B L"] | None = None,
        positions: Int[Tensor, "2B L"] | None = None,
    ) -> None:
        """Take the block of each input, counted in its document, and whether it is read at all."""
        earlier, known = _compare(noisy, clean, torch.gt), _compare(clean, clean, torch.ge)
        same, groups = _compare(noisy, noisy, torch.eq), torch.cat([clean, noisy])
        if segments is not None:
            alike = _compare(segments, segments, torch.eq)
            earlier, known, same = earlier & alike, known & alike, same & alike
            groups = groups + (segments.long().repeat(2, 1) + 1) * groups.shape[1]
        if is_read is not None:
            of_clean, of_noisy = is_read[:, :, None]
            earlier, known, same = earlier & of_clean, known & of_clean, same & of_noisy
            groups = groups.masked_fill(~is_read.flatten(0, 1), -1)
        none = torch.zeros_like(known)
        rows = torch.cat([known, none], dim=-1), torch.cat([earlier, same], dim=-1)
        self.mask, self.groups, self.positions = torch.cat(rows)[:, None], groups, positions

    def extend(self, layer: int) -> Extend:
        """Return a function of the keys and values of both halves, the same for all layers."""
        return _prepend_clean


def _compare(query: Tensor, key: Tensor, function: Any) -> Tensor:
    return function(query[:, :, None], key[:, None, :])


def _prepend_clean(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Prepend the keys and values of the clean half to those of both halves."""
    k, v = (torch.cat([part[: len(part) // 2].repeat(2, 1, 1, 1), part], dim=2) for part in (k, v))
    return k, v


def hidden_in_blocks(
    backbone: Any,
    z: Int[Tensor, "B L"],
    t: Float[Tensor, " B"],
    x: Int[Tensor, "B L"],
    block_index: Int[Tensor, "B L"],
    valid: Bool[Tensor, "B L"] | None = None,
    segments: Int[Tensor, "B L"] | None = None,
) -> Float[Tensor, "B L D"]:
    """Return the hidden states of all blocks of z, each given the blocks of x before it.

    This is one forward pass of both z and x, which is read at t = 0.
    """
    times, start_id = torch.cat([torch.zeros_like(t), t]), start_id_of(backbone)
    if start_id is None:
        is_read = None if valid is None else torch.stack([valid, valid])
        context = CleanBlocks(block_index, block_index, is_read, segments)
        return backbone.hidden(torch.cat([x, z]), times, context=context)[len(z) :]
    (size, length), num_blocks = z.shape, int(block_index.max()) + 1
    position, block = (
        torch.arange(n, device=z.device).expand(size, n) for n in (length, num_blocks)
    )
    first = torch.full_like(block, length).scatter_reduce(1, block_index, position, "amin")
    before = F.pad(x, (1, 0), value=start_id)  # the token before each token
    valid = (
        torch.ones_like(before, dtype=torch.bool)
        if valid is None
        else F.pad(valid, (1, 0), value=True)
    )
    fill = (0, num_blocks)
    context = CleanBlocks(
        F.pad(block_index, fill, value=num_blocks),
        torch.cat([block_index, block], dim=1),
        torch.stack([F.pad(valid[:, :-1], fill), F.pad(valid[:, 1:], fill, value=True)]),
        positions=torch.cat([F.pad(position, fill), torch.cat([position + 1, first], dim=1)]),
    )
    rows = F.pad(before[:, :-1], fill), torch.cat([z, before.gather(1, first)], dim=1)
    states = backbone.hidden(torch.cat(rows), times, context=context)[size:]
    is_first = position == first.gather(1, block_index)
    source = torch.where(is_first, length + block_index, position - 1)
    return states.gather(1, source[..., None].expand(-1, -1, states.shape[-1]))


@final
class FinishedBlocks:
    """Keys and values of the finished blocks before B rows, each of which is a part of one text.

    They are stored layer by layer, padded to `capacity` inputs, and followed by those of the row
    itself, which every forward pass writes: nothing is copied.
    """

    def __init__(
        self, num_rows: int, capacity: int, length: int, device: torch.device | str = "cpu"
    ) -> None:
        """Start with rows of at most `length` tokens, at the beginning of a text."""
        self.capacity, self.length = capacity, length
        self.start = torch.zeros(num_rows, dtype=torch.int64, device=device)
        """Position of the first token of each row: the number of inputs before it."""
        self.before = torch.full_like(self.start, -1)
        """The token before each row; -1 at the beginning of a text."""
        self.stored: Tensor | None = None
        """[layers, 2, B, H, capacity + length + 1, head_width], from the first `put` on."""

    def put(self, row: int, position: int, page: Float[Tensor, "layers 2 H n width"]) -> None:
        """Store the keys and values of n inputs before a row."""
        if self.stored is None:
            layers, _, heads, _, width = page.shape
            num_inputs = self.capacity + self.length + 1  # one more if outputs are shifted
            self.stored = page.new_zeros(layers, 2, len(self.start), heads, num_inputs, width)
        self.stored[:, :, row, :, position : position + page.shape[3]] = page

    def rows(self, index: Int[Tensor, " K"]) -> FinishedBlocks:
        """Return a copy of some rows."""
        copy = FinishedBlocks(0, self.capacity, self.length)
        copy.start, copy.before = self.start[index], self.before[index]
        copy.stored = None if self.stored is None else self.stored[:, :, index]
        return copy


@final
class _BlockRows:
    """The context of rows that are one block each, in one forward pass."""

    groups = None

    def __init__(
        self,
        finished: FinishedBlocks,
        positions: Int[Tensor, "B n"],
        is_read: Bool[Tensor, "B n"],
    ) -> None:
        self.positions, self._finished = positions, finished
        capacity = 0 if finished.stored is None else finished.capacity
        place = torch.arange(capacity, device=positions.device)
        mask = torch.cat([place < finished.start[:, None], is_read], dim=1)
        self.mask = mask[:, None, None]
        self.written: list[Tensor] = []
        """Keys and values of the rows themselves, layer by layer."""

    def extend(self, layer: int) -> Extend:
        def write(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            self.written += [k, v]
            stored, start = self._finished.stored, self._finished.capacity
            if stored is None:
                return k, v
            both = stored[layer, :, :, :, : start + k.shape[2]]
            both[0, :, :, start:], both[1, :, :, start:] = k, v
            return both[0], both[1]

        return write


def hidden_of_blocks(
    backbone: Any,
    z: Int[Tensor, "B n"],
    t: Float[Tensor, " B"],
    finished: FinishedBlocks,
    valid: Bool[Tensor, "B n"] | None = None,
) -> Float[Tensor, "B n D"]:
    """Return the hidden states of rows of one block each, given the blocks before them."""
    start_id, start = start_id_of(backbone), finished.start[:, None]
    positions = start + torch.arange(z.shape[1], device=z.device)
    is_read = torch.ones_like(z, dtype=torch.bool) if valid is None else valid
    if start_id is None:
        return backbone.hidden(z, t, valid, context=_BlockRows(finished, positions, is_read))
    before = finished.before.masked_fill(finished.start == 0, start_id)[:, None]
    positions, is_read = torch.cat([positions + 1, start], 1), F.pad(is_read, (0, 1), value=True)
    context = _BlockRows(finished, positions, is_read)
    states = backbone.hidden(torch.cat([z, before], dim=1), t, context=context)
    return torch.cat([states[:, -1:], states[:, :-2]], dim=1)


def keys_and_values(
    backbone: Any, x: Int[Tensor, "1 n"], finished: FinishedBlocks
) -> Float[Tensor, "layers 2 H n width"]:
    """Return the keys and values of a finished block, read at t = 0 given the blocks before it."""
    start_id = start_id_of(backbone)
    if start_id is not None:
        before = finished.before.masked_fill(finished.start == 0, start_id)[:, None]
        x = torch.cat([before, x[:, :-1]], dim=1)
    positions = finished.start[:, None] + torch.arange(x.shape[1], device=x.device)
    context = _BlockRows(finished, positions, torch.ones_like(x, dtype=torch.bool))
    backbone.hidden(x, torch.zeros(1, device=x.device), context=context)
    pairs = torch.stack([part[0] for part in context.written])
    return pairs.unflatten(0, (-1, 2))


def block_index_of(
    lengths: Int[Tensor, " B"], num_tokens: int, segments: Int[Tensor, "B L"] | None = None
) -> Int[Tensor, "B L"]:
    """Return the block of each token, counted from the beginning of its document."""
    position = torch.arange(num_tokens, device=lengths.device).expand(len(lengths), -1)
    if segments is not None:
        is_first = torch.ones_like(position, dtype=torch.bool)
        is_first[:, 1:] = segments[:, 1:] != segments[:, :-1]
        position = position - torch.where(is_first, position, 0).cummax(-1).values
    return position // lengths[:, None]
