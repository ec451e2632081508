"""The settings of a frontier: every combination of steps, temperatures, cut-offs and correctors.

They are checked without torch, so that the command line reports mistakes at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, NamedTuple, final

from gidd.common.registry import part_names
from gidd.common.terminal import shorten
from gidd.pipeline.options import SamplingOptions

NO_CORRECTOR: Final = "none"
SELF_CORRECTION: Final = "self_correction"


class FrontierSetting(NamedTuple):
    """One point of a sweep."""

    steps: int
    temperature: float
    min_p: float | None
    corrector: str
    corrector_calls: int

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> FrontierSetting:
        """Return the setting of a row of a result."""
        return cls(*(row.get(name) for name in cls._fields))  # pyright: ignore[reportArgumentType]

    def options(self, base: SamplingOptions) -> SamplingOptions:
        """Return `base` with this setting."""
        options = replace(base, steps=self.steps, temperature=self.temperature, min_p=self.min_p)
        if self.corrector == SELF_CORRECTION:
            correction = replace(base.correction, calls=self.corrector_calls)
            return replace(options, corrector_calls=0, correction=correction)
        correction = replace(base.correction, calls=0)
        calls = self.corrector_calls
        if self.corrector == NO_CORRECTOR:
            return replace(options, corrector_calls=0, correction=correction)
        options = replace(options, corrector=self.corrector, corrector_calls=calls)
        return replace(options, correction=correction)

    def __str__(self) -> str:
        parts = [f"steps={self.steps}", f"temperature={self.temperature:g}"]
        if self.min_p is not None:
            parts.append(f"min_p={self.min_p:g}")
        if self.corrector != NO_CORRECTOR:
            parts.append(f"{self.corrector}={self.corrector_calls}")
        return " ".join(parts)


@final
@dataclass(frozen=True, kw_only=True)
class FrontierGrid:
    """Values to combine."""

    steps: tuple[int, ...] = (16, 64)
    temperature: tuple[float, ...] = (0.7, 0.9, 1.0)
    min_p: tuple[float | None, ...] = (None,)
    corrector: tuple[str, ...] = (NO_CORRECTOR,)
    """Names of correctors; "none" is the sample without correction."""

    corrector_calls: tuple[int, ...] = (32,)
    """Forward passes of each corrector."""

    def settings(self) -> list[FrontierSetting]:
        """Return every combination once; without a corrector, its forward passes are 0."""
        found = (
            FrontierSetting(
                steps, temperature, min_p, corrector, 0 if corrector == NO_CORRECTOR else calls
            )
            for steps, temperature, min_p, corrector, calls in product(
                self.steps, self.temperature, self.min_p, self.corrector, self.corrector_calls
            )
        )
        return list(dict.fromkeys(found))

    def problems(self, base: SamplingOptions) -> Iterable[str]:
        """Yield one message per invalid value, each starting with the name of its option."""
        for name in ("steps", "temperature", "min_p", "corrector", "corrector_calls"):
            if not getattr(self, name):
                yield f"{name} must have at least one value, got none."
        yield from self._corrector_problems()
        found: dict[str, None] = {}
        if all(name in part_names("corrector") or name == NO_CORRECTOR for name in self.corrector):
            for setting in self.settings():
                found |= dict.fromkeys(setting.options(base).problems())
        yield from found

    def _corrector_problems(self) -> Iterator[str]:
        names = (NO_CORRECTOR, *part_names("corrector"))
        for name in self.corrector:
            if name not in names:
                yield f"corrector must be of {', '.join(names)}, got {shorten(name)}."
        for calls in self.corrector_calls:
            if calls < 1 and set(self.corrector) != {NO_CORRECTOR}:
                yield f"corrector_calls must be at least 1, got {calls}. Use corrector none for 0."
