"""The page of `gidd reproduce laptop`: tables from result files, and a verdict for each claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from gidd.evaluation.significance import Difference, mean_difference

Json = dict[str, Any]
Results = dict[str, Json]

HOLDS, FAILS, OPEN = "holds", "does not hold", "too small to tell"
_SIGNIFICANT: Final = 0.05
_NOT_RUN: Final = "not run"

_PAPER_PPL = {
    "mdm": 24.37, "gidd-0.0-elbo": 24.36, "gidd-0.1-elbo": 26.88, "gidd-0.2-elbo": 28.22,
    "gidd-0.0-clamp": 23.23, "gidd-0.1-clamp": 25.09, "gidd-0.2-clamp": 26.40,
    "gidd-0.0-dynamic": 23.24, "gidd-0.1-dynamic": 23.90, "gidd-0.2-dynamic": 24.64,
}  # fmt: skip
"""Validation perplexities of the paper's small models (Tab. 2)."""


class Claim(NamedTuple):
    """A claim of the paper, what was measured here, and whether it holds."""

    text: str
    paper: str
    ours: str
    verdict: str


def difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Return b - a over the same items."""
    return mean_difference([y - x for x, y in zip(a, b, strict=True)])


def verdict(differences: Iterable[Difference], *, is_above: bool) -> str:
    """Tell whether differences have the sign that a claim says, all of them significantly."""
    found = list(differences)
    if not found:
        return _NOT_RUN
    signs = [(one.value > 0) == is_above for one in found]
    sure = [one.p_value is not None and one.p_value < _SIGNIFICANT for one in found]
    if all(signs) and all(sure):
        return HOLDS
    return FAILS if any(s and not sign for s, sign in zip(sure, signs, strict=True)) else OPEN


def _both_seeds(results: Results, *names: str) -> list[list[Json]]:
    """Return the results of some runs, for each seed that all of them have."""
    seeds = ([results.get(name + suffix) for name in names] for suffix in ("", "-seed-1"))
    return [[one for one in row if one] for row in seeds if all(row)]


def _show(differences: Sequence[Difference]) -> str:
    return "; ".join(f"{one.value:+.3f} ± {one.standard_error or 0:.3f}" for one in differences)


def _windows(results: Results, a: str, b: str) -> list[Difference]:
    rows = _both_seeds(results, a, b)
    return [difference(x["windows"], y["windows"]) for x, y in rows]


def _samples(results: Results, a: str, b: str, steps: str, key: str) -> list[Difference]:
    rows = _both_seeds(results, a, b)
    return [
        difference(*(one["samples"][steps]["own"][key] for one in (x, y)))
        for x, y in rows
        if steps in x.get("samples", {}) and steps in y.get("samples", {})
    ]


def claims(results: Results) -> list[Claim]:
    """Return the claims of the paper's abstract and section 5 with what was measured."""
    found: list[Claim] = []
    same = _windows(results, "mdm", "gidd-0.0-elbo")
    close = [abs(one.value) < 0.02 for one in same]
    found.append(
        Claim(
            "1. GIDD with p_u = 0 is masked diffusion: the same likelihood",
            "PPL 24.37 and 24.36",
            f"nats per token, GIDD less MDM: {_show(same)}",
            (HOLDS if all(close) else FAILS) if same else _NOT_RUN,
        )
    )
    weights = [
        one
        for p in ("0.1", "0.2")
        for pair in (("dynamic", "clamp"), ("clamp", "elbo"))
        for one in _windows(results, f"gidd-{p}-{pair[0]}", f"gidd-{p}-{pair[1]}")
    ]
    found.append(
        Claim(
            "2. With p_u > 0, dynamic weights are better than clamped ones, and these than none",
            "PPL 23.90, 25.09, 26.88 (p_u = 0.1)",
            f"nats per token, clamped less dynamic, none less clamped: {_show(weights)}",
            verdict(weights, is_above=True),
        )
    )
    few = _samples(results, "gidd-0.1-dynamic", "gidd-0.0-dynamic", "32", "gen_nll")
    found.append(
        Claim(
            "3. With few steps, hybrid models generate better text than mask-only ones",
            "generative PPL 387 and 904 at 32 steps",
            f"grader's nats per token, mask-only less hybrid (p_u = 0.1): {_show(few)}",
            verdict(few, is_above=True),
        )
    )
    for p, is_above in (("0.1", True), ("0.2", True), ("0.0", False)):
        rows = _both_seeds(results, f"sentences-{p}")
        gains = [
            difference(*(row["sentences"][k]["log_probs"] for k in ("before", "after")))
            for (row,) in rows
        ]
        says = "raises" if is_above else "does not raise"
        state = verdict(gains, is_above=True)
        if not is_above and gains:
            state = FAILS if state == HOLDS else HOLDS
        found.append(
            Claim(
                f"4. Self-correction {says} the quality of samples with p_u = {p}",
                {"0.1": "PPL 214 to 93 (p_u = 0.2)", "0.2": "PPL 214 to 93"}.get(p, "no gain"),
                f"true log-likelihood per token: {_show(gains)}",
                state,
            )
        )
    correlations = [
        (p, correlation)
        for p in ("0.0", "0.1", "0.2")
        for (row,) in _both_seeds(results, f"gidd-{p}-dynamic")
        if (correlation := _self_accuracy_correlation(row)) is not None
    ]
    hybrid = [c for p, c in correlations if p != "0.0"]
    found.append(
        Claim(
            "5. Self-accuracy tracks the quality of samples of hybrid models",
            "correlated for hybrid models",
            "correlation of self-accuracy and the grader's nats per token: "
            + ", ".join(f"{c:+.2f} (p_u = {p})" for p, c in correlations),
            (HOLDS if all(c < -0.2 for c in hybrid) else FAILS) if hybrid else _NOT_RUN,
        )
    )
    found.append(_scaling_claim(results))
    return found


