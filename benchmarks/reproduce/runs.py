"""The paper's experiments at the size of a laptop: what is trained, and what is measured of it.

Each run is trained, measured and saved as one JSON file, and a run whose file exists is skipped:
`python -m benchmarks.reproduce laptop` can be interrupted at any time. `page` writes the results.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Final, Literal

import torch

import gidd
from benchmarks.reproduce.autoregressive import train_baseline
from gidd.common.config.components import component
from gidd.common.files import write_json
from gidd.common.messages import print_message
from gidd.data.loading.loader import open_split
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.likelihood import ScoredText
from gidd.errors import ConfigError, GiddError
from gidd.evaluation.graders import load_grader
from gidd.evaluation.metrics import sequence_entropy
from gidd.evaluation.options import CurveOptions, PerplexityOptions
from gidd.evaluation.results import Measurement, plain_data
from gidd.evaluation.samples import evaluate_samples, generate_text_samples, self_accuracies
from gidd.evaluation.self_correction import correct_samples, correction_curve
from gidd.evaluation.window_scores import load_causal_model, score_windows
from gidd.pipeline import Generation, Pipeline, SamplingOptions, SelfCorrectionOptions
from gidd.runs.data import ensure_prepared, loader_config
from gidd.runs.evaluate import validation_samples
from gidd.runs.export import export
from gidd.runs.fit import fit
from gidd.runs.presets import hybrid, laptop
from gidd.sources import sentence_source
from gidd.training.config import DataConfig, Diffusion, RunConfig
from gidd.training.world import open_world

Json = dict[str, Any]
Source = Literal["text", "sentences"]

SIZES: Final[dict[Source, dict[str, tuple[int, int, int]]]] = {
    "text": {"medium": (96, 4, 3), "large": (160, 5, 5)},
    "sentences": {"small": (32, 2, 1), "medium": (64, 2, 2), "large": (96, 4, 3)},
}
"""Width, layers and heads by source: sentences have a vocabulary of 58 words."""

TEXT_NUMBERS: Final = ("gen_ppl", "entropy", "self_accuracy")
_SUM = re.compile(r"(\d) \+ (\d) = (\d)")


@dataclass(frozen=True)
class LaptopRun:
    """One model."""

    name: str
    p_uniform: float | None = None
    """Uniform noise; None is an autoregressive model."""

    weighting: str = "dynamic"
    schedule: Literal["hybrid", "masked"] = "hybrid"
    size: str = "medium"
    seed: int = 0
    source: Source = "text"
    is_sampled: bool = False
    """Whether its samples are measured, before and after self-correction."""

    @property
    def is_adapted(self) -> bool:
        """Whether it starts from the autoregressive model: diffusion models of text do."""
        return self.source == "text" and self.p_uniform is not None

    @property
    def is_primary(self) -> bool:
        """Whether a verdict on the exact source, or a sample of text, needs it."""
        if self.source == "text":
            return self.seed == 0 and (self.is_sampled or self.p_uniform is None)
        secondary = ("tight", "0.0-clamp", "0.2-elbo", "0.2-clamp", "0.1-dynamic-", "seed-1")
        return not any(part in self.name for part in secondary)


def _laptop_runs() -> Iterator[LaptopRun]:
    yield from (LaptopRun("grader", size="large"), LaptopRun("autoregressive"))
    first_parts: dict[Source, str] = {"sentences": "sentences-", "text": ""}
    for source, first in first_parts.items():
        run = partial(LaptopRun, source=source)
        first_seed = [run(f"{first}gidd-{p}-dynamic", p, is_sampled=True) for p in (0.0, 0.1, 0.2)]
        first_seed.append(run(f"{first}mdm", 0.0, "elbo", "masked"))
        weights = [(0.0, "elbo"), *product((0.1, 0.2, 0.0), ("elbo", "clamp", "tight"))]
        settings = dict.fromkeys(weights)
        first_seed += [run(f"{first}gidd-{p}-{name}", p, name) for p, name in settings]
        for size, p in product(("small", "large"), (0.0, 0.1, 0.2) if first else ()):
            first_seed.append(run(f"{first}gidd-{p}-dynamic-{size}", p, size=size))
        yield from first_seed
        seconds = [trained for trained in first_seed if trained.weighting != "tight"]
        yield from (replace(trained, name=f"{trained.name}-seed-1", seed=1) for trained in seconds)


LAPTOP_RUNS: Final = tuple(sorted(_laptop_runs(), key=lambda run: (run.is_adapted, run.seed)))


@dataclass(frozen=True, kw_only=True)
class LaptopPlan:
    """Sizes of the experiment."""

    corpus: tuple[str, ...] = ("sotu",)
    tokenizer: int = 2048
    validation: int | float | None = None
    length: int = 64
    steps: int = 1500
    batch: int = 32
    learning_rate: float = 3e-3
    is_quick: bool = False
    """Whether runs are shorter, models of text smaller, and runs that no verdict needs left out."""

    windows: int = 256
    """Held-out windows of the likelihood."""

    num_samples: int = 64
    denoising_steps: tuple[int, ...] = (8, 16, 32, 64, 128)
    correction_passes: tuple[int, ...] = (8, 32, 128)
    temperatures: tuple[float, ...] = (0.1, 0.5)
    sentences: int = 512
    """Samples of the exact source."""

    second_grader: str | None = "smollm2"

    def quick(self) -> LaptopPlan:
        """Return a plan of minutes."""
        return replace(
            self,
            is_quick=True,
            num_samples=32,
            sentences=128,
            denoising_steps=(8, 32),
            correction_passes=(32,),
            temperatures=(0.1,),
            second_grader=None,
        )

    def run_config(self, run: LaptopRun, out: Path) -> RunConfig:
        """Return the training of a run: all have the same batches and learning rate."""
        parts = {"sentences": 2, "text": 5}  # as many steps as the verdicts need
        steps = self.steps // parts[run.source] if self.is_quick else self.steps
        base = laptop("nano", steps=steps, length=self.length, learning_rate=self.learning_rate)
        width, layers, heads = SIZES["sentences" if self.is_quick else run.source][run.size]
        masked, p_uniform = component("schedule", "masked"), run.p_uniform or 0.0
        diffusion = Diffusion(
            noise=masked if run.schedule == "masked" else hybrid(p_uniform),
            weighting=component("weighting", run.weighting),
        )
        settings = {"global_batch": self.batch, "evaluate_every": steps, "generate_samples": 0}
        return replace(
            base,
            backbone=base.backbone.changed(width=width, num_layers=layers, num_heads=heads),
            objective=diffusion,
            data=DataConfig(folder=prepared_folder(run.source, out), length=self.length),
            train=replace(base.train, seed=run.seed, **settings),
            init_from=str(out / "models" / "autoregressive") if run.is_adapted else None,
        )


def reproduce(
    plan: LaptopPlan,
    out: Path,
    *,
    only: Sequence[str] = (),
    keep_models: bool = False,
    jobs: int = 1,
) -> dict[str, Json]:
    """Train and measure what has no result yet, in `jobs` processes; return results by name."""
    names = [run.name for run in LAPTOP_RUNS]
    if unknown := [name for name in only if name not in names]:
        raise ConfigError(f"only must be of {', '.join(names)}, got {', '.join(unknown)}.")
    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}.")
    runs = [run for run in LAPTOP_RUNS if run.is_primary or not plan.is_quick]
    if only:
        needs_others = any(run.is_adapted and run.name in only for run in runs)
        chosen = {*only, *(["grader", "autoregressive"] if needs_others else [])}
        runs = [run for run in runs if run.name in chosen]
    waiting = [run for run in runs if not (out / "results" / f"{run.name}.json").exists()]
    for source in SIZES:
        if any(run.source == source for run in waiting):
            prepare_source(plan, source, out)
    work = partial(complete_run, plan, out, keep_models)
    done = len(runs) - len(waiting)
    for is_adapted in (False, True):  # autoregressive models grade and initialize the others
        part = [run for run in waiting if run.is_adapted == is_adapted]
        with ThreadPool(jobs) as pool:
            in_children = pool.imap_unordered(partial(_run_child, work), part) if jobs > 1 else None
            for name in in_children or map(work, part):
                done += 1
                print_message(f"{done} of {len(runs)}: {name} is done")
    files = sorted((out / "results").glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def _run_child(work: Callable[[LaptopRun], str], run: LaptopRun) -> str:
    child = get_context("spawn").Process(target=_work_in_child, args=(work, run))
    child.start()
    child.join()
    if child.exitcode:
        raise GiddError(f"{run.name} has no result. Run the same command again to go on.")
    return run.name


def _work_in_child(work: Callable[[LaptopRun], str], run: LaptopRun) -> None:
    torch.set_num_threads(1)  # networks this small do not gain by more
    try:
        work(run)
    except KeyboardInterrupt:  # of all processes: training is saved
        raise SystemExit(1) from None


def complete_run(plan: LaptopPlan, out: Path, keep_model: bool, run: LaptopRun) -> str:
    """Train and measure a run, write its result and return its name."""
    print_message(f"training {run.name}")
    start = time.process_time()
    model = train_model(plan, run, out)
    trained = time.process_time() - start
    measured = measure_run(plan, run, model, out)
    record = {
        "run": asdict(run),
        "plan": asdict(plan),
        "gidd": gidd.__version__,
        "torch": str(torch.__version__),
        "cpu": platform.processor() or platform.machine(),
        "train_seconds": trained,
        "measure_seconds": time.process_time() - start - trained,
        **measured,
    }
    file = out / "results" / f"{run.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, plain_data(record))
    if not keep_model and run.p_uniform is not None:
        shutil.rmtree(model)
    shutil.rmtree(out / "runs" / run.name, ignore_errors=True)
    return run.name


def prepared_folder(source: Source, out: Path) -> Path:
    """Return where the tokens of a source are."""
    return out / "corpora" / source / "data"


def prepare_source(plan: LaptopPlan, source: Source, out: Path) -> None:
    """Tokenize a corpus, unless that is done."""
    data = DataConfig(sources=("sentences",), tokenizer=plan.tokenizer)
    if source == "text":
        data = replace(data, sources=plan.corpus, validation=plan.validation)
    with open_world("cpu") as world:
        ensure_prepared(data, prepared_folder(source, out).parent, world, quiet=True)


def train_model(plan: LaptopPlan, run: LaptopRun, out: Path) -> Path:
    """Train a run, or resume it; return the folder of the model."""
    model, folder = out / "models" / run.name, out / "runs" / run.name
    if not model.exists():
        config = plan.run_config(run, out)
        if run.p_uniform is None:
            train_baseline(config, model)
            return model
        with open_world("cpu") as world:
            if not fit(config, folder, world, quiet=True).complete:
                raise KeyboardInterrupt
            export(folder, model, world)
    return model


def measure_run(plan: LaptopPlan, run: LaptopRun, model: Path, out: Path) -> Json:
    """Measure the likelihood of a run and, if it is sampled, its samples."""
    loaded = (
        load_causal_model(str(model), device="cpu")
        if run.p_uniform is None
        else gidd.from_pretrained(model, device="cpu", batch_size=16)
    )
    scores = score_windows(loaded, held_out_windows(plan, run, out), PerplexityOptions(repeats=2))
    per_token = (scores.nelbo / scores.num_scored).tolist()
    results: Json = {"nats_per_token": Measurement.mean(per_token)._asdict(), "windows": per_token}
    if not run.is_sampled or not isinstance(loaded, Pipeline):
        return results
    if run.source == "sentences":
        return results | {"sentences": measure_sentences(plan, loaded, run.seed)}
    return results | measure_texts(plan, loaded, run.seed, out / "models" / "grader")


def held_out_windows(plan: LaptopPlan, run: LaptopRun, out: Path) -> list[ScoredText]:
    """Return the same held-out windows for all runs of a source."""
    data = prepared_folder(run.source, out)
    settings = loader_config(plan.run_config(replace(run, seed=0), out), Tokenizer.load(data))
    batch, _ = validation_samples(open_split(data, "validation"), settings, plan.windows)
    full = [row for row, valid in zip(batch.tokens, batch.valid, strict=True) if valid.all()]
    return [ScoredText(tokens, index) for index, tokens in enumerate(full)]


def self_corrected(
    pipe: Pipeline, samples: Sequence[Generation], forward_passes: int, seed: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the tokens of samples before and after self-correction."""
    before = [sample.trace.tokens for sample in samples]
    settings = SelfCorrectionOptions(temperature=0.1, forward_passes=forward_passes)
    after = correct_samples(pipe, before, settings, [forward_passes], seed)[forward_passes]
    return [(a, b.tokens) for a, b in zip(before, after, strict=True)]


