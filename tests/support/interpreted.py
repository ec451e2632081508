"""Run a function in a process in which Triton kernels are interpreted, on tensors of the CPU.

    errors = interpret(loss_errors, 2000)

Triton decides when it is imported whether kernels are compiled or interpreted; other tests compile
them. The function is at the top level of a module that imports no kernel there; its arguments and
its result are JSON.
"""

import importlib.util
import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed (gidd[gpu])")


def interpret(function: Callable[..., Any], *args: Any, timeout: float = 300) -> Any:
    """Return `function(*args)`, computed by interpreted kernels."""
    words = [inspect.getfile(function), function.__name__, json.dumps(args)]
    done = subprocess.run(
        [sys.executable, "-m", "support.interpreted", *words],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def main(path: str, name: str, args: str) -> None:
    """Print the result of a function as JSON."""
    warnings.simplefilter("ignore", RuntimeWarning)  # the interpreter's, about -inf and NaN
    spec = importlib.util.spec_from_file_location("interpreted", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print(json.dumps(getattr(module, name)(*json.loads(args))))


if __name__ == "__main__":
    main(*sys.argv[1:])
