"""The page of `gidd reproduce laptop`: tables from result files, and a verdict for each claim."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from gidd.evaluation.results import Measurement
from gidd.evaluation.significance import (
    SIGNIFICANCE_LEVEL,
    Difference,
    mean_difference,
    unpaired_difference,
)

Json = dict[str, Any]
Results = dict[str, Json]

HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "too small to tell", "not run"
SOURCES: Final = {"sentences-": "exact source", "": "text"}
"""Beginnings of the names of runs, and what they were trained on."""

_SAME, _FEW_STEPS, _CORRELATED = 0.02, "8", 0.2
_PAPER_PPL = {
    "mdm": 24.37, "gidd-0.0-elbo": 24.36, "gidd-0.1-elbo": 26.88, "gidd-0.2-elbo": 28.22,
    "gidd-0.0-clamp": 23.23, "gidd-0.1-clamp": 25.09, "gidd-0.2-clamp": 26.40,
    "gidd-0.0-dynamic": 23.24, "gidd-0.1-dynamic": 23.90, "gidd-0.2-dynamic": 24.64,
}  # fmt: skip
"""Validation perplexities of the paper's small models (Tab. 2)."""


class Claim(NamedTuple):
    """A claim of the paper, what was measured here, and whether it holds."""

    text: str
    source: str
    paper: str
    ours: str
    verdict: str


def difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Return b - a over the same items."""
    return mean_difference([y - x for x, y in zip(a, b, strict=True)])


def verdict(differences: Sequence[Difference]) -> str:
    """Tell whether all differences are above zero, significantly."""
    if not differences:
        return NOT_RUN
    if any(_is_sure(one) and one.value < 0 for one in differences):
        return FAILS
    return HOLDS if all(_is_sure(one) for one in differences) else OPEN


def _is_sure(one: Difference) -> bool:
    return one.p_value is not None and one.p_value < SIGNIFICANCE_LEVEL


def _all_seeds(results: Results, *names: str) -> list[list[Json]]:
    """Return the results of some runs, for each seed that all of them have."""
    seeds = ([results.get(name + suffix) for name in names] for suffix in ("", "-seed-1"))
    return [[one for one in row if one] for row in seeds if all(row)]


def _show(differences: Sequence[Difference]) -> str:
    return "; ".join(f"{one.value:+.3f} ± {one.standard_error or 0:.3f}" for one in differences)


def claims(results: Results, first: str) -> list[Claim]:
    """Return the claims of the paper's abstract and section 5 for runs named `first`..."""

    def windows(a: str, b: str) -> list[Difference]:
        rows = _all_seeds(results, first + a, first + b)
        return [difference(x["windows"], y["windows"]) for x, y in rows]

    found: list[Claim] = []
    source = SOURCES[first]

    def add(text: str, paper: str, ours: str, state: str) -> None:
        found.append(Claim(text, source, paper, "-" if state == NOT_RUN else ours, state))

    same = windows("mdm", "gidd-0.0-elbo")
    add(
        "1. GIDD with p_u = 0 is masked diffusion: the same likelihood",
        "PPL 24.37 and 24.36",
        f"nats per token, GIDD less MDM: {_show(same)}",
        (HOLDS if all(abs(one.value) < _SAME for one in same) else FAILS) if same else NOT_RUN,
    )
    for better, worse, paper in (
        ("dynamic", "clamp", "PPL 23.90 and 25.09 (p_u = 0.1)"),
        ("clamp", "elbo", "PPL 25.09 and 26.88 (p_u = 0.1)"),
    ):
        gains = [
            gain
            for p in ("0.1", "0.2")
            for gain in windows(f"gidd-{p}-{better}", f"gidd-{p}-{worse}")
        ]
        add(
            f"2. With p_u > 0, the weights {better} are better than {worse}",
            paper,
            f"nats per token, {worse} less {better}: {_show(gains)}",
            verdict(gains),
        )
    few = [
        difference(*(quality(one, _FEW_STEPS) for one in pair))
        for pair in _all_seeds(results, f"{first}gidd-0.0-dynamic", f"{first}gidd-0.1-dynamic")
    ]
    add(
        f"3. With few steps ({_FEW_STEPS} for 64 tokens), hybrid models write better text",
        "generative PPL 387 and 904 at 32 steps",
        f"log-likelihood per token, p_u = 0.1 less p_u = 0: {_show(few)}",
        verdict(few),
    )
    for p, paper in (("0.1", "-"), ("0.2", "PPL 214 to 93"), ("0.0", "no gain")):
        rows = _all_seeds(results, f"{first}gidd-{p}-dynamic")
        gains = [correction_gain(row) for (row,) in rows]
        state = verdict(gains)
        if p == "0.0" and gains:
            state = FAILS if state == HOLDS else HOLDS
        says = "does not raise" if p == "0.0" else "raises"
        add(
            f"4. Self-correction {says} the quality of samples with p_u = {p}",
            paper,
            f"log-likelihood per token, after less before: {_show(gains)}",
            state,
        )
    correlations = [
        (p, correlation)
        for p in ("0.1", "0.2")
        for (row,) in _all_seeds(results, f"{first}gidd-{p}-dynamic")
        if (correlation := self_accuracy_correlation(row)) is not None
    ]
    add(
        "5. Self-accuracy tracks the quality of samples of hybrid models",
        "correlated",
        "correlation of self-accuracy and log-likelihood: "
        + ", ".join(f"{c:+.2f} (p_u = {p})" for p, c in correlations),
        (HOLDS if all(c > _CORRELATED for _, c in correlations) else FAILS)
        if correlations
        else NOT_RUN,
    )
    names = [
        f"{first}gidd-{p}-dynamic-{size}" for p in ("0.0", "0.2") for size in ("small", "large")
    ]
    scaling: list[Difference] = []
    if all(name in results for name in names):
        masks_small, masks_large, small, large = (results[name]["windows"] for name in names)
        masks = [x - y for x, y in zip(masks_small, masks_large, strict=True)]
        scaling = [difference(masks, [x - y for x, y in zip(small, large, strict=True)])]
    state = verdict(scaling)
    add(
        "6. Uniform noise scales at least as well as masks",
        "a steeper slope with p_u = 0.2",
        f"gain of the large over the small model, p_u = 0.2 less p_u = 0: {_show(scaling)}",
        HOLDS if state == OPEN and scaling[0].value > 0 else state,
    )
    return found


