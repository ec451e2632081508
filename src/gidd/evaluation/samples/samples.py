"""Quality and diversity of samples: generative perplexity, entropy, self-accuracy, repetition.

evaluate_model_samples(pipe, 64, grader=load_grader("smollm2"), steps=64)
evaluate_samples(read_text_samples(Path("samples.jsonl")), grader=load_grader("smollm2"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import gidd
from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError, DataError
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.samples.grader import GradedText, Grader, generative_perplexity
from gidd.evaluation.samples.mauve_score import MAUVE_RULE, mauve_score
from gidd.evaluation.samples.sample_files import TextSample
from gidd.evaluation.samples.sample_generation import OnProgress, generate_text_samples
from gidd.evaluation.samples.text_metrics import (
    distinct_ngrams,
    mean_of_defined,
    repetition,
    sequence_entropy,
)
from gidd.evaluation.texts import texts_digest
from gidd.pipeline import Pipeline, SamplingOptions

_DISTINCT, _REPETITION = (1, 2, 3), 4
_DEFINITIONS = {
    "gen_ppl": "generative perplexity under the grader",
    "entropy": "mean over samples of the entropy of the token frequencies in a sample, in nats",
    "self_accuracy": "mean over samples of the fraction of tokens that are the most likely ones "
    "under the model itself at its lowest noise level",
    "distinct_n": "different n-grams / n-grams of all samples together",
    f"repetition_{_REPETITION}": "mean over samples of the fraction of n-grams that repeat an "
    "earlier one of the sample: 1 - distinct-n of the sample",
    "tokens": "mean number of tokens of a sample, up to end-of-text",
    "nfe": "mean number of forward passes of the sampler",
    "empty": "samples without tokens: they have no entropy and no repetition, and are left out",
}


def evaluate_model_samples(
    pipe: Pipeline,
    num_samples: int = 64,
    *,
    length: int | None = None,
    seed: int = 0,
    grader: Grader | None = None,
    reference: Sequence[str] = (),
    options: SamplingOptions | None = None,
    on_progress: OnProgress | None = None,
    **changes: Any,
) -> EvaluationResult:
    """Generate samples and measure them; `changes` are fields of `options`, e.g. `steps=64`."""
    samples, manifest = generate_text_samples(
        pipe,
        num_samples,
        length=length,
        seed=seed,
        options=options or SamplingOptions(),
        on_progress=on_progress,
        **changes,
    )
    return evaluate_samples(
        samples, grader=grader, reference=reference, manifest=manifest, on_progress=on_progress
    )


def evaluate_samples(
    samples: Sequence[TextSample | str],
    *,
    grader: Grader | None = None,
    tokenizer: Tokenizer | None = None,
    reference: Sequence[str] = (),
    manifest: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> EvaluationResult:
    """Measure samples of any system.

    Args:
        samples: Texts, with their tokens if they are known.
        grader: Model for generative perplexity; without one it is not measured.
        tokenizer: Tokenizer of entropy, distinct-n and repetition. By default the samples' own
            tokens, otherwise the grader's.
        reference: Human texts; with them, MAUVE is measured with features of the grader.
        manifest: Where the samples come from, added to the manifest of the result.
        on_progress: Called while texts are scored.
    """
    found = [TextSample(s) if isinstance(s, str) else s for s in samples]
    if not found:
        raise DataError("there must be at least one sample to measure, got none.")
    if reference and grader is None:
        raise ConfigError("reference texts are for MAUVE, which needs a grader. Name a grader.")
    texts = [sample.text for sample in found]
    tokens, rule = _tokens(found, grader, tokenizer)
    scores = None if grader is None else grader.score(texts, _scoring(on_progress))
    measurements = _measure(found, tokens, scores)
    if grader is not None and reference:
        measurements["mauve"] = mauve_score(grader, texts, reference)
    described: dict[str, Any] = {
        "gidd": gidd.__version__,
        "torch": str(torch.__version__),
        "num_samples": len(found),
        **(manifest or {}),
        "texts_sha256": texts_digest(texts),
        "grader": grader and grader.manifest,
        "metric_tokens": rule,
        "definitions": _DEFINITIONS,
    }
    if reference:
        described["mauve"] = {
            "rule": MAUVE_RULE,
            "num_reference": len(reference),
            "reference_sha256": texts_digest(reference),
        }
    graded = [None] * len(found) if scores is None else scores
    rows = [
        _row(number, *columns)
        for number, columns in enumerate(zip(found, tokens, graded, strict=True))
    ]
    return EvaluationResult(
        kind="samples", measurements=measurements, manifest=described, rows=rows
    )


def _measure(
    samples: Sequence[TextSample],
    tokens: Sequence[Sequence[int]],
    scores: Sequence[GradedText] | None,
) -> dict[str, Measurement]:
    found: dict[str, Measurement] = {}
    if scores is not None:
        found["gen_ppl"] = generative_perplexity(scores)
    found["entropy"] = mean_of_defined(map(sequence_entropy, tokens))
    for name, values in (
        ("self_accuracy", [sample.self_accuracy for sample in samples]),
        ("nfe", [sample.calls for sample in samples]),
    ):
        if any(value is not None for value in values):
            found[name] = mean_of_defined(values)
    return found | _repetitions(tokens) | ({} if scores is None else _counts(scores))


def _tokens(
    samples: Sequence[TextSample], grader: Grader | None, tokenizer: Tokenizer | None
) -> tuple[list[list[int]], str]:
    """Return the tokens that entropy and n-grams are computed from, and which these are."""
    texts = [sample.text for sample in samples]
    if tokenizer is not None:
        return tokenizer.encode_batch(texts), f"texts encoded by tokenizer {tokenizer.fingerprint}"
    own = [list(sample.tokens) for sample in samples if sample.tokens is not None]
    if len(own) == len(samples):
        return own, "the tokens that were sampled"
    if grader is not None:
        return grader.encode(texts), "texts encoded by the grader's tokenizer, not truncated"
    raise ConfigError(
        "entropy needs tokens, which these samples do not have. Name a tokenizer or a grader."
    )


def _repetitions(tokens: Sequence[Sequence[int]]) -> dict[str, Measurement]:
    total = len(tokens)
    found = {
        f"distinct_{n}": Measurement(distinct_ngrams(tokens, n), None, total) for n in _DISTINCT
    }
    repeated = mean_of_defined([repetition(sequence, _REPETITION) for sequence in tokens])
    lengths = Measurement.mean([float(len(sequence)) for sequence in tokens])
    empty = Measurement(float(sum(not sequence for sequence in tokens)), None, total)
    return found | {f"repetition_{_REPETITION}": repeated, "tokens": lengths, "empty": empty}


def _counts(scores: Sequence[GradedText]) -> dict[str, Measurement]:
    unscored = sum(not score.num_tokens for score in scores)
    truncated = sum(score.is_truncated for score in scores)
    return {
        "unscored": Measurement(float(unscored), None, len(scores)),
        "truncated": Measurement(float(truncated), None, len(scores)),
    }


def _row(
    number: int, sample: TextSample, tokens: Sequence[int], score: GradedText | None
) -> dict[str, Any]:
    return {
        "id": number,
        "tokens": len(tokens),
        "gen_nll": score.nll / score.num_tokens if score and score.num_tokens else None,
        "grader_tokens": score and score.num_tokens,
        "entropy": sequence_entropy(tokens),
        "self_accuracy": sample.self_accuracy,
        "text": sample.text,
    }


def _scoring(on_progress: OnProgress | None) -> Callable[[int, int], None] | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress("scoring", done, total)
