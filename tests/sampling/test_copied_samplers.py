"""The ancestral sampler and Algorithm 1 run when they are copied out of their files."""

import ast
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

import gidd.sampling
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.sampling import SelfCorrectionStep, ancestral, start
from gidd.sampling.predict import Rows
from gidd.vocab import Vocab

VOCAB = Vocab(9, mask_id=8)
FILES = Path(gidd.sampling.__file__).parent
NAMES = {
    "steps/ancestral.py": ["FROM_X_THETA", "redraw_probability", "ancestral", "reverse_step"],
    "correctors/gibbs.py": ["top_spaced"],
    "correctors/self_correction.py": ["Proposal", "rank_by_probability", "SelfCorrectionStep"],
}


def copied_text(file: str) -> str:
    """The definitions of a file, and its imports but those of sampling and of options."""
    kept = list[str]()
    for node in ast.parse((FILES / file).read_text()).body:
        match node:
            case ast.ImportFrom(module=str(module)):
                is_kept = not module.startswith(
                    ("gidd.sampling", "gidd.common.config", "__future__")
                )
            case ast.Import():
                is_kept = True
            case ast.Assign(targets=[ast.Name(id=name)]):
                is_kept = name in NAMES[file]
            case ast.FunctionDef(name=name):
                is_kept = name in NAMES[file]
            case ast.ClassDef(name=name):
                is_kept = name in NAMES[file]
                node.bases = [base for base in node.bases if ast.unparse(base) == "NamedTuple"]
                node.body = [
                    part
                    for part in node.body
                    if not ast.unparse(part).startswith("__post_init__ = require")
                ]
            case _:
                is_kept = False
        if is_kept:
            kept.append(ast.unparse(node))
    return "\n\n".join(kept)


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A module with the copies, which imports nothing of `gidd.sampling`."""
    file = tmp_path_factory.mktemp("copy") / "copied_samplers.py"
    parts = ["from __future__ import annotations", *map(copied_text, NAMES)]
    file.write_text("\n\n".join(parts))
    assert "gidd.sampling" not in file.read_text()
    spec = spec_from_file_location("copied_samplers", file)
    module = sys.modules["copied_samplers"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = torch.rand(4 * 12, VOCAB.size, generator=torch.Generator().manual_seed(0))
TABLE[:, VOCAB.mask_id] = 0
TABLE /= TABLE.sum(-1, keepdim=True)


def predict(state, t, where):
    """A function: x_theta from a table."""
    index = where.flatten().nonzero().squeeze(-1)
    return Rows(state.tokens, index, VOCAB.size, len(TABLE), lambda i: TABLE[i])


def state_of(schedule):
    blank, rows = torch.ones(4, 12, dtype=torch.bool), torch.arange(4)
    blank[:, 5] = False
    return start(schedule, ~blank * 2, ~blank, blank, torch.ones_like(blank), rows * 0, rows)


@pytest.mark.parametrize("p_uniform", [0.0, 0.3])
def test_the_copied_ancestral_sampler_is_that_of_the_library(copies, p_uniform):
    schedule = HybridSchedule(VOCAB, p_uniform) if p_uniform else MaskedSchedule(VOCAB)
    state, times = state_of(schedule), torch.linspace(1, 0, 7, dtype=torch.float64)
    for t, s in zip(times, times[1:], strict=False):
        arguments = schedule, s.expand(4), t.expand(4), state, predict
        ours, theirs = copies.ancestral(*arguments), ancestral(*arguments)
        assert torch.equal(ours.tokens, theirs.tokens)
        state = ours._replace(step_index=state.step_index + 1)
    assert (state.tokens[:, 5] == 2).all() and (state.tokens != VOCAB.mask_id).all()


def test_the_copied_algorithm_1_is_that_of_the_library(copies):
    schedule = HybridSchedule(VOCAB, 0.3)
    state, t = state_of(schedule), torch.full((4,), 0.1, dtype=torch.float64)
    ours, theirs = copies.SelfCorrectionStep(num_tokens=2), SelfCorrectionStep(num_tokens=2)
    for _ in range(5):
        expected = theirs(schedule, t, t, state, predict)
        result = ours(schedule, t, t, state, predict)
        assert torch.equal(result.tokens, expected.tokens)
        assert torch.equal(result.best_score, expected.best_score)
        state = result._replace(step_index=state.step_index + 1)
    assert (state.best_score > 0).all()
