"""Folders of runs that were not trained: a configuration, a tokenizer and a log of our choice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from gidd.common.config.codec import to_yaml
from gidd.common.config.components import component
from gidd.data.tokenizers import Tokenizer, train_tokenizer
from gidd.runs.export import RUN_FILE
from gidd.runs.presets import PRESETS
from gidd.training.checkpoints.folder import folder_name
from gidd.training.config import Diffusion, RunConfig
from gidd.training.reporting.report import Report
from gidd.training.reporting.speed import transformer_flops_per_token


@cache
def small_tokenizer(vocab_size: int = 280) -> Tokenizer:
    """A byte-level tokenizer with a few merges."""
    return train_tokenizer(["some text for some merges, and more text for more merges"], vocab_size)


def run_config(
    *, p_uniform: float = 0.1, width: int = 32, seed: int = 0, length: int = 16
) -> RunConfig:
    """A run of a small DiT."""
    preset = PRESETS["nano"]
    objective = Diffusion(noise=component("schedule", "hybrid", p_uniform=p_uniform))
    return replace(
        preset,
        backbone=component(
            "backbone", "dit", width=width, num_layers=2, num_heads=2, time_width=16
        ),
        objective=objective,
        data=replace(preset.data, length=length),
        train=replace(preset.train, global_batch=8, seed=seed),
    )


def write_synthetic_run(
    folder: Path,
    config: RunConfig,
    steps: Sequence[int],
    evaluate: Callable[[float], Mapping[str, float]],
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Write a run whose validation metrics are a function of the training FLOPs so far."""
    tokenizer = tokenizer or small_tokenizer()
    checkpoint = folder / "checkpoints" / folder_name(max(steps))
    checkpoint.mkdir(parents=True)
    (checkpoint / RUN_FILE).write_text(to_yaml(config))
    tokenizer.save(checkpoint)
    size, length = config.network_config(tokenizer.vocab.size), config.data.length
    per_token = transformer_flops_per_token(size, length)
    per_token += 6 * size.width * size.vocab_size  # embeddings
    per_step = config.train.global_batch * length * per_token
    with Report(folder, num_steps=max(steps), quiet=True) as report:
        for step in steps:
            report.training(step, {"loss": 5.0})
            report.evaluation(step, evaluate(float(step * per_step)))
    return folder
