"""Results of a pipeline: the text, the confidence in its tokens, and the manifest of settings.

Functions that need torch import it: a proofreader that needs no network starts without it.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from gidd.errors import ConfigError

if TYPE_CHECKING:
    from gidd.diffusion.schedule import MixingSchedule
    from gidd.sampling import Edit, Frame, Plan, Processor, Request, Sample, Step

ResultManifest = dict[str, Any]
"""Everything needed to reproduce a result: versions, model, schedule, plan, seed, device."""

_EXCERPT = reprlib.Repr()
_EXCERPT.maxstring = 80


@dataclass(frozen=True, kw_only=True)
class Trace:
    """How one sequence was sampled."""

    tokens: tuple[int, ...]
    """The complete final sequence, including tokens after end-of-text."""
    protected: tuple[bool, ...]
    """Positions that could not change: given tokens, and the surroundings of a window."""
    edits: tuple[Edit, ...]
    """Every replaced token, in order, including noise and reverted changes."""
    frames: tuple[Frame, ...] = ()
    """The sequence before every step and at the end; empty unless `record_frames` was set."""
    forward_passes: int = 0
    """Forward passes for this sequence."""
    offset: int = 0
    """Position of the first token in the text."""

    @classmethod
    def of(cls, sample: Sample, *, offset: int = 0) -> Self:
        """Return the trace of a sample."""
        names = ("tokens", "protected", "edits", "frames", "forward_passes")
        return cls(**{name: getattr(sample, name) for name in names}, offset=offset)

    def with_last_frame(self, frame: Frame) -> Self:
        """Return the trace with a frame of the final state appended."""
        index = self.frames[-1].step_index + 1 if self.frames else 0
        return replace(self, frames=(*self.frames, frame._replace(step_index=index, step="end")))

    def __repr__(self) -> str:
        return (
            f"<Trace: {len(self.tokens)} tokens ({sum(self.protected)} protected), "
            f"{len(self.edits)} edits, {len(self.frames)} frames, {self.forward_passes} "
            "forward passes; see .tokens, .edits, .frames>"
        )


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A sampled text."""

    text: str
    tokens: tuple[int, ...]
    """Tokens of the text, up to end-of-text."""
    filled: tuple[str, ...]
    """Text of each run of blanks, in order."""
    confidence: tuple[float, ...] | None
    """x_theta of each token in the final text; None unless `confidence=True` was given.

    A network trained with masking alone cannot score visible tokens. For such a network it is
    x_theta when the token was written, and 1 for given tokens.
    """
    forward_passes: int
    """Forward passes of the sampler."""
    trace: Trace
    manifest: ResultManifest
    log_probability: float | None = None
    """With a pattern and `confidence=True`: log of the probability of the new tokens among all that
    are allowed, for tokens that are drawn from the prediction before the first step."""
    log_constraint: float | None = None
    """log of the probability that tokens drawn from that prediction are allowed."""

    def __repr__(self) -> str:
        return (
            f"<Generation: {_EXCERPT.repr(self.text)}, {len(self.tokens)} tokens, "
            f"{self.forward_passes} forward passes; see .text, .filled, .confidence, .trace, "
            ".manifest>"
        )


class Replacement(NamedTuple):
    """A token that was replaced by `self_correct`."""

    position: int
    """Index of the token."""
    start: int
    """Index of its first character in the original text."""
    old: str
    new: str
    confidence_before: float
    """x_theta of the old token in the original text."""
    confidence_after: float
    """x_theta of the new token in the corrected text."""


class NoiseLevel(NamedTuple):
    """Estimated fraction of wrong tokens, with a 95% interval."""

    error_rate: float
    low: float
    high: float
    time: float
    """Time of the network at which its noise is nearest to the error rate; nan if the estimate
    needed no network."""
    forward_passes: int = 0
    """Forward passes."""

    def __str__(self) -> str:
        return f"{self.error_rate:.1%} ({100 * self.low:.1f}-{self.high:.1%})"


