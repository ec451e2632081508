"""Kernel launches, host-device synchronizations and misaligned products, by the line of code."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import gidd
from gidd.planning import counters
from gidd.planning.counters import (
    infers_sharding,
    misaligned_matrices,
    num_launches,
    operator_name,
    row_bytes,
    synchronizes,
)

_PACKAGE = Path(gidd.__file__).parent
_SKIPPED = (str(Path(torch.__file__).parent), __file__, counters.__file__, "<")


def calling_line(hidden: Iterable[str] = ()) -> str:
    """Return file and line that called an operator, outside of torch and the files to hide."""
    frame = sys._getframe(1)
    skipped = (*_SKIPPED, *hidden)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(skipped):
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    name = file.relative_to(_PACKAGE) if file.is_relative_to(_PACKAGE) else file.name
    return f"{name}:{frame.f_lineno}"


@dataclass(kw_only=True)
class LaunchCounts:
    """Launches, waits and misaligned products, by the line that caused them and the operator."""

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    misaligned: list[str] = field(default_factory=list)
    hidden: tuple[str, ...] = ()
    """Files that are not named as the caller of an operator."""

    @property
    def num_launches(self) -> int:
        return self.launches.total()

    @property
    def num_waits(self) -> int:
        return self.waits.total()

    def reset(self) -> None:
        self.launches.clear()
        self.waits.clear()
        self.misaligned.clear()

    def add(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: object,
        *,
        also_waits: bool = False,
    ) -> None:
        """Count one call of an operator; `also_waits` if the caller knows that the host waits."""
        launched = num_launches(func, args)
        waited = also_waits or synchronizes(func, args, kwargs)
        if (not launched and not waited) or infers_sharding():
            return
        place = f"{calling_line(self.hidden)} {operator_name(func)}"
        if launched:
            self.launches[place] += launched
        if waited:
            self.waits[place] += 1
        if matrices := misaligned_matrices(func, args, result):
            rows = [f"{m.dtype} {list(m.shape)}, rows of {row_bytes(m)} bytes" for m in matrices]
            self.misaligned.append(f"{place}: {'; '.join(rows)}")

    def report(self, top: int = 20) -> str:
        """The totals and the lines that cause the most, for messages."""
        parts = [f"{self.num_launches:,} launches, {self.num_waits:,} waits"]
        parts[0] += f", {len(self.misaligned):,} misaligned matrix products"
        for title, counter in (
            ("waits", self.waits),
            ("launches", self.launches),
            ("misaligned", Counter(self.misaligned)),
        ):
            parts += [f"{n:8,} {title}  {place}" for place, n in counter.most_common(top)]
        return "\n".join(parts)