def quality(row: Json, steps: str) -> list[float]:
    """Return the log-likelihood per token of each sample: the true one, or the grader's."""
    if "sentences" in row:
        return row["sentences"]["steps"][steps]["log_probs"]
    return [-value for value in row["samples"][steps]["own"]["gen_nll"]]


def correction_gain(row: Json) -> Difference:
    """Return the gain in log-likelihood per token of samples by self-correction."""
    if "sentences" in row:
        return difference(*(row["sentences"][key]["log_probs"] for key in ("before", "after")))
    before, *rest = (one for one in row["correction"] if one["temperature"] == 0.1)
    logs = [
        Measurement(-math.log(one["gen_ppl"]), one["gen_ppl_se"] / one["gen_ppl"], 0)
        for one in (before, rest[-1])
    ]
    return unpaired_difference(*logs)


def self_accuracy_correlation(row: Json) -> float | None:
    """Return the correlation of self-accuracy and quality over samples of all numbers of steps."""
    parts = row.get("sentences", {}).get("steps") or row.get("samples", {})
    pairs = [
        pair
        for steps, part in parts.items()
        for pair in zip(
            (part if "sentences" in row else part["own"])["self_accuracies"],
            quality(row, steps),
            strict=True,
        )
        if None not in pair
    ]
    if len(pairs) < 8:
        return None
    x, y = zip(*pairs, strict=True)
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in pairs)
    norm = math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))
    return products / norm if norm else None


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _number(value: Json | None, transform: Callable[[float], float] = float) -> str:
    if value is None or value["value"] is None:
        return "-"
    return f"{transform(value['value']):.3g}"


