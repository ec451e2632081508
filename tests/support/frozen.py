"""Small outputs of every part of the library, to show that a refactoring moves no number.

    PYTHONPATH=tests python -m support.frozen --write   # record tests/golden/frozen.json
    PYTHONPATH=tests python -m support.frozen           # print what differs from it

A change that moves a number on purpose records the file again and says so in CHANGELOG.md.
"""

import hashlib
import json
import os
import platform
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import gidd
from gidd.cli import main
from gidd.common.config.components import component
from gidd.data import prepare
from gidd.data.corpora.exact import ExactCorpus
from gidd.data.tokenizers import train_tokenizer
from gidd.diffusion.times import even_times
from gidd.pipeline import SelfCorrectionOptions
from gidd.runs.presets import hybrid
from gidd.sampling import Gibbs, GibbsSweep, corrector_plan, sampling_plan
from gidd.sources import MarkovSource
from gidd.training.config import Diffusion, RunConfig
from support.ancestral_reference import ancestral_reference
from support.registrations import temporary_registrations
from support.small_model import TEXT, write_model
from support.training_runs import final_tensors, losses, reported, tiny_run, train_here

FILE = Path(__file__).parents[1] / "golden" / "frozen.json"
PLANS = {
    "one": ["nano", "--device", "l4", "--json"],
    "replicated": ["small-gidd-plus-0.1", "--ranks", "8", "--train.accumulate", "8", "--json"],
    "sharded": ["1b", "--ranks", "64", "--device", "a100-80gb", "--mfu", "0.45", "--json"],
}


def machine() -> str:
    """What the last bits of a float depend on: the CPU, its instructions and caches, torch."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.is_file() else []
    wanted = ("model name", "cpu family", "model", "stepping", "flags", "cache size")
    kept = [line for line in lines if line.partition(":")[0].strip() in wanted]
    name = next((line.partition(":")[2].strip() for line in kept if "name" in line), "")
    bits = digest(repr(kept).encode())[:12]
    return f"{name or platform.machine()} {bits}, torch {torch.__version__}"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def runs(folder: Path) -> dict[str, object]:
    """20 steps of a tiny model on Markov text, for every objective."""
    import gidd.data.corpora as corpora

    markov = ExactCorpus(
        name="markov-small",
        description="",
        make=lambda: MarkovSource.random(16, 0.3, rng=1),
        num_documents=60,
        length=40,
        held_out=8,
    )
    corpora.CORPORA["markov-small"] = markov
    data = folder / "markov"
    try:
        prepare("markov-small", markov.tokenizer(), data, quiet=True)
    finally:
        del corpora.CORPORA["markov-small"]
    objectives = {
        "masked": Diffusion(noise=hybrid(0.0)),
        "hybrid": Diffusion(noise=hybrid(0.2).changed(gamma=1.5)),
        "hybrid-tight": Diffusion(noise=hybrid(0.1), weighting=component("weighting", "tight")),
        "hybrid-clamped": Diffusion(noise=hybrid(0.1), weighting=component("weighting", "clamp")),
        "uniform": Diffusion(
            noise=component("schedule", "uniform"),
            weighting=component("weighting", "clamp", w_max=1e4),
        ),
    }
    found: dict[str, object] = {"shards": shard_digests(data)}
    for name, objective in objectives.items():
        out = folder / name
        run = replace(
            tiny_run(
                data, steps=20, evaluate_every=10, ema_decay=0.9, accumulate=2, autocast=False
            ),
            objective=objective,
        )
        train_here(run, out)
        evaluations = [line for line in reported(out) if line["kind"] == "validation"]
        found[name] = trained(run, out) | {
            "validation": [line["nelbo"] if "nelbo" in line else line["loss"]
                           for line in evaluations],
        }  # fmt: skip
    return found


def trained(run: RunConfig, out: Path) -> dict[str, object]:
    """Losses, weights and optimiser of a finished run."""
    tensors = final_tensors(run, out)
    return {
        "losses": losses(out).tolist(),
        "squares": float(sum(t.double().square().sum() for t in tensors.values())),
        "bits": digest(b"".join(tensors[key].numpy().tobytes() for key in sorted(tensors))),
    }


def shard_digests(folder: Path) -> dict[str, str]:
    kinds = ("train", "validation")
    files = sorted(path for kind in kinds for path in (folder / kind).iterdir())
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in files}


def texts(folder: Path) -> dict[str, object]:
    """Samples, infillings, corrections and a score of random networks."""
    with temporary_registrations():
        gidd.register("step", "ancestral_reference")(ancestral_reference)
        return _texts(folder)


def _texts(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for p in (0.0, 0.2):
        pipe = gidd.from_pretrained(write_model(folder / f"model-{p}", p_uniform=p))
        steps = ["ancestral", "ancestral_reference", "confidence", "greedy", "threshold"]
        jobs = {
            name: partial(pipe.generate, n=2, length=24, steps=12, seed=3, sampler=name)
            for name in steps
        }
        jobs |= {
            "cuts": partial(pipe.generate, prompt="I embrace", steps=8, timestep_spacing="sine",
                            temperature=0.7, top_k=20, top_p=0.9, min_p=0.01, epsilon_cutoff=0.001),
            "later": partial(pipe.generate, length=16, steps=8, start_index=5),
            "infill": partial(pipe.infill, "I embrace[MASK:4] great[MASK] of", n=2, steps=8),
        }  # fmt: skip
        if p:
            jobs |= {
                "gibbs": partial(pipe.generate, length=16, steps=6, final_corrector_steps=4),
                "gibbs-plan": partial(
                    pipe.generate, length=16,
                    plan=sampling_plan(even_times(6), correctors=[Gibbs()])
                    + corrector_plan(GibbsSweep(), 2),
                ),
                "correction": partial(
                    pipe.generate, length=16, steps=6,
                    self_correction=SelfCorrectionOptions(forward_passes=16)
                ),
            }  # fmt: skip
        for name, job in jobs.items():
            found[f"{name}-{p}"] = [
                {"tokens": list(one.tokens), "calls": one.forward_passes,
                 "edits": len(one.trace.edits), "confidence": list(one.confidence)}
                for one in job(confidence=True)
            ]  # fmt: skip
        scored = pipe.score(TEXT[:60], nodes=4, repeats=2)
        found[f"score-{p}"] = [scored.nelbo, scored.standard_error]
        if not p:
            continue
        corrections = {
            "paper": {"temperature": 0.1},
            "gain": {"score": "gain", "temperature": 0.5},
            "greedy": {"temperature": 0.0},
        }
        for name, how in corrections.items():
            # longer than the context, so that there are windows
            made = pipe.self_correct(TEXT, forward_passes=12, protected=[(0, 9)], **how)
            found[f"correct-{name}"] = {
                "tokens": list(made.tokens),
                "calls": made.forward_passes,
                "confidence": list(made.confidence),
            }
    return found


def shards(folder: Path) -> dict[str, str]:
    """A prepared folder of text files."""
    files = []
    for number in range(9):
        path = folder / f"{number}.txt"
        path.write_text(TEXT * (number + 1), encoding="utf-8")
        files.append(path)
    out = folder / "prepared"
    prepare(files, train_tokenizer(files, 300), out, validation=2, tasks=3, quiet=True)
    return shard_digests(out) | {"tokenizer": digest((out / "tokenizer.json").read_bytes())}


def plan(name: str) -> object:
    """What `gidd plan --json` prints. Nothing in it depends on this machine's speed."""
    with redirect_stdout(StringIO()) as printed:
        main(["plan", *PLANS[name]])
    return json.loads(printed.getvalue())