def _self_accuracy_correlation(row: Json) -> float | None:
    """Return the correlation over the samples of all numbers of steps."""
    pairs = [
        pair
        for steps in row.get("samples", {}).values()
        for pair in zip(steps["own"]["self_accuracies"], steps["own"]["gen_nll"], strict=True)
        if None not in pair
    ]
    if len(pairs) < 8:
        return None
    x, y = zip(*pairs, strict=True)
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in pairs)
    norm = math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))
    return products / norm if norm else None


def _scaling_claim(results: Results) -> Claim:
    """Compare the gain from the small to the large model with and without uniform noise."""
    gains: dict[str, list[float]] = {}
    for p in ("0.0", "0.2"):
        names = [f"gidd-{p}-dynamic-{size}" for size in ("small", "large")]
        if all(name in results for name in names):
            small, large = (results[name]["windows"] for name in names)
            gains[p] = [x - y for x, y in zip(small, large, strict=True)]
    found = [difference(gains["0.0"], gains["0.2"])] if len(gains) == 2 else []
    state = verdict(found, is_above=True)
    return Claim(
        "6. Uniform noise scales at least as well as masks",
        "signs of a steeper slope with p_u = 0.2",
        f"gain of the large over the small model, p_u = 0.2 less p_u = 0: {_show(found)}",
        HOLDS if found and state == OPEN and found[0].value > 0 else state,
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _number(value: Json | None, transform: Callable[[float], float] = float) -> str:
    if value is None or value["value"] is None:
        return "-"
    return f"{transform(value['value']):.3g}"


def write_page(results: Results, command: str) -> str:
    """Return the page in Markdown."""
    lines = ["# Results", ""]
    lines += ["The claims of the paper, measured with models that two CPU cores train in minutes."]
    lines += [f"Written by `{command}` from its result files.", "", "## Claims", ""]
    lines += _table(("claim", "the paper", "here", "verdict"), claims(results))
    lines += ["## Likelihood", ""]
    rows = [
        (
            name,
            _number(row["nats_per_token"]),
            _number(row["nats_per_token"], math.exp),
            str(_PAPER_PPL.get(name, "-")),
            f"{row['train_seconds'] / 60:.0f}",
        )
        for name, row in results.items()
    ]
    lines += _table(("model", "nats per token", "PPL", "PPL in the paper", "CPU minutes"), rows)
    lines += ["## Samples by denoising steps", ""]
    rows = [
        (name, steps, _number(own["gen_ppl"]), _number(own["entropy"]), _number(accuracy))
        for name, row in results.items()
        for steps, measured in row.get("samples", {}).items()
        for own, accuracy in [(measured["own"], measured["own"].get("self_accuracy"))]
    ]
    lines += _table(("model", "steps", "generative PPL", "entropy", "self-accuracy"), rows)
    lines += ["## Self-correction", ""]
    keys = (
        "temperature",
        "forward_passes",
        "changed_tokens",
        "gen_ppl",
        "entropy",
        "self_accuracy",
    )
    rows = [
        (name, *("-" if one.get(key) is None else f"{one[key]:.3g}" for key in keys))
        for name, row in results.items()
        for one in row.get("correction", ())
    ]
    lines += _table(("model", *(key.replace("_", " ") for key in keys)), rows)
    lines += ["## The exact source", ""]
    rows = [
        (name, kind, _number(one["log_prob"]), _number(one["sums_right"]))
        for name, row in results.items()
        if (found := row.get("sentences"))
        for kind, one in (
            ("32 steps", found["before"]),
            ("after self-correction", found["after"]),
            *([("posterior corrector", found["posterior"])] if "posterior" in found else []),
            *((f"64 passes: {setting}", one) for setting, one in found["samplers"].items()),
        )
    ]
    lines += _table(("model", "samples", "log-likelihood per token", "sums right"), rows)
    for name, row in results.items():
        for before, after in row.get("sentences", {}).get("examples", [])[:1]:
            lines += [f"`{name}`, the first sample of its seed, before and after:", "", "```text"]
            lines += [before, "", after, "```", ""]
    return "\n".join(lines)