# text


def measure_texts(plan: LaptopPlan, pipe: Pipeline, seed: int, own_grader: Path) -> Json:
    """Grade samples, by steps, and before and after self-correction."""
    named = {"own": str(own_grader), "second": plan.second_grader}
    graders = {k: load_grader(name, max_length=plan.length) for k, name in named.items() if name}
    by_steps: Json = {}
    for steps in plan.denoising_steps:
        options = SamplingOptions(steps=steps)
        samples, _ = generate_text_samples(pipe, plan.num_samples, seed=seed, options=options)
        results: Json = {"texts": [sample.text for sample in samples[:3]]}
        for name, grader in graders.items():
            result = evaluate_samples(samples, grader=grader)
            numbers = result.measurements.items()
            results[name] = {key: value._asdict() for key, value in numbers if key in TEXT_NUMBERS}
            results[name]["gen_nll"] = [row["gen_nll"] for row in result.rows]
            results[name]["self_accuracies"] = [row["self_accuracy"] for row in result.rows]
        by_steps[str(steps)] = results
    curve = CurveOptions(
        num_samples=plan.num_samples,
        temperatures=plan.temperatures,
        forward_passes=plan.correction_passes,
        seed=seed,
    )
    sampling = SamplingOptions(steps=32)
    result = correction_curve(pipe, curve, sampling, graders["own"])
    pairs = self_corrected(pipe, pipe.generate(n=2, seed=seed, options=sampling), 128, seed)
    examples = [[pipe.tokenizer.decode(tokens) for tokens in pair] for pair in pairs]
    return {"samples": by_steps, "correction": list(result.rows), "examples": examples}


