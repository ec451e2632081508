"""Named run configurations: the rows of the paper's tables, and sizes for laptops and clusters."""

from dataclasses import replace

from gidd.common.config.components import Component, component
from gidd.diffusion.constants import PAPER_CEILING
from gidd.models.backbones.dit_config import SIZES
from gidd.training.config import FSDP, DataConfig, Diffusion, RunConfig, TrainConfig
from gidd.training.optim import OptimConfig

OPENWEBTEXT_DATA = DataConfig(sources=("openwebtext",), tokenizer="gpt2")
SPEECHES = DataConfig(sources=("sotu",), tokenizer=1024)
STEPS_131B = 500_000  # steps of 512 samples of 512 tokens that make 131 billion tokens
WEB = "hf:HuggingFaceFW/fineweb"
"""FineWeb has 15T tokens: prepare the part you need and pass it as --data.folder."""

PAPER_ELBO = component("weighting", "clamp", w_max=PAPER_CEILING)
"""The weights of the paper's plain GIDD: the ELBO's, clamped for stability."""


def dit(size: str) -> Component:
    """Return the diffusion transformer of a named size."""
    return component("backbone", "dit", **SIZES[size]._asdict())


def hybrid(p_uniform: float) -> Component:
    """Return masking mixed with uniform noise."""
    return component("schedule", "hybrid", p_uniform=p_uniform)


def paper(
    size: str, objective: Diffusion, *, weight_decay: float = 0.0, rounds: int = 1
) -> RunConfig:
    """Return the training of the paper (App. E): `rounds` x 131B tokens, batch 512, bf16."""
    return RunConfig(
        backbone=dit(size),
        objective=objective,
        data=OPENWEBTEXT_DATA,
        optim=OptimConfig(weight_decay=weight_decay),
        train=TrainConfig(steps=STEPS_131B * rounds, report_every=100, evaluate_every=10_000),
    )


def gidd_plus(size: str, p_uniform: float, *, rounds: int = 1) -> RunConfig:
    """Return GIDD+, the best setting of the paper: dynamic weights and weight decay."""
    objective = Diffusion(noise=hybrid(p_uniform))
    return paper(size, objective, weight_decay=0.02, rounds=rounds)


def large(size: str, *, batch: int, length: int, tokens: float, learning_rate: float) -> RunConfig:
    """Return a run larger than the paper's: FineWeb, FSDP, activation checkpointing."""
    base = gidd_plus(size, 0.1)
    return replace(
        base,
        backbone=base.backbone.changed(checkpoint_activations=True),
        data=DataConfig(
            sources=(WEB,), tokenizer="gpt2", validation=100_000, length=length, shuffle="blocks"
        ),
        optim=replace(base.optim, learning_rate=learning_rate, warmup=2_000),
        train=replace(
            base.train,
            steps=round(tokens / (batch * length)),
            global_batch=batch,
            evaluate_samples=2048,  # at least one for every rank of a large cluster
            save_every=500,
            max_steps_ahead_of_save=100,  # a minute, for slow file systems
        ),
        parallel=FSDP(),
    )


def laptop(size: str, *, steps: int, length: int, learning_rate: float) -> RunConfig:
    """Return a run for two CPU cores: 249 speeches, vocabulary size 1,024, a short context."""
    return RunConfig(
        backbone=dit(size),
        objective=Diffusion(noise=hybrid(0.1)),
        data=replace(SPEECHES, length=length),
        optim=OptimConfig(learning_rate=learning_rate, warmup=steps // 20, weight_decay=0.02),
        train=TrainConfig(
            steps=steps,
            global_batch=32,
            evaluate_every=max(1, steps // 10),
            evaluate_samples=256,
            save_every=max(1, steps // 10),
        ),
    )


def proofreading() -> RunConfig:
    """Return a run for two CPU cores: a model of characters that corrects texts."""
    base = laptop("nano", steps=4000, length=256, learning_rate=2e-3)
    return replace(
        base,
        backbone=base.backbone.changed(width=160, num_layers=5, num_heads=5, mixing_width=7),
        objective=Diffusion(noise=hybrid(0.3), time_power=3.0),
        data=replace(base.data, tokenizer="chars"),
        optim=replace(base.optim, warmup=200),
        train=replace(base.train, global_batch=16, evaluate_samples=64, generate_samples=1),
    )


def _paper_rows() -> dict[str, RunConfig]:
    rows: dict[str, RunConfig] = {}
    for p in (0.0, 0.1, 0.2):
        noise = hybrid(p)
        rows[f"small-gidd-{p}"] = paper("small", Diffusion(noise=noise, weighting=PAPER_ELBO))
        clipped = Diffusion(noise=noise, weighting=component("weighting", "clamp", w_max=1.0))
        rows[f"small-gidd-clip-{p}"] = paper("small", clipped)
        rows[f"small-gidd-dynamic-{p}"] = paper("small", Diffusion(noise=noise))
    for size in ("tiny", "small", "base"):
        for p in (0.0, 0.1, 0.2):
            rows[f"{size}-gidd-plus-{p}"] = gidd_plus(size, p)
    rows["small-gidd-plus-0.0-262b"] = gidd_plus("small", 0.0, rounds=2)
    mdm = Diffusion(noise=hybrid(0.0), weighting=PAPER_ELBO)
    rows["small-mdm"] = paper("small", mdm)
    rows["small-mdm-262b"] = paper("small", mdm, rounds=2)
    return rows


PRESETS: dict[str, RunConfig] = {  # configurations by name, in the order of `gidd train --help`
    "nano": laptop("nano", steps=3000, length=64, learning_rate=1e-3),
    "micro": laptop("micro", steps=10_000, length=128, learning_rate=7e-4),
    "proof": proofreading(),
    **_paper_rows(),
    "1b": large("1b", batch=1024, length=1024, tokens=3e11, learning_rate=3e-4),
    "3b": large("3b", batch=1024, length=2048, tokens=6e11, learning_rate=2e-4),
    "10b": large("10b", batch=2048, length=2048, tokens=2e12, learning_rate=1.5e-4),
}
