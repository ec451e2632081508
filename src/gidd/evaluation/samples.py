"""Quality and diversity of samples: generative perplexity, entropy, self-accuracy, repetition.

evaluate_model_samples(pipe, 64, grader=load_grader("smollm2"), steps=64)
evaluate_samples(read_text_samples(Path("samples.jsonl")), grader=load_grader("smollm2"))
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

import gidd
from gidd.common.config.codec import to_plain
from gidd.common.config.components import Component, component
from gidd.common.optional import optional_package
from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError, DataError
from gidd.evaluation.graders import CausalScorer, GradedText, generative_perplexity
from gidd.evaluation.metrics import distinct_ngrams, repetition, sequence_entropy
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.sample_files import TextSample
from gidd.evaluation.texts import texts_digest
from gidd.pipeline import Generation, Pipeline, SamplingOptions
from gidd.pipeline.generate import predict_frames, scoring_request
from gidd.sampling import Event, Frame, run_sync

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, and how much of it is done and in total."""

NOT_SELF_SCORED: Final = (
    "self-accuracy is left out: the model was trained with masking alone, and its predictions at "
    "visible tokens are not trained"
)
_CHUNK = 16  # samples that are generated together, with their traces
_RUN_KEYS = ("task", "forward_passes", "seconds", "sample_index")  # that samples do not share
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
_MAUVE_RULE: Final = (
    "mauve-text with its default settings, seed 25; features are the grader's last hidden state at "
    "the last token of a truncated text. Depends on the grader and on both numbers of texts."
)
_FEWEST: Final = 4


def evaluate_model_samples(
    pipe: Pipeline,
    num_samples: int = 64,
    *,
    length: int | None = None,
    seed: int = 0,
    grader: CausalScorer | None = None,
    reference: Sequence[str] = (),
    metric: str | Component | None = None,
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
        options=options or pipe.sampling,
        on_progress=on_progress,
        **changes,
    )
    return evaluate_samples(
        samples,
        grader=grader,
        reference=reference,
        metric=metric,
        manifest=manifest,
        on_progress=on_progress,
    )