@dataclass(frozen=True, kw_only=True)
class Correction:
    """A corrected text, and its edits."""

    text: str
    original: str
    edits: tuple[TextEdit, ...]
    """Places of the original that may be wrong, in order, changed or not, with alternatives."""
    error_rate: float
    """Fraction of wrong tokens in the original text, as given or estimated."""
    noise_level: NoiseLevel | None
    """The estimate of `error_rate`; None if it was given."""
    forward_passes: int
    """Forward passes, including the estimate of the error rate."""
    manifest: ResultManifest

    @property
    def changes(self) -> tuple[TextEdit, ...]:
        """The places that were changed."""
        return tuple(edit for edit in self.edits if edit.is_change)

    @property
    def suggestions(self) -> tuple[TextEdit, ...]:
        """The places that may be wrong and were left as they are."""
        return tuple(edit for edit in self.edits if not edit.is_change)

    def __repr__(self) -> str:
        return (
            f"<Correction: {_EXCERPT.repr(self.text)}, {len(self.changes)} changes, "
            f"{len(self.suggestions)} suggestions, error rate {self.error_rate:.2%}, "
            f"{self.forward_passes} forward passes; see .text, .changes, .suggestions, .manifest>"
        )


@dataclass(frozen=True, kw_only=True)
class SelfCorrection:
    """A text after self-correction (App. C)."""

    text: str
    original: str
    tokens: tuple[int, ...]
    replacements: tuple[Replacement, ...]
    """Differences between the original and the corrected text, in order."""
    confidence: tuple[float, ...]
    """x_theta of each token of the corrected text; 1 for tokens that are never corrected, such as
    line breaks."""
    self_accuracy: tuple[float, float]
    """Fraction of tokens that are the most likely ones, before and after correction."""
    forward_passes: int
    """Forward passes of the corrector; passes that score the text before and after are
    not included."""
    traces: tuple[Trace, ...]
    """One per window of the text."""
    manifest: ResultManifest

    def __repr__(self) -> str:
        before, after = self.self_accuracy
        return (
            f"<SelfCorrection: {_EXCERPT.repr(self.text)}, {len(self.replacements)} of "
            f"{len(self.tokens)} tokens replaced, self-accuracy {before:.1%} -> {after:.1%}, "
            f"{self.forward_passes} forward passes; see .text, .replacements, .traces, .manifest>"
        )


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The likelihood of a text under a model."""

    text: str
    tokens: tuple[int, ...]
    confidence: tuple[float, ...] | None
    """x_theta of each token; None for a network trained with masking alone, which cannot score
    visible tokens."""
    noise_level: NoiseLevel | None
    """Estimated fraction of wrong tokens; None where `confidence` is."""
    nelbo: float
    """Estimate of NELBO >= -log p(text), in nats; `manifest["estimator"]` describes it."""
    standard_error: float
    """Standard error of `nelbo`, from independent repeats."""
    reconstruction: float
    """The part of `nelbo` below the smallest time."""
    prior: float
    """The part of `nelbo` above the largest time."""
    forward_passes: int
    """Forward passes of the estimate."""
    manifest: ResultManifest

    @property
    def nats_per_token(self) -> float:
        """The NELBO per token."""
        return self.nelbo / len(self.tokens)

    @property
    def perplexity(self) -> float:
        """Upper bound on the perplexity per token."""
        return math.exp(min(self.nats_per_token, 700.0))

    def __repr__(self) -> str:
        return (
            f"<Scores: {_EXCERPT.repr(self.text)}, {len(self.tokens)} tokens, NELBO "
            f"{self.nelbo:.2f} ± {self.standard_error:.2f} nats, perplexity {self.perplexity:.4g}, "
            f"{self.forward_passes} forward passes; see .nelbo, .confidence, .manifest>"
        )


def describe_schedule(schedule: MixingSchedule) -> dict[str, Any]:
    """Return the schedule as a saved model records it; a custom one by the name of its class."""
    from gidd.models.record import record_schedule

    try:
        return record_schedule(schedule)[0]
    except ConfigError:
        return {"kind": type(schedule).__name__}


def describe_request(request: Request) -> dict[str, Any]:
    """Return the settings of a request to generate or infill."""
    return {
        "task": "sample",
        "length": len(request.tokens),
        "given": sum(token is not None for token in request.tokens),
        "seed": request.seed,
        "sample_index": request.sample_index,
        "plan": describe_plan(request.plan),
        "processors": describe_processors(request.processors),
        "stop": list(request.stop),
        **(
            {"constraints": [constraint.automaton.name for constraint in request.constraints]}
            if request.constraints
            else {}
        ),
        **({"guidance_scale": request.guidance.scale} if request.guidance else {}),
    }


def describe_plan(plan: Plan) -> list[dict[str, Any]]:
    """Return the phases of a plan: step, its options, number of steps, first and last time."""
    phases: list[dict[str, Any]] = []
    for phase in plan.phases:
        first, last = plan.steps[phase[0]], plan.steps[phase[-1]]
        ends = {"steps": len(phase), "from": first.t, "to": last.s}
        phases.append({"step": first.name, **_options(first.step), **ends})
    return phases


def _options(step: Step) -> dict[str, Any]:
    from torch import Tensor

    options: dict[str, Any] = {}
    if isinstance(step, partial):
        options = step.keywords
    elif is_dataclass(step):
        options = {option.name: getattr(step, option.name) for option in fields(step)}
    return {
        name: f"tensor of shape {list(value.shape)}"
        if isinstance(value, Tensor)
        else getattr(value, "__name__", value)
        for name, value in options.items()
    }


def describe_processors(processors: Sequence[Processor]) -> list[str]:
    """Return a short description of each processor: its name and settings, not its tokens."""
    from gidd.sampling import Ban, Require

    return [
        f"{type(p).__name__}({len(p.tokens)} of {p.vocab.size} tokens)"
        if isinstance(p, Require | Ban)
        else repr(p)
        for p in processors
    ]


SUSPECT_BELOW: Final = 0.9
"""Positions whose token has a lower posterior probability are listed as doubtful."""


class Alternative(NamedTuple):
    """A text that may be right at some place."""

    text: str
    probability: float


class TextEdit(NamedTuple):
    """A place of a text that may be wrong, and whether it is changed."""

    start: int
    """Index of its first character in the original text."""
    old: str
    new: str
    """Replacement; equal to `old` if the place is not changed."""
    alternatives: tuple[Alternative, ...]
    """What may be right there, most likely first; `old` is one of them."""

    @property
    def stop(self) -> int:
        """Index of the character after the last one."""
        return self.start + len(self.old)

    @property
    def is_change(self) -> bool:
        """Whether the place is changed."""
        return self.new != self.old

    @property
    def confidence(self) -> float:
        """Probability that the new text is right."""
        return self.probability_of(self.new)

    @property
    def best_other(self) -> str:
        """The new text; if the place is not changed, the most likely other text."""
        if self.is_change:
            return self.new
        return next((a.text for a in self.alternatives if a.text != self.old), self.old)

    def probability_of(self, text: str) -> float:
        """Return the probability that a text is right at this place; 0 if it is not listed."""
        return next((a.probability for a in self.alternatives if a.text == text), 0.0)


def choose_edit(
    start: int, old: str, alternatives: Iterable[Alternative], min_confidence: float | None
) -> TextEdit:
    """Return the edit of a place: the most likely alternative, if it is likely enough.

    By default the most likely one is chosen, which minimises the expected number of wrong places.
    """
    ordered = sorted(alternatives, key=lambda a: (-a.probability, a.text != old, a.text))
    best = ordered[0]
    is_change = best.text != old and best.probability >= (min_confidence or 0.0)
    return TextEdit(start, old, best.text if is_change else old, tuple(ordered))


def is_suspect(edit: TextEdit) -> bool:
    """Whether to list an edit: it is a change, or the old text is suspect (`SUSPECT_BELOW`)."""
    return edit.is_change or edit.probability_of(edit.old) < SUSPECT_BELOW


def apply_edits(text: str, edits: Sequence[TextEdit]) -> str:
    """Return a text with its edits, which are in order and do not overlap."""
    parts: list[str] = []
    last = 0
    for edit in edits:
        parts += [text[last : edit.start], edit.new]
        last = edit.stop
    return "".join([*parts, text[last:]])
