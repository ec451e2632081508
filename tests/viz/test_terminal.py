"""The live view: safe to print, and within the size of the terminal."""

import io

import pytest
import torch
from rich.console import Console

from gidd.common.terminal import printable
from gidd.diffusion.schedules import HybridSchedule
from gidd.sampling import Canvas, Frame, Record, StepEvent
from gidd.viz.terminal import CanvasView
from gidd.vocab import Vocab


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
    vocab = Vocab(size=4, mask_id=3)
    canvas = Canvas.blank(HybridSchedule(vocab, 0.2), 1, 1000, seed=0)
    before = canvas.tokens.clone()
    canvas.tokens[:, ::2] = 1
    frame = Frame(0, "ancestral", 1.0, before[0], *(torch.ones(1000) for _ in range(4)))
    record = Record(frames={0: [frame]})
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height)
    view = CanvasView(console, lambda tokens: [f" word{t}" for t in tokens], 3, 1)
    with view:
        view(StepEvent(canvas, torch.tensor([0]), before, torch.tensor([64]), record, [0]))
        lines = console.render_lines(view.render(), pad=False)
    return ["".join(segment.text for segment in line) for line in lines]


@pytest.mark.parametrize(("width", "height"), [(20, 10), (40, 12), (60, 14), (80, 24), (120, 40)])
def test_the_view_fits_the_terminal(width, height):
    """One line is left for the cursor; long lines are cut, not wrapped."""
    lines = drawn(width, height)
    assert len(lines) == height - 1
    assert all(len(line) <= width for line in lines)
    assert "step 0 of 64" in lines[-4]
    assert "t = 1.000" in lines[-3]
    assert "blank" in lines[-2]
