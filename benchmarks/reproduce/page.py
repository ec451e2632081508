"""The page of the laptop's results: tables from result files, and a verdict for each claim."""

from __future__ import annotations

import difflib
import html
import math
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from gidd.evaluation.compare import (
    SIGNIFICANCE_LEVEL,
    Difference,
    mean_difference,
    unpaired_difference,
)
from gidd.evaluation.results import Measurement

Json = dict[str, Any]
Results = dict[str, Json]

HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "too small to tell", "not run"
SOURCES: Final = {"sentences-": "exact source", "": "text"}
"""Beginnings of the names of runs, and what they were trained on."""

_SAME, _FEW_STEPS, _CORRELATED, _KEPT_ENTROPY = 0.02, "8", 0.2, 0.8
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
    """Tell whether all differences are above zero, significantly; seeds must not contradict."""
    sure = [p is not None and p < SIGNIFICANCE_LEVEL for _, _, p, *_ in differences]
    signs = {difference.value > 0 for difference in differences}
    if signs == {False} and any(sure):
        return FAILS
    return HOLDS if signs == {True} and all(sure) else OPEN


def nearness(differences: Sequence[Difference]) -> str:
    """Tell whether all differences are closer to zero than `_SAME`, significantly."""
    limits = [Measurement(_SAME, 0.0, difference.num_pairs) for difference in differences]
    sizes = [difference._replace(value=abs(difference.value)) for difference in differences]
    pairs = zip((Measurement(v, e, n) for v, e, _, _, n in sizes), limits, strict=True)
    return verdict([unpaired_difference(*pair) for pair in pairs])


def claims(results: Results, first: str) -> list[Claim]:
    """Return the claims of the paper's abstract and section 5 for runs named `first`..."""
    listed: list[Claim] = []

    def rows(*names: str) -> list[list[Json]]:
        """Return the results of some runs, for each seed that all of them have."""
        seeds = ([results.get(first + n + suffix) for n in names] for suffix in ("", "-seed-1"))
        return [[run for run in row if run] for row in seeds if all(row)]

    def windows(a: str, b: str) -> list[Difference]:
        return [difference(x["windows"], y["windows"]) for x, y in rows(a, b)]

    def add(text: str, paper: str, unit: str, shown: str, state: str) -> None:
        ours, state = (f"{unit}: {shown}", state) if shown else ("-", NOT_RUN)
        listed.append(Claim(text, SOURCES[first], paper, ours, state))

    same = windows("mdm", "gidd-0.0-elbo")
    add(
        "1. GIDD with p_u = 0 is masked diffusion: the same likelihood",
        "PPL 24.37 and 24.36",
        "nats per token, GIDD less MDM",
        _shown(same),
        nearness(same),
    )
    for better, worse, ppl in (
        ("dynamic", "clamp", "23.90 and 25.09"),
        ("clamp", "elbo", "25.09 and 26.88"),
    ):
        pairs = [(f"gidd-{p}-{better}", f"gidd-{p}-{worse}") for p in ("0.1", "0.2")]
        gains = [gain for pair in pairs for gain in windows(*pair)]
        add(
            f"2. With p_u > 0, the weights {better} are better than {worse}",
            f"PPL {ppl} (p_u = 0.1)",
            f"nats per token, {worse} less {better}",
            _shown(gains),
            verdict(gains),
        )
    few = [
        difference(*(sampled(row)[_FEW_STEPS][0] for row in pair))
        for pair in rows("gidd-0.0-dynamic", "gidd-0.1-dynamic")
    ]
    add(
        f"3. With few steps ({_FEW_STEPS} for 64 tokens), hybrid models write better text",
        "generative PPL 387 and 904 at 32 steps",
        "log-likelihood per token, p_u = 0.1 less p_u = 0",
        _shown(few),
        verdict(few),
    )
    for p, paper in (("0.1", "-"), ("0.2", "PPL 214 to 93"), ("0.0", "no gain")):
        corrected = [correction(row) for (row,) in rows(f"gidd-{p}-dynamic")]
        gains = [gain for gain, *_ in corrected]
        state, says = verdict(gains), "does not raise" if p == "0.0" else "raises"
        if state == HOLDS and any(b < _KEPT_ENTROPY * a for _, a, b in corrected):
            state = OPEN  # likelier, because it repeats itself
        elif p == "0.0":
            state = verdict([gain._replace(value=-gain.value) for gain in gains])
        add(
            f"4. Self-correction {says} the quality of samples with p_u = {p}",
            paper,
            f"entropy {', '.join(f'{a:.2f} to {b:.2f}' for _, a, b in corrected)}; "
            "log-likelihood per token, after less before",
            _shown(gains),
            state,
        )
    correlations = [
        (p, *correlation)
        for p in ("0.1", "0.2")
        for (row,) in rows(f"gidd-{p}-dynamic")
        if (correlation := self_accuracy_correlation(row)) is not None
    ]
    add(
        "5. Self-accuracy tracks the quality of samples of hybrid models",
        "correlated",
        "correlation of self-accuracy and log-likelihood",
        ", ".join(f"{c:+.2f} (p_u = {p})" for p, c, _ in correlations),
        verdict([above for _, _, above in correlations]),
    )
    sizes = [f"gidd-{p}-dynamic-{size}" for p in ("0.0", "0.2") for size in ("small", "large")]
    per_window = [zip(*(run["windows"] for run in row), strict=True) for row in rows(*sizes)]
    scaling = [mean_difference([(c - d) - (a - b) for a, b, c, d in row]) for row in per_window]
    add(
        "6. Uniform noise scales at least as well as masks",
        "a steeper slope with p_u = 0.2",
        "gain of the large over the small model, p_u = 0.2 less p_u = 0",
        _shown(scaling),
        verdict(scaling),
    )
    return listed


