"""What a state is built with by default."""

import importlib.util

import pytest
import torch

from gidd.training import build
from gidd.training.build import is_compiled

CPU, CUDA, MPS = (torch.device(name) for name in ("cpu", "cuda", "mps"))


@pytest.mark.parametrize("has_triton", [True, False])
def test_compilation_is_on_by_default_where_triton_compiles(has_triton, monkeypatch):
    found = importlib.util.find_spec("torch") if has_triton else None
    monkeypatch.setattr(build, "find_spec", lambda name: found)
    assert is_compiled(None, CUDA) == has_triton
    assert not is_compiled(None, CPU) and not is_compiled(None, MPS)
    for device in (CPU, CUDA):
        assert is_compiled(True, device)
        assert not is_compiled(False, device)
