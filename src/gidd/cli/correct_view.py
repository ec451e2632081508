"""Output of `gidd correct`: changed lines, patches, suggestions and figures."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gidd.cli.console import CliConsole, plain
from gidd.cli.output import print_json, write_stdout
from gidd.proofreading.edits import TextEdit

if TYPE_CHECKING:
    from gidd.pipeline import Correction
    from gidd.proofreading.noise_level import NoiseLevel

MAX_SHOWN = 9
"""Alternatives of a place that are listed."""

_LEAST_SHOWN = 1e-4
"""Probability below which an alternative is not listed."""


def shown_alternatives(edit: TextEdit) -> list[tuple[str, float]]:
    """Return the alternatives of a place that are worth listing, most likely first."""
    listed = edit.alternatives[:MAX_SHOWN]
    return [
        (a.text, a.probability)
        for a in listed
        if a.probability >= _LEAST_SHOWN or a.text in (edit.old, edit.new)
    ]


def best_other(edit: TextEdit) -> str:
    """Return what a place becomes if its change is accepted: the most likely other text."""
    if edit.is_change:
        return edit.new
    return next((a.text for a in edit.alternatives if a.text != edit.old), edit.old)


def percent(probability: float) -> str:
    """Return a probability in per cent; only certainty is 100%."""
    return "100%" if probability == 1 else f"{min(probability, 0.99):.0%}"


def show_changes(name: str | None, correction: Correction) -> None:
    """Print the lines with changes and doubtful places, after the name of the file, if given."""
    from gidd.viz import diff

    console = CliConsole(highlight=False)
    colours = console.color_system is not None and not console.no_color
    changes = [diff.TextChange(e.start, e.old, e.new, _note(e)) for e in correction.edits]
    if name is not None:
        console.print(plain(name), style="bold")
    if changes:
        console.print(diff.readable(correction.original, changes, colours=colours))


def _note(edit: TextEdit) -> str:
    """Return the confidence in a change; for a doubtful place, what else may be right."""
    if edit.is_change:
        return percent(edit.confidence) if edit.confidence else ""
    other = best_other(edit)
    return f"{other}? {percent(edit.probability_of(other))}"


def show_patch(path: Path | None, correction: Correction, *, alone: bool) -> None:
    """Print the changes as a unified diff; of several files, each is named by its path."""
    from gidd.viz import diff

    name = "text" if path is None else path.name if alone else path.as_posix().lstrip("/")
    write_stdout(diff.unified(name, correction.original, correction.text))


def print_correction(name: str, correction: Correction) -> None:
    """Print a correction as one line of JSON."""
    noise = correction.noise_level
    rate = None if noise is None else {"low": noise.low, "high": noise.high, "calls": noise.calls}
    print_json(
        file=name,
        text=correction.text,
        original=correction.original,
        edits=list(_suggestions(correction)),
        error_rate=correction.error_rate,
        noise_level=rate,
        calls=correction.calls,
        manifest=correction.manifest,
    )


def print_suggestions(name: str, correction: Correction) -> None:
    """Print one line of JSON for each place that may be wrong."""
    for suggestion in _suggestions(correction):
        print_json(file=name, **suggestion)


def _suggestions(correction: Correction) -> Iterator[dict[str, Any]]:
    starts = line_starts(correction.original)
    for edit in correction.edits:
        line, column = place_of(starts, edit.start)
        yield {
            "start": edit.start,
            "stop": edit.stop,
            "line": line,
            "column": column,
            "old": edit.old,
            "new": edit.new,
            "change": edit.is_change,
            "alternatives": [a._asdict() for a in edit.alternatives],
        }


def line_starts(text: str) -> list[int]:
    """Return the index of the first character of each line; lines end with a line feed."""
    starts = [0]
    while place := text.find("\n", starts[-1]) + 1:
        starts.append(place)
    return starts


def place_of(starts: Sequence[int], index: int) -> tuple[int, int]:
    """Return line and column of a character, both from 1."""
    line = bisect_right(starts, index)
    return line, index - starts[line - 1] + 1


def summary(correction: Correction, seconds: float) -> str:
    """Return the figures of a correction in a line."""
    noise, rate = correction.noise_level, correction.error_rate
    estimated = f"{rate:.1%} wrong as given" if noise is None else f"estimated {_rate(noise)}"
    return f"{estimated}, {totals([correction], seconds)}"


def totals(corrections: Sequence[Correction], seconds: float) -> str:
    """Return the counts of several corrections in a line."""
    changes = sum(len(c.changes) for c in corrections)
    left = sum(len(c.suggestions) for c in corrections)
    calls = sum(c.calls for c in corrections)
    passes = count(calls, "forward pass", "forward passes")
    return f"{count(changes, 'change')}, {left:,} left for you, {passes}, {seconds:,.0f} s"


def _rate(noise: NoiseLevel) -> str:
    return f"{noise.error_rate:.1%} wrong ({100 * noise.low:.1f}-{noise.high:.1%})"


def count(number: int, one: str, several: str | None = None) -> str:
    """Return a number with its noun in singular or plural."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def is_terminal() -> bool:
    """Whether people see what is printed."""
    return sys.stdout.isatty()