def _shown(values: Sequence[Difference]) -> str:
    return "; ".join(f"{v.value:+.3f} ± {v.standard_error or 0:.3f}" for v in values)


def sampled(row: Json) -> dict[str, tuple[list[float], list[float | None]]]:
    """Return log-likelihoods per token, true or the grader's, and self-accuracies, by steps."""
    if "sentences" in row:
        parts = row["sentences"]["steps"].items()
        return {n: (part["log_probs"], part["self_accuracies"]) for n, part in parts}
    measured = {steps: part["own"] for steps, part in row.get("samples", {}).items()}
    columns = ((n, part["gen_nll"], part["self_accuracies"]) for n, part in measured.items())
    return {n: ([-x for x in nll], accuracies) for n, nll, accuracies in columns}


def correction(row: Json) -> tuple[Difference, float, float]:
    """Return the gain in log-likelihood per token, and the entropy before and after."""
    if "sentences" in row:
        before, after = row["sentences"]["before"], row["sentences"]["after"]
        gain = difference(before["log_probs"], after["log_probs"])
        return gain, before["entropy"]["value"], after["entropy"]["value"]
    before, *_, after = (state for state in row["correction"] if state["temperature"] == 0.1)
    logs = [
        Measurement(-math.log(state["gen_ppl"]), state["gen_ppl_se"] / state["gen_ppl"], 0)
        for state in (before, after)
    ]
    return unpaired_difference(*logs), before["entropy"], after["entropy"]


def self_accuracy_correlation(row: Json) -> tuple[float, Difference] | None:
    """Return the correlation of self-accuracy and quality over samples of all numbers of steps.

    Its excess over `_CORRELATED` is in Fisher's z, whose standard error is 1 / sqrt(n - 3).
    """
    all_pairs = [pair for columns in sampled(row).values() for pair in zip(*columns, strict=True)]
    pairs = [(quality, accuracy) for quality, accuracy in all_pairs if accuracy is not None]
    if len(pairs) < 8 or any(len(set(values)) == 1 for values in zip(*pairs, strict=True)):
        return None
    value = statistics.correlation(*zip(*pairs, strict=True))
    z = math.atanh(max(-0.999, min(value, 0.999)))
    limit, error = math.atanh(_CORRELATED), (len(pairs) - 3) ** -0.5
    return value, unpaired_difference(Measurement(limit, 0.0, 0), Measurement(z, error, 0))


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"## {title}", "", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _wrapped(text: str) -> str:
    """Return a paragraph of lines of at most 120 characters, none of which begins a list."""
    lines = textwrap.wrap(text, 119, break_long_words=False, break_on_hyphens=False)
    return "\n".join("\\" * (line[0] in "-+#>=|") + line for line in lines)


def _number(value: Json | float | None) -> str:
    figure = value["value"] if isinstance(value, dict) else value
    return "-" if figure is None else f"{figure:.3g}"


