"""Parameter initialisation that does not depend on the number of ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor


@final
class Initializer:
    """Fills parameters in order: the k-th depends on (seed, k), not on its sharding.

    Every rank draws the full tensor of a sharded parameter and keeps its shard, one parameter at
    a time: no rank holds the full model, and ranks do not communicate.
    """

    def __init__(self, seed: int | None = None) -> None:
        """Without a seed, use torch's global generator, as torch's layers do."""
        self._seed = seed
        self._num_filled = 0

    def uniform(self, parameter: Tensor, bound: float) -> None:
        """Fill with samples of the uniform distribution over [-bound, bound)."""
        self._fill(parameter, lambda full, rng: full.uniform_(-bound, bound, generator=rng))

    def normal(self, parameter: Tensor, std: float) -> None:
        """Fill with samples of the normal distribution of mean 0."""
        self._fill(parameter, lambda full, rng: full.normal_(0, std, generator=rng))

    def _fill(
        self, parameter: Tensor, draw: Callable[[Tensor, torch.Generator | None], Tensor]
    ) -> None:
        # imported here: it takes 0.65 s
        from torch.distributed.tensor import DTensor

        generator = None
        if self._seed is not None:
            # torch's CPU generator uses 32 bits of its seed: hash, so that all depend on both
            key = f"{self._seed}:{self._num_filled}".encode()
            seed = int.from_bytes(hashlib.blake2b(key, digest_size=7).digest())
            generator = torch.Generator(parameter.device).manual_seed(seed)
        self._num_filled += 1
        if not isinstance(parameter, DTensor):
            draw(parameter, generator)
            return
        full = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        copy_full(parameter, draw(full, generator))


@torch.no_grad()
def copy_full(parameter: Tensor, full: Tensor) -> None:
    """Copy a complete tensor to a parameter, of which this rank may have a shard."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        full = full.to(parameter.device, parameter.dtype)
        full = distribute_tensor(full, mesh, placements, src_data_rank=None)
    parameter.copy_(full)
