"""The live view: safe to print, and within the size of the terminal."""

import io

import pytest
import torch
from rich.console import Console

from gidd.common.terminal import printable
from gidd.diffusion.times import even_times
from gidd.sampling import Edit, Event, Frame, Request, blanks, sampling_plan
from gidd.viz.terminal import CanvasView


def test_text_cannot_control_the_terminal():
    shown = printable("a\x1b[2J\x07\u202e\r\tb\u00a0c\nd\x9b31m\u2066\u2028")
    assert shown == "a\ufffd[2J\ufffd\ufffd\ufffd b c\nd\ufffd31m\ufffd\ufffd"


@pytest.mark.parametrize("text", ["👩\u200d🔬", "می\u200cخواهم", "é – “ß”\n"])
def test_ordinary_text_is_unchanged(text):
    assert printable(text) == text


def test_line_ends_of_other_systems_are_line_ends():
    assert printable("one\r\ntwo\r\n") == "one\ntwo\n"


def drawn(width: int, height: int) -> list[str]:
    """Return the lines drawn for a long text on a terminal of that size."""
    request = Request(tokens=blanks(1000), plan=sampling_plan(even_times(64)))
    before = torch.full((1000,), 3)
    tokens = before.clone()
    tokens[::2] = 1
    frame = Frame(0, "ancestral", 1.0, before, *(torch.ones(1000) for _ in range(4)))
    edits = [Edit(0, "ancestral", 1.0, position, 3, 1, 0.5) for position in range(0, 1000, 2)]
    now = {"tokens": tuple(tokens.tolist()), "time": 1.0, "num_steps": 64}
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height)
    view = CanvasView(console, lambda tokens: [f" word{t}" for t in tokens], 3, 1)
    with view:
        view([Event(request, edits=tuple(edits), frame=frame, **now)])
        lines = console.render_lines(view.render(), pad=False)
    return ["".join(segment.text for segment in line) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(20, 10), (40, 12), (60, 14), (80, 24), (120, 40)])
def test_the_view_fits_the_terminal(width, height):
    """One line is left for the cursor; long lines are cut, not wrapped."""
    lines = drawn(width, height)
    assert len(lines) == height - 1
    assert all(len(line) <= width for line in lines)
    assert "step 0 of 64" in lines[-4]
    assert "t = 1.000" in lines[-3]
    assert "blank" in lines[-2]
