"""A text as it comes about, live in a terminal."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gidd.sampling import StepEvent

_FRAMES_PER_SECOND = 15
_FRESH_STEPS = 4
"""A new token is marked for so many moves: one flash would not be seen."""

_FRAME_LINES = 7
"""Lines of the terminal that are not text: border, bar, facts, legend and an empty one."""

_HARMLESS = "\n\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
"""Not printable by Unicode, but parts of ordinary text: of emoji, of Persian."""

_BLANK = " ░░░"
_STYLES = {
    "blank": "bright_black",
    "fresh": "bold green",
    "changed": "bold underline magenta",
    "given": "cyan",
    "settled": "",
}


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters are replaced, line breaks stay."""
    return "".join(
        c if c.isprintable() or c in _HARMLESS else " " if _is_space(c) else "\ufffd"
        for c in text.replace("\r\n", "\n")
    )


def _is_space(character: str) -> bool:
    return character == "\t" or unicodedata.category(character) == "Zs"


@final
class CanvasView:
    """Shows one sequence at a time: the first of those that are moving.

    Use it as a context manager and as the `on_step` of an engine. When it is left, the terminal is
    as it was, and the caller prints the result.
    """

    def __init__(
        self,
        console: Console,
        pieces: Callable[[Sequence[int]], list[str]],
        mask_id: int | None,
        num_sequences: int,
    ) -> None:
        self._console, self._pieces, self._mask_id = console, pieces, mask_id
        self._num_sequences = num_sequences
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = 0.0
        self._member = -1
        self._tokens: list[int] = []
        self._given: list[bool] = []
        self._since: dict[int, tuple[int, str]] = {}
        """Position -> the move that changed it last, and how."""
        self._step_index = self._num_steps = 0
        self._facts = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def __call__(self, event: StepEvent) -> None:
        """Take note of a round of moves, and draw it if the last drawing is old enough."""
        row = int(event.rows.min())
        self._see(event, row)
        now = time.monotonic()
        if now - self._drawn >= 1 / _FRAMES_PER_SECOND:
            self._drawn = now
            self._live.update(self.render(), refresh=True)

    def _see(self, event: StepEvent, row: int) -> None:
        canvas = event.canvas
        tokens: list[int] = canvas.tokens[row].tolist()
        member = event.members[row]
        if member != self._member:
            which = (event.rows == row).nonzero().flatten()
            self._tokens = event.before[which[0]].tolist()
            self._given = canvas.protected[row].tolist()
            self._member, self._since = member, {}
        self._step_index, self._num_steps = int(canvas.step_index[row]), int(event.num_steps[row])
        for i, (old, new) in enumerate(zip(self._tokens, tokens, strict=True)):
            if old != new:
                self._since[i] = (self._step_index, "fresh" if old == self._mask_id else "changed")
        self._tokens = tokens
        blanks = sum(token == self._mask_id for token in tokens)
        self._facts = f"t = {float(canvas.time[row]):.3f}   {blanks} blanks"
        frames = event.record.frames if event.record else None
        if frames and frames.get(row):
            frame, free = frames[row][-1], canvas.free[row]
            self._facts += f"   self-accuracy {frame.self_accuracy(free):.0%}"
            self._facts += f"   entropy {frame.mean_entropy(free):.2f}"

    def render(self) -> RenderableType:
        """The canvas as it is now."""
        title = f"sequence {self._member + 1} of {self._num_sequences}"
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_row(
            f"step {self._step_index} of {self._num_steps}",
            ProgressBar(
                total=max(1, self._num_steps), completed=self._step_index, complete_style="cyan"
            ),
        )
        below = (Text(self._facts, style="dim"), _legend())
        for line in below:  # wrapped, they would be more lines than are counted on
            line.no_wrap, line.overflow = True, "ellipsis"
        body = Group(self._visible_lines(), "", bar, *below)
        return Panel(body, title=title, title_align="left", border_style="dim")

    def _visible_lines(self) -> Text:
        """All of the text or, if the terminal is too small, the lines around the newest token."""
        text = Text()
        newest, newest_step = 0, -1
        for i, piece in enumerate(self._pieces(self._tokens)):
            step_index, how = self._since.get(i, (-1, ""))
            if step_index > newest_step:
                newest, newest_step = len(text), step_index
            text.append(
                _BLANK if self._tokens[i] == self._mask_id else printable(piece),
                _STYLES[self._state(i, step_index, how)],
            )
        lines = text.wrap(self._console, max(10, self._console.width - 4))
        room = max(3, self._console.height - _FRAME_LINES)
        if len(lines) <= room:
            return Text("\n").join(lines)
        above = text[:newest].wrap(self._console, max(10, self._console.width - 4))
        first = min(max(0, len(above) - room // 2), len(lines) - room)
        return Text("\n").join(lines[first : first + room])

    def _state(self, i: int, step_index: int, how: str) -> str:
        if self._tokens[i] == self._mask_id:
            return "blank"
        if self._given[i]:
            return "given"
        return (
            how if self._step_index - step_index < _FRESH_STEPS and step_index >= 0 else "settled"
        )


def _legend() -> Text:
    names = {"blank": "░░░ blank", "fresh": "new", "changed": "replaced", "given": "given"}
    parts = [Text(name, _STYLES[kind]) for kind, name in names.items()]
    return Text("   ").join([*parts, Text("settled")])
