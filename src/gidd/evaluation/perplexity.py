"""Likelihood of texts under diffusion and autoregressive models: NELBO, perplexity, bits per byte.

result = evaluate_perplexity(gidd.from_pretrained("models/nano"), ["sotu"])
result.measurements["ppl"]
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from gidd.common.config.allowed import require_allowed
from gidd.diffusion.likelihood import RankGroup, ScoredText
from gidd.errors import ConfigError, DataError
from gidd.evaluation.options import PerplexityOptions
from gidd.evaluation.results import RATIOS, EvaluationResult, Measurement
from gidd.evaluation.texts import EncodedCorpus, EncodedDocument, encode_corpus, source_names
from gidd.evaluation.window_scores import CausalModel, OnForwardPasses, WindowScores, score_windows
from gidd.pipeline import Pipeline
from gidd.pipeline.score import ScoringWindow, scoring_windows
from gidd.pipeline.text import TokenDecoder

MAX_DEFAULT_LENGTH: Final = 2048
"""Longest default window: some contexts are longer than memory allows."""

_Row = dict[str, Any]
_Windows = Sequence[tuple[int, ScoringWindow]]  # number of the document, and the window
ScoreFunction = Callable[[Sequence[ScoredText], OnForwardPasses | None], WindowScores]
"""Scores windows, given a callback for the forward passes done and expected."""

_NOTHING: Final = "no token can be scored: every document is empty or too short."
_DEFAULTS: Final = PerplexityOptions()
_LIKELIHOODS: Final = ("nelbo", "ppl", "bits_per_token", "bits_per_byte")

_DISJOINT: Final = (
    "documents are split into disjoint windows of at most {length} tokens, scored independently "
    "and added up; every token is scored once"
)
_STRIDED: Final = (
    "the first window of a document scores its first {length} tokens; each next window scores the "
    "next {stride} tokens given the {given} before them, which are clean (diffusion) or context "
    "(autoregressive); every token is scored once"
)
_END_RULES: Final = ("not scored", "appended to each document and scored; it has no bytes")
_RULES: Final = {
    "byte_rule": "UTF-8 bytes of the scored text",
    "empty_documents": "documents without a scored token are left out",
    "errors": "nelbo, ppl, bits_per_token, bits_per_byte: Monte Carlo error for these texts; "
    "*_corpus: standard error with the documents (of one document: its windows) as a random sample "
    "of a corpus, by the delta method for a ratio of sums, at least the Monte Carlo error; too "
    "small if few documents have most of the tokens",
}


def evaluate_perplexity(
    model: Pipeline | CausalModel,
    sources: Sequence[str],
    options: PerplexityOptions = _DEFAULTS,
    *,
    ranks: RankGroup | None = None,
    score: ScoreFunction | None = None,
    on_forward_passes: OnForwardPasses | None = None,
) -> EvaluationResult:
    """Measure the likelihood of texts (see `texts.documents`); the rows are the documents.

    The NELBO of a diffusion model is estimated; the likelihood of an autoregressive one is exact.
    `ranks` share the work, and all get the same result. `score` scores the windows elsewhere, such
    as `window_scores.score_on_ray`.
    """
    start = time.perf_counter()
    require_allowed(options)
    length, stride = window_length(options.length, options.stride, model.context)
    end = model.end_id if isinstance(model, CausalModel) else model.tokenizer.end_id
    if options.end_of_text and end is None:
        raise ConfigError("end_of_text must be off: the tokenizer has no end-of-text token.")
    corpus = encode_corpus(
        sources,
        model.decoder,
        max_documents=options.max_documents,
        last=[end] if options.end_of_text and end is not None else (),
    )
    windows = [
        (i, window)
        for i, document in enumerate(corpus.documents)
        for window in _windows(document, length, stride)
    ]
    texts = [
        window.text(corpus.documents[i].tokens, index, corpus.documents[i].given)
        for index, (i, window) in enumerate(windows)
    ]
    if not texts:
        raise DataError(_NOTHING)
    score = score or (lambda texts, done: score_windows(model, texts, options, ranks, done))
    scores = score(texts, on_forward_passes)
    rows = _document_rows(corpus, windows, texts, scores, model.decoder)
    if not rows:
        raise DataError(_NOTHING)
    manifest = scores.manifest | {
        "sources": source_names(sources),
        "texts_sha256": corpus.sha256,
        "max_documents": options.max_documents,
        "num_documents": len(rows),
        "skipped_documents": corpus.num_skipped + len(corpus.documents) - len(rows),
        "tokens": sum(row["tokens"] for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
        "num_windows": len(windows),
        "length": length,
        "stride": stride,
        "windows": (_DISJOINT if stride == length else _STRIDED).format(
            length=length, stride=stride, given=length - stride
        ),
        **_RULES,
        "end_of_text": _END_RULES[options.end_of_text],
        "forward_passes": scores.forward_passes,
        "seconds": round(time.perf_counter() - start, 3),
    }
    units = rows
    if len(rows) == 1:  # the windows of a single document, each with its part of the bytes
        ratio = rows[0]["bytes"] / rows[0]["tokens"]
        pairs = zip(scores.nelbo.tolist(), scores.num_scored.tolist(), strict=True)
        units = [{"nelbo": nelbo, "tokens": n, "bytes": n * ratio} for nelbo, n in pairs if n]
    numbers = _measure(rows, units, scores)
    return EvaluationResult(kind="ppl", measurements=numbers, manifest=manifest, rows=rows)


def _windows(document: EncodedDocument, length: int, stride: int) -> Iterable[ScoringWindow]:
    """Return the windows of a text, or the last tokens of a chat, as in training."""
    size = len(document.tokens)
    if document.given is None:
        return scoring_windows(size, length, stride)
    return [ScoringWindow(max(0, size - length), size, 0)]


def _document_rows(
    corpus: EncodedCorpus,
    windows: _Windows,
    texts: Sequence[ScoredText],
    scores: WindowScores,
    decoder: TokenDecoder,
) -> list[_Row]:
    """Return a row per document that has a scored token."""
    owner, count = torch.tensor([document for document, _ in windows]), len(corpus.documents)

    def by_document(values: Tensor) -> list[Any]:
        return values.new_zeros(count).index_add(0, owner, values).tolist()

    nelbo, tokens = by_document(scores.nelbo), by_document(scores.num_scored)
    errors: list[float | None] = [None] * count
    if scores.standard_error is not None:
        errors = [math.sqrt(v) for v in by_document(scores.standard_error.square())]
    num_bytes = [document.num_bytes for document in corpus.documents]
    numbers = scores.num_scored.tolist()
    for (i, window), text, num_scored in zip(windows, texts, numbers, strict=True):
        if num_scored < text.num_scored:
            # an autoregressive model could not score the first token
            first = int(corpus.documents[i].tokens[window.start])
            num_bytes[i] -= len(decoder.decode_one(first).encode())
    ids, names = [document.id for document in corpus.documents], ("tokens", "bytes", "nelbo")
    columns = zip(ids, tokens, num_bytes, nelbo, errors, strict=True)
    rows = [dict(zip(("id", *names, "standard_error"), row, strict=True)) for row in columns]
    return [row for row in rows if row["tokens"]]


def _measure(
    rows: Sequence[_Row], units: Sequence[_Row], scores: WindowScores
) -> dict[str, Measurement]:
    """Return likelihoods with Monte Carlo errors, the ends, and errors over `units`."""
    tokens, num_bytes = (sum(row[name] for row in rows) for name in ("tokens", "bytes"))
    values = {name: RATIOS[name].over(rows).value for name in _LIKELIHOODS}
    per_nat = {  # change of each measurement per nat of the total, to first order
        "nelbo": 1 / tokens,
        "ppl": values["ppl"] / tokens,
        "bits_per_token": 1 / (tokens * math.log(2)),
        "bits_per_byte": 1 / (num_bytes * math.log(2)) if num_bytes else math.nan,
    }
    error, draws = scores.standard_error, len(scores.nelbo) * scores.repeats
    total = math.nan if error is None else float(error.norm())
    measured = {
        name: Measurement(value, None if error is None else total * per_nat[name], draws)
        for name, value in values.items()
    }
    if scores.reconstruction is not None and scores.prior is not None:
        spread = float(scores.reconstruction.std(0).norm()) / math.sqrt(scores.repeats)
        middle = float(scores.reconstruction.mean(0).sum())
        # equal draws do not show the error: noise is rare at the smallest time
        measured["reconstruction"] = Measurement(middle / tokens, spread / tokens or None, draws)
        measured["prior"] = Measurement(float(scores.prior.sum()) / tokens)
    for name in ("nelbo", "ppl", "bits_per_byte"):
        over, monte_carlo = RATIOS[name].over(units).standard_error, measured[name].standard_error
        if over is not None and monte_carlo is not None:
            # it contains the Monte Carlo error, which few units may not show
            over = max(over, monte_carlo)
        measured[f"{name}_corpus"] = Measurement(values[name], over, len(units))
    return measured


def window_length(length: int | None, stride: int | None, context: int) -> tuple[int, int]:
    """Return length and stride of windows; raise if the model has a smaller context."""
    chosen = min(context, MAX_DEFAULT_LENGTH) if length is None else length
    if chosen > context:
        got = f"got {chosen:,}"
        raise ConfigError(f"length must be at most the model's context {context:,}, {got}.")
    if stride is not None and stride > chosen:
        raise ConfigError(f"stride must be at most the length {chosen:,}, got {stride:,}.")
    return chosen, stride or chosen
