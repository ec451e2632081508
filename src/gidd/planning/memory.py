"""A book of all memory that a step holds, and of all collectives that it enters."""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, final
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gidd.diffusion.fused import BLOCK_ENTRIES, CHUNK_TOKENS

aten = torch.ops.aten
_FSDP = str(Path("torch", "distributed", "fsdp", "_fully_shard"))
_LOSS = str(Path("gidd", "diffusion", "fused.py"))
_SNAPSHOT_GROWTH = 1.005
"""How much fuller than at the last listing it must be before what is there is listed again."""

KINDS = (
    "parameters",
    "gradients",
    "optimiser",
    "ema",
    "activations",
    "gathered parameters",
    "head and loss",
    "backward pass",
    "gradients being summed",
    "other",
)
"""What memory is for. "Backward pass" is what it makes: gradients of features and of gathered
parameters, and activations computed again."""

Phase = Literal["forward", "backward"]
CollectiveKind = Literal["all-gather", "reduce-scatter", "all-reduce"]

_COLLECTIVES: dict[object, CollectiveKind] = {
    torch.ops.c10d._allgather_base_.default: "all-gather",
    torch.ops.c10d._reduce_scatter_base_.default: "reduce-scatter",
    torch.ops.c10d.allreduce_.default: "all-reduce",
}


class Collective(NamedTuple):
    """All calls of one kind."""

    kind: CollectiveKind
    ranks: int
    """That take part in each."""

    calls: int
    bytes: int
    """Of the undivided tensors, over all calls."""


@final
class MemoryTracker(TorchDispatchMode):
    """Follows tensors without contents; what would need contents is the largest case there is."""

    def __init__(self, num_tokens: int, vocab_size: int) -> None:
        super().__init__()
        self._parameters: list[nn.Parameter] = []
        self._largest_case = _LargestCase(num_tokens, vocab_size)
        self._entries: dict[int, tuple[int, str]] = {}
        self._held: Counter[str] = Counter()
        self._total = 0
        self._phase: Phase = "forward"
        self._peak: Counter[str] = Counter()
        self._listed: dict[str, tuple[int, dict[str, int]]] = {}
        self._collectives: Counter[tuple[CollectiveKind, int]] = Counter()
        self._calls: Counter[tuple[CollectiveKind, int]] = Counter()

    def own(self, parameters: list[nn.Parameter]) -> None:
        """Book this rank's part of the parameters, and tell their gradients from all else."""
        self._parameters = parameters
        self.enter("parameters", parameters)

    def enter(self, what: str, tensors: object) -> None:
        """Book memory that has been there before."""
        for leaf in tree_leaves(tensors):
            if isinstance(leaf, Tensor):
                storage = _local(leaf).untyped_storage()
                self._set(storage, storage.nbytes(), what)

    @contextmanager
    def during(self, phase: Phase) -> Generator[None]:
        """Follow what happens in here."""
        self._phase = phase
        resize = torch.UntypedStorage.resize_  # how FSDP2 lets go of gathered parameters

        def follow(storage: torch.UntypedStorage, size: int) -> object:
            self._set(storage, size, self._asked_by())
            return resize(storage, size)

        with self, patch.object(torch.UntypedStorage, "resize_", follow):
            yield

    def forget_collectives(self) -> None:
        """Count anew."""
        self._collectives.clear()
        self._calls.clear()

    def collectives(self) -> tuple[Collective, ...]:
        """Those entered since they were forgotten."""
        return tuple(
            Collective(kind, ranks, self._calls[kind, ranks], size)
            for (kind, ranks), size in self._collectives.items()
        )

    def phases(self) -> dict[str, dict[str, int]]:
        """Bytes at the fullest moment of each phase, and of the update that follows them."""
        phases: dict[str, dict[str, int]] = {}
        for phase, (total, held) in self._listed.items():
            phases[phase] = held | {"other": self._peak[phase] - total}
        phases["update"] = self._with_gradients()
        return phases

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its parts come by again
        out = self._largest_case(func, args)
        if out is None:
            out = func(*args, **(kwargs or {}))
        if (collective := _COLLECTIVES.get(func)) is not None:
            self._count(collective, args)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if _key(storage) not in self._entries:
                    self._set(storage, storage.nbytes(), self._asked_by())
        return out

    def _count(self, kind: CollectiveKind, args: tuple[Any, ...]) -> None:
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        whole = max(tensor.numel() * tensor.element_size() for tensor in tensors)
        group = next(leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.ScriptObject))
        ranks = cast(Any, torch.distributed.ProcessGroup).unbox(group).size()
        self._collectives[kind, ranks] += whole
        self._calls[kind, ranks] += 1

    def _set(self, storage: torch.UntypedStorage, size: int, what: str) -> None:
        key = _key(storage)
        if key in self._entries:
            self._remove(key)
        else:
            weakref.finalize(storage, self._remove, key)
        self._entries[key] = (size, what)
        self._held[what] += size
        self._total += size
        phase = self._phase
        if self._total > self._peak[phase]:
            self._peak[phase] = self._total
            if self._total > _SNAPSHOT_GROWTH * self._listed.get(phase, (0, {}))[0]:
                self._listed[phase] = (self._total, self._with_gradients())

    def _remove(self, key: int) -> None:
        size, what = self._entries.pop(key, (0, ""))
        self._held[what] -= size
        self._total -= size

    def _with_gradients(self) -> dict[str, int]:
        """What is held, by what it is; gradients that are ready are told from all else."""
        held = Counter(self._held)
        gradients = (p.grad for p in self._parameters if p.grad is not None)
        for key in {_key(_local(gradient).untyped_storage()) for gradient in gradients}:
            size, what = self._entries[key]
            held[what] -= size
            held["gradients"] += size
        return {what: held[what] for what in KINDS if held[what]}

    def _asked_by(self) -> str:
        """Who asks for memory: the files and functions being run tell."""
        frame, gathers = inspect.currentframe(), False
        while frame is not None:
            code = frame.f_code
            if code.co_filename.endswith(_LOSS):
                return "head and loss"
            if _FSDP in code.co_filename:
                if code.co_name in ("foreach_reduce", "post_backward"):
                    return "gradients being summed"
                gathers = True
            frame = frame.f_back
        if gathers:
            return "gathered parameters"
        return "activations" if self._phase == "forward" else "backward pass"


class _LargestCase:
    """Answers to what depends on contents: every token of a micro-batch has a loss.

    The loss works on a chunk of tokens at a time, and on a block of the chunk's rows. All chunks
    and all blocks need the same memory: one chunk is followed, and two blocks of it.
    """

    def __init__(self, num_tokens: int, vocab_size: int) -> None:
        self._chunk = min(num_tokens, CHUNK_TOKENS)
        blocks = 2 * max(1, BLOCK_ENTRIES // vocab_size)
        self._counts = torch.tensor([min(blocks, self._chunk)])  # real, as Python reads it

    def __call__(self, func: object, args: tuple[Any, ...]) -> Any:
        """The answer, or None if the operation depends on shapes only."""
        if func is aten.nonzero.default:
            return args[0].new_empty(self._chunk, args[0].dim(), dtype=torch.int64)
        if func is aten.unique_consecutive.default:
            return args[0][:1], args[0][:0], self._counts
        if func is aten._local_scalar_dense.default:
            return 0
        if func is aten.index.Tensor and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        ):
            return args[0].flatten().clone()
        return None


def _key(storage: torch.UntypedStorage) -> int:
    return storage._cdata  # pyright: ignore[reportPrivateUsage]


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # pyright: ignore[reportPrivateUsage]
