"""Small states of a model to save and to compare, as one process or many hold them."""

import random
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from gidd.training.checkpoints import Checkpoints
from gidd.training.world import World, open_world

PARAMETERS = {
    "weight": ((7, 4), torch.float32),
    "few rows": ((1, 6), torch.float32),
    "bias": ((3,), torch.float32),
    "half": ((5, 2), torch.bfloat16),
}
OTHERS = {
    "scalar": ((), torch.float64),
    "step": ((), torch.int64),
    "empty": ((0, 4), torch.float32),
    "flags": ((3,), torch.bool),
}


class Restored(NamedTuple):
    """A checkpoint that was loaded, and the damage of newer ones."""

    step: int
    record: dict[str, Any]
    notes: list[str]


def restore(checkpoints: Checkpoints, tensors: dict[str, Tensor]) -> Restored | None:
    """Load the newest valid checkpoint into tensors; None if there is none."""
    found = checkpoints.read_latest(lambda step: checkpoints.read(step, tensors))
    return None if found is None else Restored(found[0].step, found[1], found[0].notes)


def wholes(seed: int) -> dict[str, Tensor]:
    """A model's tensors: any bits, so that some are NaN."""
    drawn, bits = {}, random.Random(seed)
    for name, (shape, dtype) in {**PARAMETERS, **OTHERS}.items():
        like = torch.empty(shape, dtype=dtype)
        data = bits.randbytes(like.nbytes)
        if dtype == torch.bool:
            data = bytes(byte % 2 for byte in data)
        drawn[name] = torch.frombuffer(bytearray(data or b"\0" * 8), dtype=dtype)
        drawn[name] = drawn[name][: like.numel()].reshape(shape).clone()
    return drawn


def placed(world: World, how: str, seed: int) -> dict[str, Tensor]:
    """The same tensors as a run holds them: replicated (`whole`), or sharded by FSDP2."""
    tensors = wholes(seed)
    if how == "whole":
        return tensors
    mesh = world.mesh if how == "fsdp" else world.device_mesh_2d(2)
    for name in PARAMETERS:
        module = nn.Module()
        module.weight = nn.Parameter(tensors[name])
        tensors[name] = fully_shard(module, mesh=mesh).weight
        assert isinstance(tensors[name], DTensor)
    return tensors


def bits(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    """The bytes of the full tensors. All ranks enter."""
    full = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}
    return {
        name: bytes(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
        if tensor.numel()
        else b""
        for name, tensor in full.items()
    }


def on_ranks_save(folder: Path, how: str, seed: int) -> None:
    with open_world("cpu", timeout=600) as world:
        checkpoints = Checkpoints(folder, world)
        checkpoints.save(seed, placed(world, how, seed), {"seed": seed}, {"run.yaml": f"{seed}\n"})
        checkpoints.wait()
