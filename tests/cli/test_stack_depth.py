"""From the command to the network there are few functions to read."""

import sys
from pathlib import Path

import pytest
import torch
from support.small_model import write_model
from support.training_runs import tiny_run

import gidd
from gidd.cli import main
from gidd.data.batch import Batch
from gidd.models import DiT
from gidd.sampling import Session
from gidd.training.build import build_state
from gidd.training.loop import gradients
from gidd.training.world import open_world
from gidd.vocab import Vocab

SOURCE = str(Path(gidd.__file__).parent)
MOST_FRAMES = 10


def frames_of_gidd() -> list[str]:
    """Return file and function of each frame inside the package, the outermost first."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(SOURCE):
            found.append(f"{Path(code.co_filename).relative_to(SOURCE)}:{code.co_qualname}")
        frame = frame.f_back
    return found[::-1]


def test_a_training_step_reaches_the_network_in_few_frames(monkeypatch, capsys):
    """From the loop's gradients of a batch to the network."""
    run, vocab, stacks, hidden = tiny_run(None), Vocab(20, mask_id=19), [], DiT.hidden

    def record(self, *inputs):
        stacks.append([*frames_of_gidd(), "models/backbones/dit.py:DiT.hidden"])
        return hidden(self, *inputs)

    monkeypatch.setattr(DiT, "hidden", record)
    tokens = torch.arange(8 * 16).view(8, 16) % 19
    with open_world("cpu") as world:
        state = build_state(run, vocab, world)
        gradients(run, world, state, Batch(tokens, tokens >= 0, torch.arange(8)))
    with capsys.disabled():
        print("", *stacks[0], sep="\n  ")
    assert stacks[0][0] == "training/loop.py:gradients"
    assert len(stacks[0]) <= 7  # the loop that calls it is the eighth


@pytest.mark.parametrize("p_uniform", [0.0, 0.2])
def test_a_sample_reaches_the_network_in_few_frames(p_uniform, tmp_path, monkeypatch, capsys):
    """From the command to the session in its thread, from the session to the network in another."""
    model = write_model(tmp_path / "model", p_uniform=p_uniform)
    stacks: dict[str, list[str]] = {}

    def record(kind, name, last):
        function = getattr(kind, name)

        def recorded(*inputs, **settings):
            stack = [*frames_of_gidd(), last]
            stacks[last] = max(stacks.get(last, []), stack, key=len)
            return function(*inputs, **settings)

        monkeypatch.setattr(kind, name, recorded)

    record(Session, "run_all", "sampling/session.py:Session.run_all")
    record(DiT, "hidden", "models/backbones/dit.py:DiT.hidden")
    main(["sample", str(model), "--length", "8", "--steps", "2"])
    with capsys.disabled():
        for stack in stacks.values():
            print("", *stack, sep="\n  ")
    command, thread = stacks.values()
    assert command[0] == "cli/__init__.py:main" and thread[0] == "sampling/session.py:Session._work"
    assert len(command) <= MOST_FRAMES and len(thread) <= MOST_FRAMES
