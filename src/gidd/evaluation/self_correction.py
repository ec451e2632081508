"""The effect of self-correction on a model's own samples (Sec. 5.4).

correction_curve(pipe, CurveOptions(num_samples=64), grader=load_grader("smollm2"))

Samples are corrected once per temperature by Algorithm 1 (App. C). The result that each budget of
forward passes would have had is read out while the correction runs: Algorithm 1 returns the state
of highest self-accuracy among those it has scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

import torch

from gidd.errors import ConfigError
from gidd.evaluation.graders import CausalScorer, GradedText, generative_perplexity
from gidd.evaluation.model_manifest import describe_pipeline
from gidd.evaluation.options import CurveOptions
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.samples import mean_of_defined, sequence_entropy
from gidd.pipeline import Pipeline
from gidd.pipeline.generate import predict_frames
from gidd.pipeline.options import CorrectionOptions, SamplingOptions
from gidd.pipeline.results import describe_plan, describe_processors
from gidd.sampling import Request, run_job

OnSamples = Callable[[int, int], None]
"""Called with the number of samples that are corrected and measured, and of all samples."""

_SAMPLES_PER_BATCH = 4
_DEFINITIONS = {
    "calls": "budget of forward passes per sample; 0 is before correction",
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

    tokens: tuple[int, ...]
    """The complete sequence."""

    calls: int
    """Forward passes used so far."""


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
    """Generate samples, correct them at every temperature, and measure them on the way.

    `sampling.correction` has the options of self-correction except temperature and calls. Without a
    grader, generative perplexity is not measured.
    """
    options, sampling = options or CurveOptions(), sampling or SamplingOptions()
    if problems := [*options.problems(), *options.sampling_problems(sampling)]:
        raise ConfigError("\n".join(problems))
    budgets, plain = sorted(options.calls), replace(sampling, correction=CorrectionOptions(calls=0))
    measured: dict[tuple[float, int], list[_Measured]] = {}
    batch_size = max(_SAMPLES_PER_BATCH, pipe.engine.rows_per_call)
    for start in range(0, options.num_samples, batch_size):
        count = min(batch_size, options.num_samples - start)
        samples = pipe.generate(
            count, length=options.length, seed=options.seed, start_index=start, options=plain
        )
        initial = [CorrectedState(sample.trace.tokens, 0) for sample in samples]
        states: dict[tuple[float, int], list[CorrectedState]] = {}
        for temperature in options.temperatures:
            setting = replace(sampling.correction, temperature=temperature, calls=budgets[-1])
            found = correct_samples(pipe, initial, setting, budgets, options.seed, start)
            states |= {(temperature, calls): part for calls, part in {0: initial, **found}.items()}
        scores = score_sequences(pipe, {s.tokens for part in states.values() for s in part}, grader)
        for key, part in states.items():
            measured.setdefault(key, []).extend(
                (before, after, scores[after.tokens])
                for before, after in zip(initial, part, strict=True)
            )
        if on_samples is not None:
            on_samples(start + count, options.num_samples)
    return _result(pipe, options, sampling, grader, measured)


def correct_samples(
    pipe: Pipeline,
    samples: Sequence[CorrectedState],
    options: CorrectionOptions,
    budgets: Sequence[int],
    seed: int = 0,
    start_index: int = 0,
) -> dict[int, list[CorrectedState]]:
    """Correct sequences of one length, and return the results of every budget up to `calls`."""
    plan = options.plan()
    requests = [
        Request(
            tokens=state.tokens,
            plan=plan,
            seed=seed,
            sample_index=start_index + number,
            protected=(False,) * len(state.tokens),
        )
        for number, state in enumerate(samples)
    ]
    session = pipe.engine.session()
    tickets = [session.submit(request) for request in requests]
    found: dict[tuple[int, int], CorrectedState] = {}
    while session.pending:
        for event in session.step():
            if event.error is not None:
                raise event.error
            if event.sample is None and event.calls in budgets:
                # what a plan of that many calls would have returned
                best = session.best_tokens(event.ticket)
                found[event.ticket.number, event.calls] = CorrectedState(best, event.calls)
    last = [CorrectedState(t.sample.tokens, t.sample.calls) for t in tickets if t.sample]
    return {
        budget: [found.get((k, budget), state) for k, state in enumerate(last)]
        for budget in budgets
    }


def score_sequences(
    pipe: Pipeline, sequences: Collection[tuple[int, ...]], grader: CausalScorer | None = None
) -> dict[tuple[int, ...], SequenceScores]:
    """Return the scores of complete sequences; text after end-of-text is not measured."""
    tokens = sorted(sequences)
    is_end = pipe.tokenizer.terminator_ids.__contains__
    texts = [tuple(takewhile(lambda token: not is_end(token), one)) for one in tokens]
    graded: Sequence[GradedText | None] = [None] * len(texts)
    if grader is not None:
        graded = grader.score(["".join(pipe.token_texts(text)) for text in texts])
    scores: dict[tuple[int, ...], SequenceScores] = {}
    plain = [(one, ()) for one in tokens]
    frames = run_job(lambda jobs: predict_frames(jobs, pipe.engine, plain))
    for sequence, text, frame, grade in zip(tokens, texts, frames, graded, strict=True):
        is_text = torch.arange(len(sequence), device=pipe.device) < len(text)
        accuracy = frame.self_accuracy(is_text) if text else math.nan
        scores[sequence] = SequenceScores(accuracy, sequence_entropy(text), grade)
    return scores


def _result(
    pipe: Pipeline,
    options: CurveOptions,
    sampling: SamplingOptions,
    grader: CausalScorer | None,
    measured: Mapping[tuple[float, int], Sequence[_Measured]],
) -> EvaluationResult:
    rows: list[dict[str, Any]] = []
    numbers: dict[str, Measurement] = {}
    for (temperature, calls), states in measured.items():
        found = _measure(states)
        row: dict[str, Any] = {"temperature": temperature, "calls": calls}
        for name, value in found.items():
            row |= {name: value.value, f"{name}_se": value.standard_error}
            label = f"temperature {temperature:g}, {calls} calls" if calls else "before"
            numbers[f"{label}: {name}"] = value
        rows.append(row | {"num_samples": len(states)})
    masked = () if pipe.can_score_visible_tokens else (_MASKED,)
    manifest = describe_pipeline(pipe) | {
        "notes": [*pipe.notes, *masked],
        "num_samples": options.num_samples,
        "length": len(next(iter(measured.values()))[0][0].tokens),
        "seed": options.seed,
        "sampling": describe_plan(replace(sampling, correction=CorrectionOptions(calls=0)).plan()),
        "processors": describe_processors(sampling.processors()),
        "temperatures": list(options.temperatures),
        "calls": sorted(options.calls),
        "correction": {
            name: value
            for name, value in vars(sampling.correction).items()
            if name not in ("temperature", "calls")
        },
        "grader": None if grader is None else grader.manifest,
        "definitions": _DEFINITIONS,
    }
    return EvaluationResult(
        kind="self_correction", measurements=numbers, manifest=manifest, rows=rows
    )


def _measure(states: Sequence[_Measured]) -> dict[str, Measurement]:
    changed = [
        [a != b for a, b in zip(before.tokens, after.tokens, strict=True)]
        for before, after, _ in states
    ]
    found = {
        "changed_tokens": Measurement.mean([sum(each) / len(each) for each in changed]),
        "num_changed": Measurement.mean([sum(each) for each in changed]),
        "self_accuracy": mean_of_defined(scores.self_accuracy for _, _, scores in states),
        "entropy": mean_of_defined(scores.entropy for _, _, scores in states),
        "nfe": Measurement.mean([after.calls for _, after, _ in states]),
    }
    graded = [scores.graded for _, _, scores in states if scores.graded is not None]
    return ({"gen_ppl": generative_perplexity(graded)} if graded else {}) | found