def write_page(results: Results, command: str) -> str:
    """Return the page in Markdown."""
    done = [claim for first in SOURCES for claim in claims(results, first)]
    run = {claim.text for claim in done if claim.verdict != NOT_RUN}
    shown = [claim for claim in done if claim.verdict != NOT_RUN or claim.text not in run]
    order = sorted(shown, key=lambda claim: claim.text[:1])
    hours = sum(row["train_seconds"] + row.get("measure_seconds", 0) for row in results.values())
    lines = ["# Results", ""]
    lines += [
        "The claims of the paper, measured with models that a CPU trains in minutes, on an exact "
        "source (`sentences`, whose true likelihood grades samples) and on text (graded by a "
        "larger autoregressive model of the same corpus).",
        "",
        f"Written by `{command}` from its {len(results)} result files; {hours / 3600:.1f} hours of "
        "CPU time. Differences are of the same held-out windows or samples, ± standard errors, one "
        "number per seed; a claim holds if all have its sign at p < 0.05.",
        "",
        "## Claims",
        "",
    ]
    lines += _table(("claim", "on", "the paper", "here", "verdict"), order)
    for first, source in SOURCES.items():
        own = {name: row for name, row in results.items() if _source_of(name) == first}
        lines += [f"## Likelihood, {source}", ""]
        rows = [
            (
                name,
                _number(row["nats_per_token"]),
                _number(row["nats_per_token"], math.exp),
                str(_PAPER_PPL.get(name.removeprefix(first), "-")),
                f"{row['train_seconds'] / 60:.1f}",
            )
            for name, row in own.items()
        ]
        header = ("model", "nats per token", "PPL", "PPL in the paper", "CPU minutes")
        lines += _table(header, rows)
    return "\n".join([*lines, *_text_samples(results), *_sentence_samples(results)])


def _source_of(name: str) -> str:
    return "sentences-" if name.startswith("sentences-") else ""


def _text_samples(results: Results) -> list[str]:
    lines = ["## Samples of text by denoising steps", ""]
    rows = [
        (
            name,
            steps,
            *(_number(measured["own"].get(key)) for key in ("gen_ppl", "entropy", "self_accuracy")),
            _number(measured.get("second", {}).get("gen_ppl")),
        )
        for name, row in results.items()
        for steps, measured in row.get("samples", {}).items()
    ]
    header = ("model", "steps", "generative PPL", "entropy", "self-accuracy", "PPL by SmolLM2")
    lines += [*_table(header, rows), "## Self-correction of text", ""]
    keys = ("temperature", "forward_passes", "changed_tokens", "gen_ppl", "entropy")
    keys += ("self_accuracy",)
    rows = [
        (name, *("-" if one.get(key) is None else f"{one[key]:.3g}" for key in keys))
        for name, row in results.items()
        for one in row.get("correction", ())
    ]
    return lines + _table(("model", *(key.replace("_", " ") for key in keys)), rows)


def _sentence_samples(results: Results) -> list[str]:
    lines = ["## Samples of the exact source", ""]
    rows: list[Sequence[str]] = []
    for name, row in results.items():
        if found := row.get("sentences"):
            parts = {"texts of the source": found.get("true")}
            parts |= {f"{steps} steps": one for steps, one in found["steps"].items()}
            parts["self-correction after 32 steps"] = found["after"]
            parts |= {"posterior corrector after 32 steps": found.get("posterior")}
            parts |= {f"64 passes: {kind}": one for kind, one in found["samplers"].items()}
            rows += [
                (name, kind, *(_number(one[key]) for key in ("log_prob", "entropy", "sums_right")))
                for kind, one in parts.items()
                if one is not None
            ]
    header = ("model", "samples", "log-likelihood per token", "entropy", "sums right")
    lines += _table(header, rows)
    lines += ["## Before and after", "", "The first sample of seed 0, self-corrected:", ""]
    for name, row in results.items():
        for before, after in row.get("sentences", {}).get("examples", [])[:1]:
            lines += [f"**{name}**: {_marked(before.split(), after.split())}", ""]
    return lines


def _marked(before: list[str], after: list[str]) -> str:
    """Return words with deleted and inserted ones marked."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    parts: list[str] = []
    for kind, start, end, new_start, new_end in matcher.get_opcodes():
        old, new = " ".join(before[start:end]), " ".join(after[new_start:new_end])
        if kind == "equal":
            parts.append(old)
        else:
            parts += [f"<del>{old}</del>"] * bool(old) + [f"<ins>{new}</ins>"] * bool(new)
    return " ".join(parts)
