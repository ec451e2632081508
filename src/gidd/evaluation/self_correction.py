"""The effect of self-correction on a model's own samples (Sec. 5.4).

correction_curve(pipe, CurveOptions(num_samples=64), grader=load_grader("smollm2"))
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

import torch

from gidd.common.config.allowed import problems_of, require_none
from gidd.evaluation.graders import CausalScorer, GradedText, generative_perplexity
from gidd.evaluation.metrics import sequence_entropy
from gidd.evaluation.options import CurveOptions
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.samples import clean_frames, mean_of_defined
from gidd.pipeline import Pipeline
from gidd.pipeline.options import SamplingOptions, SelfCorrectionOptions
from gidd.pipeline.results import describe_plan, describe_processors
from gidd.sampling import Event, Request

OnSamples = Callable[[int, int], None]
"""Called with the number of samples that are corrected and measured, and of all samples."""

_SAMPLES_PER_BATCH = 4
_DEFINITIONS = {
    "forward_passes": "budget of forward passes per sample; 0 is before correction",
    "nfe": "mean number of forward passes that were used; fewer after convergence",
    "num_changed": "mean number of tokens that differ from the sample before correction",
    "changed_tokens": "mean fraction of tokens that differ from the sample before correction",
    "self_accuracy": "mean fraction of tokens before end-of-text that are the most likely ones at "
    "the lowest noise level (Sec. 5.4)",
    "entropy": "mean unigram entropy of the tokens before end-of-text, in nats",
}
_MASKED = (
    "the network was trained with masking alone: its predictions at visible tokens, and so "
    "self-accuracy and correction, are not trained (Sec. 5.4)"
)


class CorrectedState(NamedTuple):
    """A sample after some forward passes of self-correction."""

    tokens: tuple[int, ...]  # the complete sequence
    forward_passes: int  # forward passes used so far


class SequenceScores(NamedTuple):
    """Quality and diversity of one sequence; NaN if its text is empty."""

    self_accuracy: float
    entropy: float
    graded: GradedText | None


_Measured = tuple[CorrectedState, CorrectedState, SequenceScores]
"""A sample before and after some forward passes of self-correction, and the scores after them."""


def correction_curve(
    pipe: Pipeline,
    options: CurveOptions | None = None,
    sampling: SamplingOptions | None = None,
    grader: CausalScorer | None = None,
    on_samples: OnSamples | None = None,
) -> EvaluationResult:
    """Generate samples, correct them once per temperature (Algorithm 1, App. C), and measure them.

    The result of each smaller budget of forward passes is read out while the correction runs.
    Without a grader, generative perplexity is not measured.
    """
    options, sampling = options or CurveOptions(), sampling or pipe.sampling
    across = options.sampling_problems(sampling)
    require_none((*problems_of(options), *problems_of(sampling), *across))
    budgets = sorted(options.forward_passes)
    plain = replace(sampling, self_correction=SelfCorrectionOptions(forward_passes=0))
    measured: dict[tuple[float, int], list[_Measured]] = {}
    batch_size = max(_SAMPLES_PER_BATCH, pipe.session.batch_size)
    for start in range(0, options.num_samples, batch_size):
        count = min(batch_size, options.num_samples - start)
        generated = pipe.generate(
            n=count, length=options.length, seed=options.seed, start_index=start, options=plain
        )
        tokens = [sample.trace.tokens for sample in generated]
        initial = [CorrectedState(sequence, 0) for sequence in tokens]
        states: dict[tuple[float, int], list[CorrectedState]] = {}
        for temperature in options.temperatures:
            setting = replace(
                sampling.self_correction, temperature=temperature, forward_passes=budgets[-1]
            )
            corrected = correct_samples(pipe, tokens, setting, budgets, options.seed, start)
            states |= {(temperature, 0): initial}
            states |= {(temperature, budget): part for budget, part in corrected.items()}
        scores = score_sequences(pipe, {s.tokens for part in states.values() for s in part}, grader)
        for key, part in states.items():
            measured.setdefault(key, [])
            for before, after in zip(initial, part, strict=True):
                measured[key].append((before, after, scores[after.tokens]))
        if on_samples is not None:
            on_samples(start + count, options.num_samples)
    rows: list[dict[str, Any]] = []
    numbers: dict[str, Measurement] = {}
    for (temperature, forward_passes), samples in measured.items():
        row: dict[str, Any] = {"temperature": temperature, "forward_passes": forward_passes}
        label = f"temperature {temperature:g}, {forward_passes} forward passes"
        label = label if forward_passes else "before"
        for name, value in _measure(samples).items():
            row |= {name: value.value, f"{name}_se": value.standard_error}
            numbers[f"{label}: {name}"] = value
        rows.append(row | {"num_samples": len(samples)})
    swept = ("temperature", "forward_passes")
    masked = () if pipe.can_score_visible_tokens else (_MASKED,)
    manifest = pipe.describe() | {
        "notes": [*pipe.notes, *masked],
        "num_samples": options.num_samples,
        "length": len(next(iter(measured.values()))[0][0].tokens),
        "seed": options.seed,
        "sampling": describe_plan(plain.plan()),
        "processors": describe_processors(sampling.processors()),
        "temperatures": list(options.temperatures),
        "forward_passes": sorted(options.forward_passes),
        "correction": {k: v for k, v in vars(sampling.self_correction).items() if k not in swept},
        "grader": grader and grader.manifest,
        "definitions": _DEFINITIONS,
    }
    return EvaluationResult(
        kind="self_correction", measurements=numbers, manifest=manifest, rows=rows
    )


def correct_samples(
    pipe: Pipeline,
    samples: Sequence[tuple[int, ...]],
    options: SelfCorrectionOptions,
    budgets: Sequence[int],
    seed: int = 0,
    start_index: int = 0,
) -> dict[int, list[CorrectedState]]:
    """Correct sequences of one length, and return the results of every budget."""
    plan, free = options.plan(), (False,) * len(samples[0])
    requests = [
        Request(tokens=tokens, plan=plan, seed=seed, sample_index=index, protected=free)
        for index, tokens in enumerate(samples, start_index)
    ]
    states: dict[tuple[int, int], CorrectedState] = {}

    def keep_best(events: Sequence[Event]) -> None:
        for event in events:
            if event.forward_passes in budgets:  # what a plan of that many steps would return
                best = CorrectedState(event.best, event.forward_passes)
                states.setdefault((event.index, event.forward_passes), best)

    corrected = pipe.session.sample(requests, on_step=keep_best)
    last = [CorrectedState(sample.tokens, sample.forward_passes) for sample in corrected]
    return {
        budget: [states.get((k, budget), state) for k, state in enumerate(last)]
        for budget in budgets
    }


def score_sequences(
    pipe: Pipeline, sequences: Collection[tuple[int, ...]], grader: CausalScorer | None = None
) -> dict[tuple[int, ...], SequenceScores]:
    """Return the scores of complete sequences; text after end-of-text is not measured."""
    tokens = sorted(sequences)
    is_end = pipe.tokenizer.terminator_ids.__contains__
    texts = [tuple(takewhile(lambda token: not is_end(token), sequence)) for sequence in tokens]
    graded: Sequence[GradedText | None] = [None] * len(texts)
    if grader is not None:
        graded = grader.score(["".join(pipe.decoder.whole(text)) for text in texts])
    scores: dict[tuple[int, ...], SequenceScores] = {}
    frames = clean_frames(pipe, tokens)
    for sequence, text, frame, grade in zip(tokens, texts, frames, graded, strict=True):
        is_text = torch.arange(len(sequence), device=pipe.device) < len(text)
        accuracy = frame.self_accuracy(is_text) if text else math.nan
        scores[sequence] = SequenceScores(accuracy, sequence_entropy(text), grade)
    return scores


def _measure(states: Sequence[_Measured]) -> dict[str, Measurement]:
    changed = [
        [a != b for a, b in zip(before.tokens, after.tokens, strict=True)]
        for before, after, _ in states
    ]
    measurements = {
        "changed_tokens": Measurement.mean([sum(flags) / len(flags) for flags in changed]),
        "num_changed": Measurement.mean([sum(flags) for flags in changed]),
        "self_accuracy": mean_of_defined(scores.self_accuracy for _, _, scores in states),
        "entropy": mean_of_defined(scores.entropy for _, _, scores in states),
        "nfe": Measurement.mean([after.forward_passes for _, after, _ in states]),
    }
    graded = [scores.graded for _, _, scores in states if scores.graded is not None]
    return ({"gen_ppl": generative_perplexity(graded)} if graded else {}) | measurements
