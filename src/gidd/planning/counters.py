"""Memory and collectives of a traced step.

`torch.distributed._tools` does not suffice: its `FSDPMemTracker` needs an FSDP module, tracks a
single pass and has no kind for the loss; `CommDebugMode` counts calls but not bytes.
"""

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gidd.diffusion.loss import CHUNK_TOKENS, HEAD_AND_LOSS

aten, c10d, profiler = torch.ops.aten, torch.ops.c10d, torch.ops.profiler
MEMORY_USES = (
    *("parameters", "gradients", "optimiser", "ema", "activations", "unsharded parameters"),
    *("head and loss", "backward pass", "gradient reduction", "other"),
)
"""What memory is used for. "Backward pass": gradients of activations, recomputed activations."""

_KIND_OF_LABEL = {
    HEAD_AND_LOSS: "head and loss",
    "FSDP::post_backward": "gradient reduction",
    "FSDP::": "unsharded parameters",
}
"""Use of memory allocated under a `record_function` label, by prefix. FSDP2 labels its work."""

CollectiveKind = Literal["all-gather", "reduce-scatter", "all-reduce"]
_COLLECTIVES: dict[object, CollectiveKind] = {
    c10d._allgather_base_.default: "all-gather",
    c10d._reduce_scatter_base_.default: "reduce-scatter",
    c10d.allreduce_.default: "all-reduce",
}


class Collective(NamedTuple):
    """All calls of one kind of collective: ranks in each, and bytes of the unsharded tensors."""

    kind: CollectiveKind
    ranks: int
    calls: int
    bytes: int


class MemoryTracker(TorchDispatchMode):
    """Track the storages of fake tensors by kind; data-dependent sizes take their maximum."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.collectives: dict[tuple[CollectiveKind, int], Collective] = {}
        self._num_tokens = num_tokens
        self.parameters: list[nn.Parameter] = []  # of this rank: their `.grad` are gradients
        self._entries: dict[int, tuple[int, str]] = {}
        self._unsharded = weakref.WeakValueDictionary[int, torch.UntypedStorage]()
        self._sections: list[str] = []
        self._held: Counter[str] = Counter()
        self._phase, self._peak = "forward", Counter[str]()
        self._snapshots: dict[str, tuple[int, dict[str, int]]] = {}

    def add(self, kind: str, tensors: object) -> None:
        """Add tensors whose storages are not tracked yet."""
        for leaf in _tensors(tensors):
            if _key(storage := _storage(leaf)) not in self._entries:
                self._set(storage, kind)

    def track(self, phase: Literal["forward", "backward"]) -> Self:
        """Return a context in which everything allocated is tracked as part of `phase`."""
        self._phase = phase
        return self

    def phases(self) -> dict[str, dict[str, int]]:
        """Return bytes by kind at the peak of each phase, and in the update that follows."""
        peaks = {
            phase: held | {"other": self._peak[phase] - total}
            for phase, (total, held) in self._snapshots.items()
        }
        return peaks | {"update": self._by_kind()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the operations on its local tensors are dispatched again
        if func is profiler._record_function_enter_new.default:
            kinds = (kind for prefix, kind in _KIND_OF_LABEL.items() if args[0].startswith(prefix))
            self._sections.append(next(kinds, self._section))
        elif self._section in ("unsharded parameters", "gradient reduction"):
            self._find_resized()
        if func is profiler._record_function_exit._RecordFunction:
            self._sections.pop()
        # data-dependent results are those of a batch in which every token has a loss. A CPU finds
        # these tokens and computes in equal chunks of them; a GPU reads their number
        if func is aten.nonzero.default:
            num_tokens = min(self._num_tokens, CHUNK_TOKENS)
            out = args[0].new_empty(num_tokens, args[0].dim(), dtype=torch.int64)
        elif func is aten._local_scalar_dense.default:
            out = self._num_tokens
        else:
            out = func(*args, **(kwargs or {}))
        if (collective := _COLLECTIVES.get(func)) is not None:
            self._count(collective, args)
        self.add(self._section, out)
        return out

    @property
    def _section(self) -> str:
        if self._sections:
            return self._sections[-1]
        return "activations" if self._phase == "forward" else "backward pass"

    def _count(self, kind: CollectiveKind, args: tuple[Any, ...]) -> None:
        unsharded = max(leaf.nbytes for leaf in _tensors(args))
        group = next(leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.ScriptObject))
        ranks = cast(Any, torch.distributed.ProcessGroup).unbox(group).size()
        _, _, calls, volume = self.collectives.get((kind, ranks), (kind, ranks, 0, 0))
        self.collectives[kind, ranks] = Collective(kind, ranks, calls + 1, volume + unsharded)

    def _find_resized(self) -> None:
        """Update storages of unsharded parameters, which FSDP2 frees and reallocates in place.

        `UntypedStorage.resize_` is not dispatched, but FSDP2 calls it under its labels only.
        """
        for key, storage in self._unsharded.items():
            if storage.nbytes() != self._entries[key][0]:
                self._set(storage, "unsharded parameters")

    def _set(self, storage: torch.UntypedStorage, kind: str) -> None:
        key, size = _key(storage), storage.nbytes()
        if key in self._entries:
            self._remove(key)
        else:
            weakref.finalize(storage, self._remove, key)
            if kind == "unsharded parameters":
                self._unsharded[key] = storage
        self._entries[key] = (size, kind)
        self._held[kind] += size
        phase, total = self._phase, self._held.total()
        if total > self._peak[phase]:
            self._peak[phase] = total
            # breaking a peak down by kind is slow: not for each of many small steps
            if total > 1.005 * self._snapshots.get(phase, (0, {}))[0]:
                self._snapshots[phase] = (total, self._by_kind())

    def _remove(self, key: int) -> None:
        size, kind = self._entries.pop(key)
        self._held[kind] -= size

    def _by_kind(self) -> dict[str, int]:
        held = Counter(self._held)
        gradients = (p.grad for p in self.parameters if p.grad is not None)
        for key in {_key(_storage(gradient)) for gradient in gradients}:
            size, kind = self._entries[key]
            held[kind] -= size
            held["gradients"] += size
        return {kind: held[kind] for kind in MEMORY_USES if held[kind]}


def _tensors(tree: object) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _key(storage: torch.UntypedStorage) -> int:
    return storage._cdata  # pyright: ignore[reportPrivateUsage]


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # pyright: ignore[reportPrivateUsage]
    return local.untyped_storage()
