"""Recovery: how much of known errors self-correction finds and fixes, and what it damages.

recovery(pipe, ["sotu"], RecoveryOptions(corruption=("tokens", "letters"), rate=(0.02, 0.1)))

A unit is a token or, for wrong letters, a word. Of the units made wrong, those that correction
changes are found, and those it makes equal to the original are restored. Of the units left right,
those it changes are damaged. Fractions are ratios of sums over all texts; their standard errors
treat documents as independent, not the texts of one document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from typing import Any, NamedTuple, final

from gidd.common.ratios import ratio_of_sums
from gidd.errors import ConfigError
from gidd.evaluation.correction.correction_settings import CORRUPTIONS, RecoveryOptions
from gidd.evaluation.correction.corruption import CorruptedText, Corruption
from gidd.evaluation.model_manifest import describe_pipeline
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.texts import Document, documents, source_names, texts_digest
from gidd.pipeline import Pipeline
from gidd.pipeline.correct import Corrector, protected_tokens
from gidd.pipeline.options import CorrectionOptions
from gidd.pipeline.text import TokenTexts
from gidd.sampling import Request

OFF = "off"
"""The setting without correction: its errors are those that were added."""

_TEXTS_PER_BATCH = 16
_DEFINITIONS = {
    "found": "wrong units that were changed / wrong units",
    "restored": "wrong units that became the original again / wrong units",
    "damaged": "right units that were changed / right units",
    "wrong_before": "wrong units / units, before correction",
    "wrong_after": "units that differ from the original / units, after correction",
    "nfe": "mean number of forward passes per text",
    "standard_errors": "of ratios of sums, over documents",
}

OnTexts = Callable[[int, int], None]
"""Called with the number of corrected texts, and of all texts to correct."""


@final
@dataclass
class _Counter:
    """Counts texts and reports the count."""

    total: int
    on_texts: OnTexts | None
    done: int = 0

    def __call__(self, count: int) -> None:
        self.done += count
        if self.on_texts is not None:
            self.on_texts(self.done, self.total)


class Excerpt(NamedTuple):
    """Consecutive tokens of a document."""

    document: int
    tokens: tuple[int, ...]


class Corrected(NamedTuple):
    """The result of correction on one text."""

    tokens: tuple[int, ...]
    calls: int


class UnitCounts(NamedTuple):
    """Numbers of units of one text."""

    wrong: int
    found: int
    restored: int
    right: int
    damaged: int
    wrong_after: int

    @classmethod
    def of(
        cls, clean: Sequence[object], given: Sequence[object], corrected: Sequence[object]
    ) -> UnitCounts:
        """Compare units before errors, with errors, and after correction."""
        units = list(zip(clean, given, corrected, strict=True))
        return cls(
            wrong=sum(a != b for a, b, _ in units),
            found=sum(a != b != c for a, b, c in units),
            restored=sum(a != b and a == c for a, b, c in units),
            right=sum(a == b for a, b, _ in units),
            damaged=sum(a == b != c for a, b, c in units),
            wrong_after=sum(a != c for a, _, c in units),
        )


def recovery(
    pipe: Pipeline,
    sources: Sequence[str],
    options: RecoveryOptions | None = None,
    on_texts: OnTexts | None = None,
) -> EvaluationResult:
    """Add errors to the texts of `sources`, correct them, and count what was recovered."""
    options = options or RecoveryOptions()
    if problems := list(options.problems()):
        raise ConfigError("\n".join(problems))
    if not pipe.can_score_visible_tokens:
        raise ConfigError(
            "recovery needs a model trained with uniform noise (p_uniform > 0), got one trained "
            "with masking alone, which cannot score visible tokens. Evaluate another model."
        )
    length = options.length or pipe.context
    if length > pipe.context:
        raise ConfigError(
            f"length must be at most the model's context of {pipe.context} tokens, got {length}."
        )
    read = documents(sources, tokenizer=pipe.tokenizer, max_documents=options.num_texts)
    excerpts = list(take_excerpts(pipe, list(read), length, options.num_texts))
    settings = settings_of(options)
    num_cases = len(options.corruption) * len(options.rate) * len(settings)
    count = _Counter(num_cases * len(excerpts), on_texts)
    rows: list[dict[str, Any]] = []
    numbers: dict[str, Measurement] = {}
    for kind, rate in product(options.corruption, options.rate):
        corruption = Corruption(kind, rate, pipe.token_texts, pipe.context, options.seed)
        texts = [corruption(excerpt.tokens) for excerpt in excerpts]
        for name, setting in settings.items():
            corrected = correct_texts(pipe, texts, setting, options.seed, count)
            found = recovery_rates(pipe.token_texts, excerpts, texts, corrected)
            rows.append({"corruption": kind, "rate": rate, "setting": name} | _columns(found))
            label = f"{kind} {rate:g}, {name if name == OFF else f'error_rate {name}'}"
            numbers |= {f"{label}: {key}": value for key, value in found.items()}
    return EvaluationResult(
        kind="recovery",
        measurements=numbers,
        manifest=_manifest(pipe, sources, options, excerpts, length),
        rows=rows,
    )


def settings_of(options: RecoveryOptions) -> dict[str, CorrectionOptions]:
    """Return the settings of self-correction by name, no correction first."""
    settings = {OFF: replace(options.correction, calls=0)}
    for rate in options.error_rate:
        value = None if isinstance(rate, str) else rate
        settings[f"{rate}"] = replace(options.correction, error_rate=value)
    return settings


def take_excerpts(
    pipe: Pipeline, texts: Sequence[Document], length: int, num_texts: int
) -> Iterator[Excerpt]:
    """Yield excerpts of `length` tokens, first one of every document, then a second one, and so on.

    A document shorter than that is one excerpt; the incomplete last one of others is left out.
    """
    cut: list[list[Excerpt]] = []
    for number, document in enumerate(texts):
        tokens = document.tokens or pipe.token_texts.encode(document.text, document.id)
        starts = range(0, max(1, len(tokens) - length + 1), length)
        cut.append([Excerpt(number, tuple(tokens[s : s + length])) for s in starts][:num_texts])
    in_turn = (excerpt for turn in zip_longest(*cut) for excerpt in turn if excerpt is not None)
    for _, excerpt in zip(range(num_texts), in_turn, strict=False):
        yield excerpt


def correct_texts(
    pipe: Pipeline,
    texts: Sequence[CorruptedText],
    options: CorrectionOptions,
    seed: int,
    on_corrected: Callable[[int], None] = lambda _count: None,
) -> list[Corrected]:
    """Correct texts that fit into the context, in batches, each as `pipe.correct` does it.

    The number of a text is its sample index, so each has its own random numbers.
    """
    plan, token_texts = options.plan(), pipe.token_texts
    corrector = Corrector(pipe.engine, token_texts, plan, pipe.context, seed, False, None)
    requests = [
        Request(
            tokens=text.tokens,
            plan=plan,
            seed=seed,
            sample_index=number,
            protected=tuple(protected_tokens(token_texts, text.tokens, ())),
            processors=corrector.processors,
        )
        for number, text in enumerate(texts)
    ]
    corrected: list[Corrected] = []
    for start in range(0, len(requests), _TEXTS_PER_BATCH):
        samples = pipe.engine.sample(requests[start : start + _TEXTS_PER_BATCH])
        corrected += [Corrected(sample.tokens, sample.calls) for sample in samples]
        on_corrected(len(samples))
    return corrected


def recovery_rates(
    token_texts: TokenTexts,
    excerpts: Sequence[Excerpt],
    texts: Sequence[CorruptedText],
    corrected: Sequence[Corrected],
) -> dict[str, Measurement]:
    """Return all rates, with standard errors over documents."""
    totals: dict[int, list[int]] = {}
    for excerpt, text, result in zip(excerpts, texts, corrected, strict=True):
        given = text.units(text.tokens, token_texts)
        counts = UnitCounts.of(text.clean, given, text.units(result.tokens, token_texts))
        sums = totals.setdefault(excerpt.document, [0] * (len(counts) + 2))
        for k, value in enumerate((*counts, result.calls, 1)):
            sums[k] += value
    wrong, found, restored, right, damaged, after, calls, ones = zip(*totals.values(), strict=True)
    units = [a + b for a, b in zip(wrong, right, strict=True)]
    return {
        "found": _ratio(found, wrong),
        "restored": _ratio(restored, wrong),
        "damaged": _ratio(damaged, right),
        "wrong_before": _ratio(wrong, units),
        "wrong_after": _ratio(after, units),
        "nfe": _ratio(calls, ones),
    }


def _ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Measurement:
    return Measurement(*ratio_of_sums(numerators, denominators), len(numerators))


def _columns(found: dict[str, Measurement]) -> dict[str, float | None]:
    columns: dict[str, float | None] = {}
    for name, measurement in found.items():
        columns |= {name: measurement.value, f"{name}_se": measurement.standard_error}
    return columns


def _manifest(
    pipe: Pipeline,
    sources: Sequence[str],
    options: RecoveryOptions,
    excerpts: Sequence[Excerpt],
    length: int,
) -> dict[str, Any]:
    clean = ["".join(pipe.token_texts(excerpt.tokens)) for excerpt in excerpts]
    return {
        **describe_pipeline(pipe),
        "sources": source_names(sources),
        "texts_sha256": texts_digest(clean),
        "num_texts": len(excerpts),
        "num_documents": len({excerpt.document for excerpt in excerpts}),
        "length": length,
        "corruption": {kind: CORRUPTIONS[kind] for kind in options.corruption},
        "rate": list(options.rate),
        "error_rate": list(options.error_rate),
        "seed": options.seed,
        "correction": {
            name: getattr(options.correction, name)
            for name in vars(options.correction)
            if name != "error_rate"
        },
        "definitions": _DEFINITIONS,
    }