# the exact source

SAMPLER_SETTINGS: Final[dict[str, Json]] = {
    "ancestral": {"steps": 64},
    "ancestral, then Gibbs": {"steps": 32, "final_corrector_steps": 32},
    "ancestral, then self-correction": {
        "steps": 32,
        "self_correction": SelfCorrectionOptions(forward_passes=32),
    },
    "psi": {"steps": 64, "sampler": "psi"},
    "remask_suspects": {"steps": 64, "sampler": "remask_suspects"},
    "remdm": {"steps": 64, "sampler": "remdm"},
}
"""Ways to spend 64 forward passes; some need mask-only noise, some uniform noise."""


def measure_sentences(plan: LaptopPlan, pipe: Pipeline, seed: int) -> Json:
    """Measure samples by their true likelihood, by steps, and before and after self-correction."""
    length = min(64, plan.length)
    template = f"[MASK:{length}]"
    by_steps: Json = {}
    for steps in plan.denoising_steps:
        samples = pipe.infill(template, n=min(128, plan.sentences), seed=seed, steps=steps)
        by_steps[str(steps)] = describe_sentences([sample.trace.tokens for sample in samples])
        by_steps[str(steps)]["self_accuracies"] = self_accuracies(pipe, samples)
    generated = pipe.infill(template, n=plan.sentences, seed=seed, steps=32)
    pairs = self_corrected(pipe, generated, 64, seed)
    changed = [sum(x != y for x, y in zip(a, b, strict=True)) / len(a) for a, b in pairs]
    true = sentence_source()[0].sample(seed + 1000, torch.arange(plan.sentences), length)
    results: Json = {
        "true": describe_sentences(true.tolist()),
        "steps": by_steps,
        "before": describe_sentences([a for a, _ in pairs]),
        "after": describe_sentences([b for _, b in pairs]),
        "changed": Measurement.mean(changed)._asdict(),
        "examples": [[words_of(a), words_of(b)] for a, b in pairs[:3]],
        "samplers": {},
    }
    few = plan.sentences // 4
    masked = not pipe.can_score_visible_tokens
    for name, options in SAMPLER_SETTINGS.items():
        needs_uniform = "then" in name or name == "remask_suspects"
        if (masked and needs_uniform) or (not masked and name == "remdm"):
            continue
        samples = pipe.infill(template, n=few, seed=seed, **options)
        results["samplers"][name] = describe_sentences([sample.trace.tokens for sample in samples])
    if not masked:
        corrected = pipe.correct([sample.text for sample in generated[:few]])
        tokens = [pipe.encode(sample.text, "a sample") for sample in corrected]
        results["posterior"] = describe_sentences(tokens)
        error_rate = Measurement.mean([sample.error_rate for sample in corrected])
        results["error_rate"] = error_rate._asdict()
    return results


def words_of(tokens: Sequence[int]) -> str:
    """Return the text of tokens of the exact source."""
    words = sentence_source()[1]
    return " ".join(words[token] if token < len(words) else "?" for token in tokens)


def describe_sentences(samples: Sequence[Sequence[int]]) -> Json:
    """Return the true log-likelihood per token, the entropy, and the fraction of right sums."""
    source, words = sentence_source()
    tokens = torch.tensor([list(sample) for sample in samples]).clamp_max(len(words) - 1)
    log_prob = source.log_prob(tokens) / tokens.shape[1]
    sums = [match for tokens in samples for match in _SUM.findall(words_of(tokens))]
    right = [float(int(a) + int(b) == int(c)) for a, b, c in sums]
    entropies = [sequence_entropy(sample) for sample in samples]
    return {
        "entropy": Measurement.mean(entropies)._asdict(),
        "log_prob": Measurement.mean(log_prob.tolist())._asdict(),
        "log_probs": [round(value, 5) for value in log_prob.tolist()],
        "sums_right": Measurement.mean(right)._asdict(),
    }
