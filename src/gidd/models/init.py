"""First values of parameters, the same on any number of ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


@final
class Initializer:
    """Draws parameters one after the other: the k-th depends on (seed, k), not on its sharding.

    A sharded parameter is drawn whole on every rank, one at a time, and each rank keeps its part:
    the model never exists as a whole, and ranks need not talk.
    """

    def __init__(self, seed: int | None = None) -> None:
        """Without a seed torch's own generator is used, as by all of torch's layers."""
        self._seed = seed
        self._drawn = 0

    def uniform(self, parameter: Tensor, bound: float) -> None:
        """Fill with numbers in [-bound, bound)."""
        self._fill(parameter, lambda whole, by: whole.uniform_(-bound, bound, generator=by))

    def normal(self, parameter: Tensor, std: float) -> None:
        """Fill with normal numbers of mean 0."""
        self._fill(parameter, lambda whole, by: whole.normal_(0, std, generator=by))

    def _fill(
        self, parameter: Tensor, draw: Callable[[Tensor, torch.Generator | None], Tensor]
    ) -> None:
        generator = None
        if self._seed is not None:
            # torch's CPU generator looks at 32 bits of its seed: all of them must depend on both
            address = f"{self._seed}:{self._drawn}".encode()
            seed = int.from_bytes(hashlib.blake2b(address, digest_size=7).digest())
            generator = torch.Generator(parameter.device).manual_seed(seed)
        self._drawn += 1
        if not isinstance(parameter, DTensor):
            draw(parameter, generator)
            return
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        mesh, placements = parameter.device_mesh, parameter.placements
        draw(whole, generator)
        parameter.copy_(distribute_tensor(whole, mesh, placements, src_data_rank=None))
