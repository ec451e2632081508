"""How to sample and how to correct: options, and the plans and processors they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypedDict, final

from gidd.diffusion.times import TRAINING_EPS, even_mesh, sine_mesh
from gidd.errors import ConfigError
from gidd.sampling import (
    STEPS,
    CutOff,
    MinP,
    Plan,
    Processor,
    Temperature,
    TopK,
    TopP,
    corrector_plan,
    gain,
    gibbs_sweep,
    likelihood,
    sampling_plan,
    self_correction,
    threshold,
)
from gidd.sampling.steps.threshold import FILL, REPLACE

SamplerName = Literal["ancestral", "ancestral_reference", "confidence", "greedy", "threshold"]
"""The names of `gidd.sampling.STEPS`."""

CLEAN_TIME = TRAINING_EPS
"""The time at which finished text is judged: the least noise that models are trained with."""

_SAMPLERS = {step.__name__: step for step in STEPS}
_MESHES = {"even": even_mesh, "sine": sine_mesh}
_SCORES = {"likelihood": likelihood, "gain": gain}


@final
@dataclass(frozen=True, kw_only=True)
class CorrectionOptions:
    """How the self-correction of App. C goes about it."""

    calls: int = 256
    """At most so many network calls; it ends earlier when it has converged. 0 corrects nothing, 1
    is refused: a change counts when the next call has judged it."""

    temperature: float = 0.1
    """Temperature at which replacements are drawn; the paper uses 0.1 to 0.5, 0 is greedy."""

    patience: int = 32
    """Stop after so many calls without a better self-accuracy."""

    tokens_per_call: int = 1
    """Changes made in one call. 1 is the paper's; more is faster."""

    distance: int = 2
    """Tokens changed in one call are at least so far apart."""

    score: Literal["likelihood", "gain"] = "likelihood"
    """Which changes come first: the likeliest new token (the paper's), or the largest gain."""

    error_rate: float | None = None
    """Share of tokens thought to be wrong: one is replaced only if it is likelier wrong than right.
    None replaces whatever the model would rather write, as in the paper."""

    def plan(self) -> Plan:
        """The corrector's calls, on finished text."""
        if self.score not in _SCORES:
            raise ConfigError(
                f"score must be one of {', '.join(_SCORES)}, got {self.score!r}. "
                "likelihood is the paper's."
            )
        corrector = partial(
            self_correction,
            temperature=self.temperature,
            patience=self.patience,
            num_tokens=self.tokens_per_call,
            distance=self.distance,
            score=_SCORES[self.score],
            error_rate=self.error_rate,
        )
        return corrector_plan(corrector, self.calls, CLEAN_TIME)


EXTERNAL_TEXT_DEFAULTS = CorrectionOptions(error_rate=0.05)
"""For text that the model did not write itself: most of it is right."""


class CorrectionKeywords(TypedDict, total=False):
    """The fields of `CorrectionOptions`, as keyword arguments."""

    calls: int
    temperature: float
    patience: int
    tokens_per_call: int
    distance: int
    score: Literal["likelihood", "gain"]
    error_rate: float | None


@final
@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How text is sampled."""

    steps: int = 128
    """Number of steps from noise to text; each is at most one network call."""

    mesh: Literal["even", "sine"] = "even"
    """Where the steps are. even is the paper's; sine has shorter steps at both ends, and is closer
    to the data where noise is uniform too."""

    sampler: SamplerName = "ancestral"
    """What a step does. All sample but greedy, which looks for a likely text."""

    fill: float = FILL
    """With the step threshold: blanks whose likeliest token has this probability do not wait."""

    replace: float = REPLACE
    """With the step threshold: a token is replaced by one that has this probability."""

    temperature: float = 1.0
    """Below 1 likely tokens become likelier; 0 always takes the likeliest."""

    top_k: int | None = None
    """Keep the so many likeliest tokens."""

    top_p: float | None = None
    """Keep the fewest tokens that together have this probability."""

    min_p: float | None = None
    """Drop tokens less likely than this share of the likeliest one's probability."""

    cut_off: float | None = None
    """Drop tokens less likely than this, absolutely: after the paper's App. G."""

    gibbs: int = 0
    """Calls of a final Gibbs phase, each of which draws every other token anew."""

    correction: CorrectionOptions = field(default_factory=lambda: CorrectionOptions(calls=0))
    """Self-correction of the finished text; correction.calls = 0 leaves it out."""

    def plan(self) -> Plan:
        """Steps from 1 to 0, then Gibbs, then self-correction."""
        if self.sampler not in _SAMPLERS:
            raise ConfigError(
                f"sampler must be one of {', '.join(_SAMPLERS)}, got {self.sampler!r}. "
                "For a step of your own give a plan: gidd.sampling.walk(mesh, step)."
            )
        if self.mesh not in _MESHES:
            raise ConfigError(f"mesh must be one of {', '.join(_MESHES)}, got {self.mesh!r}.")
        step = _SAMPLERS[self.sampler]
        if step is threshold:
            step = partial(threshold, fill=self.fill, replace=self.replace)
        sampled = sampling_plan(_MESHES[self.mesh](self.steps), step)
        return sampled + corrector_plan(gibbs_sweep, self.gibbs) + self.correction.plan()

    @property
    def judges(self) -> str:
        """What here asks the network about tokens that it sees; "" if nothing does."""
        if self.gibbs:
            return "gibbs"
        return "correction" if self.correction.calls else ""

    def processors(self) -> tuple[Processor, ...]:
        """Temperature first, then the cuts."""
        found: list[Processor] = []
        if self.temperature != 1:
            found.append(Temperature(self.temperature))
        if self.top_k is not None:
            found.append(TopK(self.top_k))
        if self.top_p is not None:
            found.append(TopP(self.top_p))
        if self.min_p is not None:
            found.append(MinP(self.min_p))
        if self.cut_off is not None:
            found.append(CutOff(self.cut_off))
        return tuple(found)


class SamplingKeywords(TypedDict, total=False):
    """The fields of `SamplingOptions`, as keyword arguments."""

    steps: int
    mesh: Literal["even", "sine"]
    sampler: SamplerName
    fill: float
    replace: float
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    cut_off: float | None
    gibbs: int
    correction: CorrectionOptions
