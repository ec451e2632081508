"""Settings of task evaluations; they are checked without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, final, get_args

from gidd.common.allowed import SEED, choice, field_problems, integer, number, optional

RuleName = Literal["conditional", "paper"]

RULES: dict[str, str] = {
    "conditional": "likelihood of the continuation, given the context, which is never noised",
    "paper": "likelihood of context and continuation together, as in the paper (App. on "
    "evaluation details)",
}
"""What is scored of a context and a continuation."""

GREEDY_RULE = (
    "questions with one continuation: whether all its tokens are the most likely ones in one "
    "forward pass at t = 1, where all of them are noise; False for questions with several choices"
)
TRUNCATION_RULE = (
    "the last tokens that fit into the context are kept; a continuation that does not fit is "
    "scored in windows, each given up to half a context before it, and all its tokens count"
)
EMPTY_CONTEXT_RULE = "an empty context is no condition: the continuation starts the text"


@final
@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """How continuations are scored."""

    rule: RuleName = "conditional"
    """What is scored: conditional (the continuation, given the context) or paper (both)."""

    nodes: int | None = None
    """Times per repeat; by default 4, with the rule of the paper 128."""

    repeats: int | None = None
    """Maximum number of repeats; by default 16, with the rule of the paper 1."""

    early_stop: bool = True
    """Whether a question stops when the ranking of its choices is decided."""

    confidence: float = 0.99
    """Confidence of the one-sided paired t-test by which a ranking is decided."""

    min_repeats: int = 3
    """Smallest number of repeats before a question is stopped early."""

    seed: int = 0
    """Random seed of times and noise; all choices of a question share them."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        spread = "The spread between repeats decides."
        return field_problems(
            self,
            rule=choice(get_args(RuleName)),
            nodes=optional(integer(1, 1_000_000)),
            repeats=optional(integer(1, 1_000_000)),
            confidence=number(lambda value: 0.5 < value < 1, "in (0.5, 1)", "0.99 is common."),
            min_repeats=integer(2, 1_000_000, spread),
            seed=SEED,
        )

    @property
    def num_nodes(self) -> int:
        """Times per repeat."""
        return self.nodes or (128 if self.rule == "paper" else 4)

    @property
    def max_repeats(self) -> int:
        """Maximum number of repeats."""
        return self.repeats or (1 if self.rule == "paper" else 16)

    @property
    def default_grid(self) -> str:
        """The grid of the rule: of the paper's, evenly spaced times without the ends."""
        return "paper" if self.rule == "paper" else "sine"

    def describe(self) -> dict[str, Any]:
        """Return the settings with their defaults, and the rules in words."""
        stop = {"confidence": self.confidence, "min_repeats": self.min_repeats}
        described = asdict(self) | {"nodes": self.num_nodes, "repeats": self.max_repeats}
        described |= {"early_stop": stop if self.early_stop else None}
        del described["confidence"], described["min_repeats"]
        rules = {"scored": RULES[self.rule], "truncation": TRUNCATION_RULE}
        return described | rules | {"is_greedy": GREEDY_RULE, "empty_context": EMPTY_CONTEXT_RULE}
