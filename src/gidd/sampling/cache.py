"""Keys and values of finished blocks, kept for all requests of a session.

A page is a block of a text, and is found by all tokens up to its end: samples of one prompt, turns
of a chat and the blocks of a text share what they have in common, and a block that was opened and
changed has other pages from there on. A page is computed in a forward pass of its own, with a shape
that depends on its position alone: samples are the same with any cache, or none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from gidd.models.context import FinishedBlocks

if TYPE_CHECKING:
    from jaxtyping import Float

CAPACITY = 256
"""The keys and values before a block are padded to a multiple of this many tokens: requests whose
contexts have different lengths share forward passes."""
_NUM_BUFFERS = 4


class ContextRows:
    """The finished blocks before the rows of a batch, and which pages each row has."""

    def __init__(self, num_rows: int, capacity: int, length: int, device: torch.device) -> None:
        self.blocks = FinishedBlocks(num_rows, capacity, length, device)
        self._keys: list[Sequence[bytes]] = [()] * num_rows

    def load(self, row: int, tokens: Sequence[int], keys: Sequence[bytes], pages: Any) -> None:
        """Write the pages of a row that it does not have; `tokens` are those of all pages."""
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self._keys[row], keys, strict=False))
        num_same = len(list(same))
        self._keys[row] = keys[:num_same]  # writing may fail
        for page_index in range(num_same, len(keys)):
            size = pages[page_index].shape[3]
            self.blocks.put(row, page_index * size, pages[page_index])
        self._keys[row] = keys
        self.blocks.start[row] = len(tokens)
        self.blocks.before[row] = tokens[-1] if tokens else -1


class KeyValueCache:
    """Pages of a network, the least recently used ones dropped; for one thread."""

    def __init__(self, network: Any, max_bytes: int, device: torch.device) -> None:
        """Keep at most `max_bytes` of pages; 0 computes all pages again for each block."""
        self._network, self._max_bytes, self._device = network, max_bytes, device
        self._pages: OrderedDict[bytes, Float[Tensor, "layers 2 H n width"]] = OrderedDict()
        self._buffers: OrderedDict[Any, ContextRows] = OrderedDict()
        self._settings: Any = None
        self.num_bytes = self.hits = self.misses = 0
        """Bytes of pages; tokens of pages that were kept, and of pages that were computed."""

    def __len__(self) -> int:
        """Return the number of pages."""
        return len(self._pages)

    def context(self, shape: Any, num_rows: int, capacity: int, length: int) -> ContextRows:
        """Return the rows of a shape; those of the last shapes still have their pages."""
        context = self._buffers.pop(shape, None)
        if context is None:
            context = ContextRows(num_rows, capacity, length, self._device)
        self._buffers[shape] = context
        while len(self._buffers) > _NUM_BUFFERS:
            self._buffers.popitem(last=False)
        return context

    def num_missing(self, tokens: Sequence[int | None], block_length: int) -> int:
        """Return the number of tokens whose pages would be computed before a block.

        Of a text that is not sampled yet it is the last block alone.
        """
        if None in tokens:
            return block_length
        keys = _keys_of(cast("Sequence[int]", tokens), block_length)
        return block_length * len([key for key in keys if key not in self._pages])

    def load(
        self,
        context: ContextRows,
        row: int,
        tokens: Sequence[int],
        block_length: int,
        settings: Any,
    ) -> None:
        """Give a row the keys and values of the tokens before it: of whole blocks."""
        if settings != self._settings:  # they change bits
            self._pages.clear()
            self._settings, self.num_bytes = settings, 0
        keys = _keys_of(tokens, block_length)
        pages = [self._pages.get(key) for key in keys]
        num_found = len(list(takewhile(lambda page: page is not None, pages)))
        for key in keys[:num_found]:
            self._pages.move_to_end(key)
        self.hits += num_found * block_length
        self.misses += (len(keys) - num_found) * block_length
        for page_index in range(num_found, len(keys)):
            before = tokens[: page_index * block_length]
            capacity = padded_to(len(before))
            shape = settings, block_length, capacity
            single = self.context(shape, 1, capacity, block_length)
            single.load(0, before, keys[:page_index], pages)
            block = tokens[len(before) : len(before) + block_length]
            x = torch.tensor([block], device=self._device)
            pages[page_index] = page = self._network.keys_and_values(x, single.blocks)
            self._keep(keys[page_index], page)
        context.load(row, tokens, keys, pages)

    def _keep(self, key: bytes, page: Tensor) -> None:
        if (old := self._pages.pop(key, None)) is not None:
            self.num_bytes -= old.nbytes
        self._pages[key] = page
        self.num_bytes += page.nbytes
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= self._pages.popitem(last=False)[1].nbytes


def padded_to(num_tokens: int) -> int:
    """Return the number of tokens to which the keys and values before a block are padded."""
    return -(-num_tokens // CAPACITY) * CAPACITY


def _keys_of(tokens: Sequence[int], block_length: int) -> list[bytes]:
    """Return the key of each page: a digest of all tokens up to its end."""
    key, keys = block_length.to_bytes(8), list[bytes]()
    numbers = np.array(tokens, dtype=np.int64)
    for start in range(0, len(tokens), block_length):
        page = numbers[start : start + block_length].tobytes()
        key = blake2b(key + page, digest_size=16).digest()
        keys.append(key)
    return keys
