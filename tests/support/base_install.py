"""Use the installed wheels with nothing but the base dependencies, away from the source tree.

    python tests/support/base_install.py

`.ci/run` runs this in a virtual environment that holds the wheels, the oldest supported versions of
the base dependencies and no extra. It trains on an exact source, exports, samples, infills,
corrects, scores and proofreads, prints the help of every command, and checks that every command
that needs an extra names it. Seconds are printed, not tested.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from gidd.cli import COMMANDS

ROOT = Path(__file__).parents[2]
TRAIN = (
    ("train", "nano", "--data.length", "32", "--train.steps", "3", "--train.generate-samples", "0")
    + ("--train.global-batch", "4", "--train.evaluate-samples", "4", "--quiet")
    + ("--backbone.width", "32", "--backbone.num-layers", "1", "--backbone.num-heads", "2")
)  # fmt: skip
PREPARED = ("--data.folder", "run/data")
IMPORT = """
import sys, time
start = time.perf_counter()
import gidd, gidd_proof
print(f"{time.perf_counter() - start:.2f} s")
assert "torch" not in sys.modules, "import gidd must not import torch"
for module in (gidd, gidd_proof):
    assert "site-packages" in module.__file__, f"not a wheel: {module.__file__}"
"""
SCORE = """
import gidd
pipe = gidd.from_pretrained("model")
print(pipe.score(pipe.generate(length=8, steps=4)[0].text, nodes=2, repeats=2).nelbo)
"""


def gidd(*words: str, status: int = 0, command: str = "gidd") -> str:
    """Run a command of the wheels and return what it printed."""
    start = time.perf_counter()
    done = subprocess.run(
        [Path(sys.executable).with_name(command), *words],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    )
    line = " ".join([command, *words])
    printed = done.stdout + done.stderr
    assert done.returncode == status, f"{line}: status {done.returncode}\n{printed}"
    print(f"ok: {line[:90]} ({time.perf_counter() - start:.2f} s)")
    return printed


def python(code: str) -> str:
    """Run code in a new process and return what it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def installed_extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {
        line.partition(">")[0].partition("[")[0]
        for e in ("data", "eval", "hf", "train", "viz")
        for line in extras[e]
    }
    needed = {line.partition(">")[0] for line in project["dependencies"]}
    return sorted(n for n in names - needed if importlib.util.find_spec(n.replace("-", "_")))


def main() -> None:
    # fsspec and huggingface_hub are dependencies of torch and tokenizers
    present = set(installed_extras()) - {"fsspec", "huggingface_hub"}
    assert not present, f"this environment must hold no extra, but it has {present}"
    os.environ.pop("PYTHONPATH", None)
    os.chdir(tempfile.mkdtemp())
    print(f"ok: import gidd, gidd_proof ({python(IMPORT)})")
    gidd("--help")
    for command in COMMANDS:
        gidd(command, "--help")
    assert "pip install 'gidd[eval]'" in gidd("doctor")
    gidd("train", "nano", "--help")
    gidd("train", "nano", "--dry-run")
    gidd(*TRAIN, "--data.sources", "markov", "--out", "run")
    gidd("export", "run", "--out", "model")
    text = gidd("sample", "model", "--length", "12", "--steps", "4").strip()
    gidd("infill", "model", f"{text[:4]}[MASK:3]{text[4:8]}", "--steps", "4")
    gidd("correct", "--text", text, "--model", "model")
    gidd("sample", "model", "--length", "12", "--steps", "4", "--html", "page.html", "--jsonl")
    assert float(python(SCORE)) > 0
    print("ok: pipe.score")
    Path("text.txt").write_text(text)
    gidd("score", "model", "text.txt", "--nodes", "2", "--repeats", "2")
    for out in ("a.json", "b.json"):
        gidd("eval", "ppl", "model", "text.txt", "--nodes", "2", "--out", out)
    gidd("compare", "a.json", "b.json")
    gidd("eval", "samples", "model", "--num-samples", "2", "--steps", "4", "--length", "12")
    gidd("sample", "model", "--num-samples", "2", "--steps", "4", "--length", "12", "--out", "many")
    Path("q.jsonl").write_text('{"question": "a", "choices": ["b", "c"], "answer": 0}\n')
    gidd("plan", "nano", "--device", "l4", "--json")
    Path("a.parquet").write_bytes(b"PAR1")
    Path("a.txt").write_text("some text\n" * 9)
    for words, extra in (
        (("serve", "model"), "serve"),
        (("plot", "run"), "viz"),
        (("plot", "a.json"), "viz"),
        (("eval", "samples", "model", "--num-samples", "2", "--grader", "model"), "eval"),
        (("eval", "tasks", "model", "q.jsonl"), "eval"),
        (("sample", "model", "--out", "more", "--executor", "ray"), "cluster"),
        (("data", "prepare", "a.parquet", "--tokenizer", "model", "--out", "d"), "data"),
        (("data", "prepare", "tinystories", "--tokenizer", "model", "--out", "d"), "data"),
        (("train", "nano", *PREPARED, "--lora.rank", "2", "--out", "r"), "hf"),
        ((*TRAIN, *PREPARED, "--out", "run2", "--tracker", "tensorboard"), "train"),
        ((*TRAIN, *PREPARED, "--out", "run3", "--tracker", "wandb"), "wandb"),
    ):
        printed = gidd(*words, status=2)
        assert f"gidd[{extra}]" in printed, f"gidd {' '.join(words)} must name {extra}:\n{printed}"
    gidd("--help", command="gidd-proof")
    proofread = gidd("--text", "The peopel of the United States", command="gidd-proof")
    assert "The people of the United States" in proofread, proofread


if __name__ == "__main__":
    main()
