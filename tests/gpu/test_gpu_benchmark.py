"""`benchmarks/gpu.py` runs on a CPU, and reports what it would have to report on a GPU."""

import contextlib
import importlib
import io
import json
import math
import sys
import warnings
from pathlib import Path

import pytest
import torch

from gidd.planning.step_trace import StepTrace
from gidd.vocab import Vocab

FOLDER = Path(__file__).parents[2] / "benchmarks"
FIGURES = {
    "head and loss, hybrid, ms",
    "head and loss, masked, ms",
    "head and loss, cross-entropy, ms",
    "head and loss, hybrid / cross-entropy",
    "body, eager, ms",
    "optimiser, ms",
    "step, eager, ms",
    "tokens per second, eager",
    "MFU, eager",
    "launches of a step, eager",
    "peak memory of a step, GB",
    "launches of an ancestral step",
    *(
        name
        for precision in ("bf16", "float32")
        for name in (
            f"ancestral step, {precision}, ms",
            f"samples per second, {precision}",
            f"self-correction call, {precision}, ms",
        )
    ),
}
NOT_PREDICTED = {
    "head and loss, masked, ms",
    "head and loss, hybrid / cross-entropy",
    "optimiser, ms",
    "launches of a step, eager",
    "launches of an ancestral step",
}
ONLY_ON_GPUS = {
    "launches of a step, eager",
    "peak memory of a step, GB",
    "launches of an ancestral step",
}


@pytest.fixture(scope="module", autouse=True)
def folder_is_importable():
    """Import files of the benchmark by their names, as Python does for a script."""
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))
    for name in [name for name in sys.modules if name == "gpu" or name.startswith("gpu_")]:
        del sys.modules[name]


def run(*arguments: str) -> tuple[int, str]:
    """Return status and output of the script."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "argv", ["gpu.py", *arguments])
        with pytest.raises(SystemExit) as stopped:
            importlib.import_module("gpu").main()
    return stopped.value.code, output.getvalue()


@pytest.fixture
def traced(monkeypatch):
    """The trace of a step, which `gidd plan` makes in another process (tests/planning)."""
    made = StepTrace(
        num_parameters=10,
        num_tensors=2,
        phases={"update": {"parameters": 40, "optimiser": 80}},
        collectives=(),
    )
    monkeypatch.setattr("gidd.planning.run_plan.trace_in_child", lambda *_: made)


@pytest.mark.long
def test_every_part_runs_on_a_cpu(traced):
    status, output = run("--device", "cpu", "--quick", "--json")
    results = json.loads(output)  # nothing else is printed
    assert results["errors"] == {} and results["passed"] and status == 0
    assert results["environment"]["torch"] == torch.__version__
    assert results["settings"]["preset"] == "nano"
    kernels = {name.partition(",")[0].partition(":")[0] for name in results["checks"]}
    assert kernels == {"random_integers", "draw_flat", "loss_rows"}
    assert all(check["passed"] for check in results["checks"].values())
    assert [waits["allowed"] for waits in results["waits"].values()] == [0, 1]
    figures = results["figures"]
    assert set(figures) == FIGURES
    assert {name for name in figures if figures[name]["predicted"] is None} == NOT_PREDICTED
    assert {name for name in figures if figures[name]["measured"] is None} == ONLY_ON_GPUS


def test_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run() == (2, "")
    assert "--device cpu --quick" in capsys.readouterr().err


def test_an_unknown_preset_is_refused(capsys):
    assert run("--preset", "huge")[0] == 2
    assert "small-gidd-plus-0.1" in capsys.readouterr().err


def test_a_wrong_kernel_is_found(monkeypatch):
    checks = importlib.import_module("gpu_checks")
    exact = checks.loss_rows

    def wrong(logits, tokens, with_gradient):
        kl, itakura_saito = exact(logits, tokens, with_gradient)
        logits[:, 3] += 1e-4
        return kl * (1 + 2e-5), itakura_saito

    monkeypatch.setattr(checks, "loss_rows", wrong)
    vocab, device = Vocab(130, mask_id=129), torch.device("cpu")
    found = dict(checks.kernel_checks(vocab, device, num_rows=8))
    failed = {name.partition(": ")[2] for name, check in found.items() if not check.passed}
    assert failed == {"KL", "gradient"}
    assert not checks.Check(math.nan, 1.0).passed


@pytest.fixture
def measure(monkeypatch):
    """Pretend that torch has debug modes: `wait` raises or warns as it does on CUDA."""
    module = importlib.import_module("gpu_measure")
    modes = ["default"]
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)

    def wait():
        message = "called a synchronizing CUDA operation"
        if modes[-1] == "error":
            raise RuntimeError(message)
        if modes[-1] == "warn":
            warnings.warn(message, stacklevel=2)

    module.wait = wait
    return module


def test_lines_that_wait_are_named(measure):
    cuda = torch.device("cuda:0")

    def waits_twice():
        for _ in range(2):
            measure.wait()

    line = f"gpu/{Path(__file__).name}:{waits_twice.__code__.co_firstlineno + 2}"
    assert measure.find_waits(waits_twice, cuda, 2) == (2, {line: 2}, None)
    assert measure.find_waits(waits_twice, cuda, 2).passed
    assert not measure.find_waits(waits_twice, cuda, 1).passed
    found = measure.find_waits(waits_twice, cuda, 0)
    assert found.lines == {line: 2} and found.raised_at is not None and not found.passed
    assert measure.find_waits(lambda: None, cuda, 0) == (0, {}, None)
    with pytest.raises(RuntimeError, match="other"):
        measure.find_waits(lambda: exec("raise RuntimeError('other')"), cuda, 0)


def test_launches_are_calls_of_the_runtime(measure):
    calls = {
        "cudaLaunchKernel": 5,
        "cuLaunchKernelEx": 4,
        "cudaGraphLaunch": 1,
        "cudaMemcpyAsync": 2,
        "cudaMemsetAsync": 3,
        "hipExtModuleLaunchKernel": 7,
        "aten::mm": 100,
        "cudaStreamSynchronize": 100,
        "cudaLaunchHostFunc": 100,
    }
    assert measure.launches_of(calls) == 22


@pytest.mark.slow
def test_a_part_that_fails_does_not_stop_the_others(capsys):
    report = importlib.import_module("gpu_report").Report(quiet=False)
    assert report.passed and report.attempt("sum", lambda: 1 + 1) == 2
    assert report.attempt("part", lambda: {}["missing"]) is None
    assert "missing" in report.results["errors"]["part"]["message"] and not report.passed
    assert "part FAILED" in capsys.readouterr().out


NAMES = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A100 80GB PCIe": "a100-80gb",
    "NVIDIA L4": "l4",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA H100 PCIe": "measured, NVIDIA H100 PCIe",
    "NVIDIA L40S": "measured, NVIDIA L40S",
}


@pytest.mark.parametrize("name", NAMES)
def test_data_sheets_are_found_by_name(monkeypatch, name):
    predictions = importlib.import_module("gpu_predictions")
    monkeypatch.setattr(predictions, "matmul_rate", lambda *_: 1e14)
    memory = type("Properties", (), {"total_memory": 8e10})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    assert predictions.sheet_of(torch.device("cuda:0"), name).name == NAMES[name]
