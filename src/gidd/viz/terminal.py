"""A live view of sampling in a terminal."""

import time
from collections.abc import Callable, Sequence
from typing import Self

import torch
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gidd.common.terminal import printable
from gidd.sampling import Event, Request

_FRAMES_PER_SECOND = 15
_FRESH_STEPS = 4  # number of steps for which a new token is marked: one step is too short to see
_FRAME_LINES = 7  # lines that are not text: border, bar, status, legend and an empty line
_BLANK = " ░░░"
_STYLES = {  # state of a token -> its name in the legend, and its style
    "blank": ("░░░ blank", "bright_black"),
    "fresh": ("new", "bold green"),
    "changed": ("replaced", "bold underline magenta"),
    "given": ("given", "cyan"),
    "settled": ("settled", ""),
}


class CanvasView:
    """Shows one sequence at a time: the first active one.

    Use it as a context manager and as the `on_step` of an engine. On exit it clears its output, and
    the caller prints the result.
    """

    def __init__(
        self,
        console: Console,
        decoder: Callable[[Sequence[int]], list[str]],
        mask_id: int | None,
        num_sequences: int = 1,
    ) -> None:
        self._console, self._token_texts, self._mask_id = console, decoder, mask_id
        self._num_sequences = num_sequences
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = 0.0
        self._request: Request | None = None
        self._index = 0
        self._tokens: list[int] = []
        self._given: list[bool] = []
        self._start = 0  # first position that is shown
        self._since: dict[int, tuple[int, str]] = {}  # position: step that changed it last, and how
        self._step_index = self._num_steps = 0
        self._status = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def __call__(self, events: Sequence[Event]) -> None:
        """Record a step, and draw it if the last drawing is old enough."""
        if not events:
            return
        self._update(min(events, key=lambda event: event.index))
        now = time.monotonic()
        if now - self._drawn >= 1 / _FRAMES_PER_SECOND:
            self._drawn = now
            self._live.update(self.render(), refresh=True)

    def _update(self, event: Event) -> None:
        if event.request is not self._request:
            self._request, self._index, self._since = event.request, event.index, {}
            self._given = list(event.request.are_protected)
        self._tokens = list(event.tokens)
        self._step_index, self._num_steps = event.steps_done, event.num_steps
        for edit in event.edits:
            how = "fresh" if edit.old == self._mask_id else "changed"
            self._since[edit.position] = (self._step_index, how)
        blanks = sum(token == self._mask_id for token in self._tokens)
        self._status = f"t = {event.time:.3f}   {blanks} blanks"
        if event.frame is not None:
            free = ~torch.tensor(self._given, device=event.frame.tokens.device)
            self._status += f"   self-accuracy {event.frame.self_accuracy(free):.0%}"
            self._status += f"   entropy {event.frame.mean_entropy(free):.2f}"

    def render(self) -> RenderableType:
        """Return the current state as a panel."""
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        done, total = self._step_index, self._num_steps
        progress = ProgressBar(total=max(1, total), completed=done, complete_style="cyan")
        bar.add_row(f"step {done} of {total}", progress)
        legend = Text("   ").join(Text(name, style) for name, style in _STYLES.values())
        below = (Text(self._status, style="dim"), legend)
        for line in below:  # wrapped, they would exceed _FRAME_LINES
            line.no_wrap, line.overflow = True, "ellipsis"
        body = Group(self._visible_lines(), "", bar, *below)
        title = f"sequence {self._index + 1} of {self._num_sequences}"
        return Panel(body, title=title, title_align="left", border_style="dim")

    def _visible_lines(self) -> Text:
        """Return the text or, if the terminal is too small, the lines around the newest token."""
        text = Text()
        newest, newest_step = 0, -1
        for i, token_text in enumerate(self._token_texts(self._tokens)):
            if i < self._start:
                continue
            step_index, state = self._since.get(i, (-_FRESH_STEPS, ""))
            if step_index > newest_step:
                newest, newest_step = len(text), step_index
            is_blank = self._tokens[i] == self._mask_id
            if is_blank or self._given[i]:
                state = "blank" if is_blank else "given"
            elif self._step_index - step_index >= _FRESH_STEPS:
                state = "settled"
            text.append(_BLANK if is_blank else printable(token_text), _STYLES[state][1])
        width, room = max(10, self._console.width - 4), max(3, self._console.height - _FRAME_LINES)
        lines = text.wrap(self._console, width)
        if len(lines) <= room:
            return Text("\n").join(lines)
        above = text[:newest].wrap(self._console, width)
        first = min(max(0, len(above) - room // 2), len(lines) - room)
        return Text("\n").join(lines[first : first + room])


class AnswerView(CanvasView):
    """Shows the answer of a chat while it forms: no given tokens, nothing after its end."""

    _is_first = True

    def _update(self, event: Event) -> None:
        super()._update(event)
        request = event.request
        if self._is_first:  # blocks that are finished are given in the requests of later ones
            self._is_first, self._start = False, request.first_blank
        self._tokens = list(request.truncate_at_stop(event.tokens))
        self._given = [False] * len(self._tokens)

    def render(self) -> RenderableType:
        """Return the answer and the number of steps."""
        steps = f"step {self._step_index} of {self._num_steps}   {self._status}"
        status = Text(steps, "dim", no_wrap=True, overflow="ellipsis")
        return Group(self._visible_lines(), status)

    @property
    def text(self) -> str:
        """The answer as it is now, without blanks."""
        shown = [token for token in self._tokens[self._start :] if token != self._mask_id]
        return "".join(self._token_texts(shown))