def plans() -> dict[str, object]:
    return {name: plan(name) for name in PLANS}


def use_one_thread() -> None:
    """The number of threads changes the order of sums."""
    torch.set_num_threads(1)


def record() -> dict[str, object]:
    use_one_thread()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folders = {name: folder / name for name in ("runs", "texts", "shards")}
        for inside in folders.values():
            inside.mkdir()
        return {
            "machine": machine(),
            "runs": runs(folders["runs"]),
            "texts": texts(folders["texts"]),
            "shards": shards(folders["shards"]),
            "plans": plans(),
        }


def differences(old: object, new: object, where: str = "", tolerance: float = 0.0) -> list[str]:
    """Where two records differ; floats by more than `tolerance`, relative to the old one."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted(old.keys() | new.keys())
            for line in differences(old.get(key), new.get(key), f"{where}/{key}", tolerance)
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for i, (a, b) in enumerate(zip(old, new, strict=True))
            for line in differences(a, b, f"{where}/{i}", tolerance)
        ]
    if isinstance(old, float) and isinstance(new, float) and tolerance:
        return [] if abs(old - new) <= tolerance * max(1.0, abs(old)) else [f"{where}: {old} {new}"]
    return [] if old == new else [f"{where}: {old} -> {new}"]


def require_equal(old: object, new: object, recorded_on: str) -> None:
    """Bit for bit on the recording machine; elsewhere floats to 1e-5, without their digests."""
    if machine() == recorded_on:
        found = differences(old, new)
    else:
        found = differences(old, new, tolerance=1e-5)
        found = [line for line in found if not line.partition(":")[0].endswith("/bits")]
    assert not found, "\n".join(found)


if __name__ == "__main__":
    now = record()
    if "--write" in sys.argv:
        FILE.write_text(json.dumps(now, indent=1) + "\n")
    for line in differences(json.loads(FILE.read_text()), now):
        print(line)