def evaluate_samples(
    samples: Sequence[TextSample | str],
    *,
    grader: CausalScorer | None = None,
    tokenizer: Tokenizer | None = None,
    reference: Sequence[str] = (),
    metric: str | Component | None = None,
    manifest: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> EvaluationResult:
    """Measure samples of any system: texts, with their tokens if they are known.

    Generative perplexity needs a grader; so does MAUVE, which compares with human `reference`
    texts. Entropy, distinct-n and repetition are of tokens of `tokenizer`, by default the samples'
    own tokens, otherwise the grader's. `metric`, a name or a `gidd.component`, is one more number
    of each sample, reported as their mean. `manifest` is added to the manifest of the result.
    """
    text_samples = [TextSample(s) if isinstance(s, str) else s for s in samples]
    if not text_samples:
        raise DataError("there must be at least one sample to measure, got none.")
    if reference and grader is None:
        raise ConfigError("reference texts are for MAUVE, which needs a grader. Name a grader.")
    texts = [sample.text for sample in text_samples]
    sample_tokens = [list(sample.tokens) for sample in text_samples if sample.tokens is not None]
    if tokenizer is not None:
        tokens = tokenizer.encode_batch(texts)
        rule = f"texts encoded by tokenizer {tokenizer.fingerprint}"
    elif len(sample_tokens) == len(text_samples):
        tokens, rule = sample_tokens, "the tokens that were sampled"
    elif grader is not None:
        tokens = grader.encode(texts)
        rule = "texts encoded by the grader's tokenizer, not truncated"
    else:
        fix = "Name a tokenizer or a grader, e.g. --tokenizer gpt2."
        raise ConfigError(f"entropy needs the tokens of every sample. {fix}")
    on_text = on_progress and partial(on_progress, "scoring")
    scores = None if grader is None else grader.score(texts, on_text)
    measurements = _measure(text_samples, tokens, scores)
    described: dict[str, Any] = {
        "gidd": gidd.__version__,
        "torch": str(torch.__version__),
        "num_samples": len(text_samples),
        **(manifest or {}),
        "texts_sha256": texts_digest(texts),
        "grader": grader and grader.manifest,
        "metric_tokens": rule,
        "definitions": _DEFINITIONS,
    }
    if grader is not None and reference:
        measurements["mauve"] = mauve_score(grader, texts, reference)
        described["mauve"] = {"rule": _MAUVE_RULE, "num_reference": len(reference)}
        described["mauve"]["reference_sha256"] = texts_digest(reference)
    columns = list[dict[str, Any]]([{} for _ in text_samples])
    if metric is not None:
        chosen = component("metric", metric) if isinstance(metric, str) else metric
        if chosen.name in measurements:
            raise ConfigError(f"metric {chosen.name} is always reported. Leave it out.")
        call = chosen.build()
        values = [float(call(text=x, tokens=y)) for x, y in zip(texts, tokens, strict=True)]
        measurements[chosen.name] = mean_of_defined(values)
        described["metric"] = to_plain(chosen)
        columns = [{chosen.name: value} for value in values]
    graded, rows = scores or [None] * len(text_samples), list[dict[str, Any]]()
    samples_with_scores = zip(text_samples, tokens, graded, columns, strict=True)
    for sample, sequence, score, column in samples_with_scores:
        row: dict[str, Any] = {
            "id": len(rows),
            "tokens": len(sequence),
            "gen_nll": score.nll / score.num_tokens if score and score.num_tokens else None,
            "grader_tokens": score and score.num_tokens,
            "entropy": sequence_entropy(sequence),
            "self_accuracy": sample.self_accuracy,
            "text": sample.text,
        }
        rows.append(row | column)
    return EvaluationResult(
        kind="samples", measurements=measurements, manifest=described, rows=rows
    )


def _measure(
    samples: Sequence[TextSample],
    tokens: Sequence[Sequence[int]],
    scores: Sequence[GradedText] | None,
) -> dict[str, Measurement]:
    measurements, total = dict[str, Measurement](), len(samples)
    if scores is not None:
        measurements["gen_ppl"] = generative_perplexity(scores)
    measurements["entropy"] = mean_of_defined(map(sequence_entropy, tokens))
    for name, field in (("self_accuracy", "self_accuracy"), ("nfe", "forward_passes")):
        values = [getattr(sample, field) for sample in samples]
        if any(value is not None for value in values):
            measurements[name] = mean_of_defined(values)
    for n in _DISTINCT:
        measurements[f"distinct_{n}"] = Measurement(distinct_ngrams(tokens, n), None, total)
    repeated = mean_of_defined([repetition(sequence, _REPETITION) for sequence in tokens])
    measurements[f"repetition_{_REPETITION}"] = repeated
    measurements["tokens"] = Measurement.mean([float(len(sequence)) for sequence in tokens])
    counts = {"empty": [not sequence for sequence in tokens]}
    if scores is not None:
        counts["unscored"] = [not score.num_tokens for score in scores]
        counts["truncated"] = [score.is_truncated for score in scores]
    return measurements | {n: Measurement(float(sum(v)), None, total) for n, v in counts.items()}


def generate_text_samples(
    pipe: Pipeline,
    num_samples: int,
    *,
    length: int | None = None,
    seed: int = 0,
    options: SamplingOptions,
    on_progress: OnProgress | None = None,
    **changes: Any,
) -> tuple[list[TextSample], dict[str, Any]]:
    """Return samples with their self-accuracy, and the manifest that they share."""
    samples, manifest = list[TextSample](), dict[str, Any]()
    on_step = on_progress and partial(count_steps, partial(on_progress, "sampling"), num_samples)
    for start in range(0, num_samples, _CHUNK):
        generations = pipe.generate(
            n=min(_CHUNK, num_samples - start),
            length=length,
            seed=seed,
            start_index=start,
            on_step=on_step(start) if on_step else None,
            options=options,
            **changes,
        )
        accuracies = self_accuracies(pipe, generations)
        for made, accuracy in zip(generations, accuracies, strict=True):
            samples.append(TextSample(made.text, made.tokens, accuracy, made.forward_passes))
        if not manifest:
            shared = generations[0].manifest.items()
            manifest = {name: value for name, value in shared if name not in _RUN_KEYS}
    if not pipe.can_score_visible_tokens:
        manifest["notes"] = [*manifest["notes"], NOT_SELF_SCORED]
    return samples, manifest | {"num_samples": num_samples}


def self_accuracies(pipe: Pipeline, samples: Sequence[Generation]) -> list[float | None]:
    """Return the self-accuracy of each sample (Sec. 5.4) by one forward pass each.

    Tokens that were given, and those after end-of-text, are not counted. None for samples without
    tokens to count, and for models trained with masking alone.
    """
    if not pipe.can_score_visible_tokens:
        return [None] * len(samples)
    values: list[float | None] = []
    frames = clean_frames(pipe, [sample.trace.tokens for sample in samples])
    for sample, frame in zip(samples, frames, strict=True):
        free = ~torch.tensor(sample.trace.protected, device=frame.tokens.device)
        free[len(sample.tokens) :] = False
        values.append(frame.self_accuracy(free) if bool(free.any()) else None)
    return values


def clean_frames(pipe: Pipeline, sequences: Iterable[Sequence[int]]) -> Sequence[Frame]:
    """Return the model's predictions of finished sequences, by one forward pass each."""
    requests = [scoring_request(tokens) for tokens in sequences]
    return run_sync(predict_frames(pipe.session, requests))


def count_steps(
    report: Callable[[int, int], object], num_samples: int, start: int = 0
) -> Callable[[Sequence[Event]], None]:
    """Return a callback of the sampler that reports the steps of all samples, done and in total.

    Steps that were skipped count as done, and so do those of the first `start` samples.
    """
    done: dict[tuple[int, int], int] = {}

    def count(events: Sequence[Event]) -> None:
        for event in events:
            request = event.request
            done[request.seed, request.sample_index] = event.steps_done
        most = max((event.num_steps for event in events), default=0)
        report(start * most + sum(done.values()), num_samples * most)

    return count


def mauve_score(
    grader: CausalScorer, samples: Sequence[str], reference: Sequence[str]
) -> Measurement:
    """Return MAUVE of samples and reference texts, in (0, 1]; 1 if they cannot be told apart."""
    library = optional_package("mauve", "mauve")
    features: list[Any] = []
    for name, texts in (("samples", samples), ("reference texts", reference)):
        filled = [text for text in texts if text]
        if len(filled) < _FEWEST:
            raise DataError(f"MAUVE needs {_FEWEST} or more {name} with text, got {len(filled)}.")
        features.append(grader.features(filled))
    with warnings.catch_warnings():  # of k-means about few points
        warnings.simplefilter("ignore")
        p, q = features
        result = library.compute_mauve(p_features=p, q_features=q, verbose=False)
    return Measurement(float(result.mauve), None, min(map(len, features)))


def mean_of_defined(values: Iterable[float | None]) -> Measurement:
    """Return the mean of independent values, without those that are NaN or None."""
    return Measurement.mean([v for v in values if v is not None and not math.isnan(v)])