def write_page(results: Results, command: str) -> str:
    """Return the page in Markdown."""
    done = [claim for first in SOURCES for claim in claims(results, first)]
    run = {claim.text for claim in done if claim.verdict != NOT_RUN}
    shown = [claim for claim in done if claim.verdict != NOT_RUN or claim.text not in run]
    order = sorted(shown, key=lambda claim: claim.text[:1])
    hours = sum(row["train_seconds"] + row.get("measure_seconds", 0) for row in results.values())
    lines = [
        "# Results",
        "",
        _wrapped(
            "The claims of the paper, measured with models that a CPU trains in minutes, on an "
            "exact source (`sentences`, whose true likelihood grades samples) and on text (graded "
            "by a larger autoregressive model of the same corpus)."
        ),
        "",
        _wrapped(
            f"Written by `{command}` from its {len(results)} result files; {hours / 3600:.1f} "
            "hours of CPU time. Differences are of the same held-out windows or samples, ± "
            "standard errors, one number per seed; a claim holds if all have its sign at p < 0.05, "
            "and does not if all have the other sign, one of them at p < 0.05; else the evidence "
            f"is too small to tell. The same likelihood is within {_SAME} nats, and a correlation "
            f"above {_CORRELATED}. A gain by self-correction must leave {_KEPT_ENTROPY:.0%} of the "
            "entropy."
        ),
        "",
        *_table("Claims", ("claim", "on", "the paper", "here", "verdict"), order),
    ]
    header = ("model", "nats per token", "PPL", "PPL in the paper", "CPU minutes")
    for first, source in SOURCES.items():
        rows: list[Sequence[str]] = []
        for name, row in results.items():
            if name.startswith("sentences-") == bool(first):
                nats, minutes = row["nats_per_token"]["value"], row["train_seconds"] / 60
                paper = str(_PAPER_PPL.get(name.removeprefix(first), "-"))
                rows.append((name, *map(_number, (nats, math.exp(nats))), paper, f"{minutes:.1f}"))
        lines += _table(f"Likelihood, {source}", header, rows)
    return "\n".join([*lines, *_text_samples(results), *_sentence_samples(results)])


def _text_samples(results: Results) -> list[str]:
    keys = ("gen_ppl", "entropy", "self_accuracy")
    rows = [
        (name, steps, *(_number(part["own"].get(key)) for key in keys))
        + (_number(part.get("second", {}).get("gen_ppl")),)
        for name, row in results.items()
        for steps, part in row.get("samples", {}).items()
    ]
    header = ("model", "steps", "generative PPL", "entropy", "self-accuracy", "PPL by SmolLM2")
    lines = _table("Samples of text by denoising steps", header, rows)
    keys = ("temperature", "forward_passes", "changed_tokens", *keys)
    rows = [
        (name, *(_number(part.get(key)) for key in keys))
        for name, row in results.items()
        for part in row.get("correction", ())
    ]
    header = ("model", *(key.replace("_", " ") for key in keys))
    return [*lines, *_table("Self-correction of text", header, rows)]


def _sentence_samples(results: Results) -> list[str]:
    rows: list[Sequence[str]] = []
    examples = ["## Before and after", "", "The first sample of seed 0, self-corrected:", ""]
    for name, row in results.items():
        if "seed" not in name:
            for before, after in row.get("sentences", row).get("examples", ())[:1]:
                marked = _marked(before.split(), after.split())
                examples += [_wrapped(f"**{name}**: {marked}"), ""]
        if sentences := row.get("sentences"):
            parts = {
                "texts of the source": sentences.get("true"),
                **{f"{steps} steps": part for steps, part in sentences["steps"].items()},
                "self-correction after 32 steps": sentences["after"],
                "posterior corrector after 32 steps": sentences.get("posterior"),
                **{f"64 passes: {kind}": part for kind, part in sentences["samplers"].items()},
            }
            keys = ("log_prob", "entropy", "sums_right")
            shown = ((kind, part) for kind, part in parts.items() if part is not None)
            rows += [(name, kind, *(_number(part[key]) for key in keys)) for kind, part in shown]
    header = ("model", "samples", "log-likelihood per token", "entropy", "sums right")
    return [*_table("Samples of the exact source", header, rows), *examples]


def _marked(before: list[str], after: list[str]) -> str:
    """Return words with deleted and inserted ones marked."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    parts: list[str] = []
    for kind, start, end, new_start, new_end in matcher.get_opcodes():
        old, new = " ".join(before[start:end]), " ".join(after[new_start:new_end])
        old, new = html.escape(old), html.escape(new)
        if kind == "equal":
            parts.append(old)
        else:
            parts += [f"<del>{old}</del>"] * bool(old) + [f"<ins>{new}</ins>"] * bool(new)
    return " ".join(parts)
