"""Options of sampling, self-correction and likelihoods, and the plans and processors they describe.

The options are checked without torch, so that the command line reports mistakes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from gidd.common.config.allowed import (
    POSITIVE,
    SEED,
    Allowed,
    choice,
    integer,
    number,
    problems_of,
    require_allowed,
)
from gidd.common.config.components import Component
from gidd.common.config.registry import component_names
from gidd.common.terminal import did_you_mean, shorten
from gidd.diffusion.constants import TRAINING_EPS
from gidd.errors import ConfigError
from gidd.sampling.ranges import (
    ERROR_RATE,
    GUIDANCE_SCALE,
    MIN_CONFIDENCE,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)

if TYPE_CHECKING:
    from gidd.sampling import Plan, Processor

TimestepSpacing = Literal["even", "sine"]
ScoreName = Literal["likelihood", "gain"]
GridName = Literal["sine", "stratified", "paper"]

CLEAN_TIME = TRAINING_EPS
"""The time at which finished text is scored: the least noise that models are trained with."""


def _are_texts(value: object) -> bool:
    items = cast("tuple[Any, ...]", value) if isinstance(value, list | tuple) else (None,)
    return all(isinstance(item, str) and item for item in items)


STOP = Allowed(_are_texts, "a list of texts, none of them empty")

_MAX_STEPS = 1_000_000  # of a plan, which is made before the first step


def _are_passes(n: object) -> bool:
    return integer(0, _MAX_STEPS).contains(n) and n != 1


_PASSES = Allowed(
    _are_passes,
    f"0 (no correction) or an integer from 2 to {_MAX_STEPS:,}",
    "Each forward pass scores the change made by the previous one.",
)
_CUT_OFF = number(lambda p: 0 <= p < 1, "in [0, 1)", "Omit it to keep all tokens.")
_BLOCK = integer(1, fix="Omit it to generate all tokens together.")


@dataclass(frozen=True, kw_only=True)
class SelfCorrectionOptions:
    """Self-correction (App. C): replace unlikely tokens of a finished text, a few at a time."""

    forward_passes: Annotated[int, _PASSES] = 256
    """Maximum forward passes; stops earlier on convergence. 0 disables correction.
    Otherwise at least 2, because each pass scores the change made by the previous one."""
    temperature: Annotated[float, TEMPERATURE] = 0.1
    """Temperature of the replacements; the paper uses 0.1 to 0.5, 0 is greedy."""
    patience: Annotated[int, integer(1)] = 32
    """Stop after this many forward passes without a better self-accuracy."""
    tokens_per_step: Annotated[int, integer(1)] = 1
    """Tokens replaced per forward pass; the paper uses 1, more is faster."""
    distance: Annotated[int, integer(1)] = 2
    """Minimum distance between tokens replaced in the same forward pass."""
    score: ScoreName = "likelihood"
    """Order of changes: probability of the new token (the paper), or ratio of new to old."""

    def plan(self) -> Plan:
        """Return the corrector's steps on finished text; invalid options raise `ConfigError`."""
        from gidd.sampling import (
            SelfCorrectionStep,
            corrector_plan,
            rank_by_probability,
            rank_by_ratio,
        )

        require_allowed(self)
        others = ("temperature", "patience", "tokens_per_step", "distance", "score")
        if self.forward_passes == 0 and (name := first_changed(self, *others)):
            raise ConfigError(
                f"{name} of self_correction needs forward_passes of at least 2, got 0, which is no "
                "self-correction."
            )
        if self.tokens_per_step == 1 and first_changed(self, "distance"):
            raise ConfigError(
                "distance of self_correction needs tokens_per_step of at least 2, got 1."
            )
        corrector = SelfCorrectionStep(
            temperature=self.temperature,
            patience=self.patience,
            num_tokens=self.tokens_per_step,
            distance=self.distance,
            score=rank_by_ratio if self.score == "gain" else rank_by_probability,
        )
        return corrector_plan(corrector, self.forward_passes, CLEAN_TIME)


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Sampler, number of steps, and restrictions on the predicted distribution."""

    steps: Annotated[int, integer(1, _MAX_STEPS, "16 to 512 are common.")] = 128
    """Number of denoising steps; each is at most one forward pass."""
    timestep_spacing: TimestepSpacing = "even"
    """Spacing of the steps in time: even (the paper), or sine, with shorter steps at both ends.
    With uniform noise, sine samples closer to the data distribution."""
    sampler: str = "ancestral"
    """Denoising step. All draw samples, except greedy and renoise, which search for likely text."""
    sampler_options: Mapping[str, Any] = field(default_factory=lambda: {})
    """Options of the sampler, e.g. {"fill": 0.5} for threshold."""
    block_length: Annotated[int, _BLOCK] | None = None
    """Generate from left to right in blocks of this many tokens, each with all steps; None
    generates all tokens together. A block does not see what comes after it."""
    revise: Annotated[int, integer(0, 64)] = 0
    """Finished blocks that the corrector reads together with a new one, and may change again; for
    models that were trained in blocks."""
    temperature: Annotated[float, TEMPERATURE] = 1.0
    """Softmax temperature; below 1 sharpens the distribution, 0 takes the most likely token."""
    top_k: Annotated[int, TOP_K] | None = None
    """Top-k: sample from the k most likely tokens."""
    top_p: Annotated[float, TOP_P] | None = None
    """Nucleus sampling: sample from the fewest tokens that have this total probability."""
    min_p: Annotated[float, _CUT_OFF] | None = None
    """Min-p: drop tokens below this fraction of the highest probability."""
    epsilon_cutoff: Annotated[float, _CUT_OFF] | None = None
    """Drop tokens below this absolute probability (App. G)."""
    guidance_scale: Annotated[float, GUIDANCE_SCALE] = 1.0
    """Classifier-free guidance: above 1 the sample follows the given text more closely, 0 ignores
    it; 1 is no guidance. Other scales double the rows of a forward pass."""
    negative_prompt: str | None = None
    """With guidance: text that the sample is led away from, in place of no given text."""
    final_corrector: str = "gibbs_sweep"
    """Corrector of the finished text; gibbs_sweep redraws every other token in a forward pass."""
    final_corrector_options: Mapping[str, Any] = field(default_factory=lambda: {})
    """Options of the final corrector, e.g. {"distance": 4} for gibbs_sweep."""
    final_corrector_steps: Annotated[int, integer(0, _MAX_STEPS)] = 0
    """Forward passes of the final corrector."""
    self_correction: SelfCorrectionOptions = field(
        default_factory=lambda: SelfCorrectionOptions(forward_passes=0)
    )
    """Self-correction of the finished text (App. C); off if its forward_passes are 0."""

    def problems(self) -> Iterable[str]:
        """Yield one message per problem of a component, of guidance or of self-correction."""
        if self.negative_prompt is not None and self.guidance_scale == 1:
            yield "negative_prompt needs a guidance scale other than 1, which is no guidance."
        yield from _component_problems("sampler", "step", self.sampler, self.sampler_options)
        yield from _component_problems(
            "final_corrector", "corrector", self.final_corrector, self.final_corrector_options
        )
        if self.revise and not (self.final_corrector_steps or self._corrects_itself):
            yield (
                "revise needs a corrector, final_corrector_steps of at least 1 or self_correction, "
                f"got {self.revise}."
            )
        correction: Any = self.self_correction
        if isinstance(correction, SelfCorrectionOptions):
            yield from problems_of(correction, "self_correction.")
        else:
            yield f"self_correction must be SelfCorrectionOptions, got {shorten(correction)}."

    @property
    def _corrects_itself(self) -> bool:
        return getattr(self.self_correction, "forward_passes", 0) > 0

    def plan(self) -> Plan:
        """Return the steps from t = 1 to 0, then corrector steps, then self-correction."""
        from gidd.diffusion.times import even_times, sine_times
        from gidd.sampling import corrector_plan, sampling_plan

        require_allowed(self)
        corrector = ("final_corrector", "final_corrector_options")
        if self.final_corrector_steps == 0 and (unused := first_changed(self, *corrector)):
            raise ConfigError(f"{unused} needs final_corrector_steps of at least 1, got 0.")
        step = Component("step", self.sampler, self.sampler_options).build()
        name, options = self.final_corrector, self.final_corrector_options
        corrector = Component("corrector", name, options).build()
        times = {"even": even_times, "sine": sine_times}[self.timestep_spacing](self.steps)
        corrected = corrector_plan(corrector, self.final_corrector_steps)
        return sampling_plan(times, step) + corrected + self.self_correction.plan()

    def processors(self) -> tuple[Processor, ...]:
        """Return the processors of x_theta: temperature first, then the cut-offs."""
        from gidd.sampling import EpsilonCutoff, MinP, Temperature, TopK, TopP

        processors: list[Processor | None] = [
            None if self.temperature == 1 else Temperature(self.temperature),
            None if self.top_k is None else TopK(self.top_k),
            None if self.top_p is None else TopP(self.top_p),
            None if self.min_p is None else MinP(self.min_p),
            None if self.epsilon_cutoff is None else EpsilonCutoff(self.epsilon_cutoff),
        ]
        return tuple(processor for processor in processors if processor)


def _component_problems(flag: str, kind: str, name: object, options: object) -> Iterable[str]:
    """Yield one message if there is no such component, or per invalid option of it.

    Without options it is not imported.
    """
    fix = f"Register your own with @gidd.register({kind!r}, NAME)."
    yield from choice(component_names(kind), fix).problems(flag, name)
    if not isinstance(options, Mapping):
        yield f"{flag}_options must be a mapping of names to values, got {shorten(options)}."
    elif options and name in component_names(kind):
        try:
            chosen = Component(kind, cast(str, name), cast("Mapping[str, Any]", options))
        except ConfigError as error:
            yield f"{flag}_options must be options of {name}: {error}"
        else:
            yield from (f"{flag}.{problem}" for problem in chosen.problems())


_REPEATS = integer(2, 1_000_000, "The standard error is computed from them.")


WrongTokens = Literal["noise", "frequent"]


@dataclass(frozen=True, kw_only=True)
class CorrectionOptions:
    """Correction of texts: what is expected of wrong tokens, and when one is replaced."""

    error_rate: Annotated[float, ERROR_RATE] | None = None
    """Fraction of wrong tokens, e.g. 0.05; by default estimated for each text."""
    min_confidence: Annotated[float, MIN_CONFIDENCE] | None = None
    """Smallest probability of a change, e.g. 0.95; by default the most likely text is chosen."""
    wrong_tokens: WrongTokens = "noise"
    """Which tokens are written by mistake: those of the noise that the model was trained with, or
    each as often as it occurs, by the prediction from noise alone."""


@dataclass(frozen=True, kw_only=True)
class EstimatorOptions:
    """Times and noise of an estimate of the NELBO."""

    nodes: Annotated[int, integer(1, 1_000_000)] = 12
    """Times per text and repeat at which the NELBO is evaluated."""
    repeats: Annotated[int, _REPEATS] = 4
    """Independent estimates of each text, for the Monte Carlo error; with --max-se, the minimum."""
    grid: GridName = "sine"
    """Times: sine (unbiased, smallest error), stratified (unbiased, as in training), paper (without
    reconstruction and prior; the paper uses --nodes 128)."""
    seed: Annotated[int, SEED] = 0
    """Random seed of times and noise."""


@dataclass(frozen=True, kw_only=True)
class LikelihoodOptions(EstimatorOptions):
    """Times, noise and budget of an estimate of the NELBO of texts."""

    max_se: Annotated[float, POSITIVE] | None = None
    """Add repeats until the standard error over all texts is at most this, in nats per token."""
    max_forward_passes: Annotated[int, integer(1)] | None = None
    """With --max-se: start no repeat that exceeds this number of forward passes."""

    def problems(self) -> Iterable[str]:
        """Yield a message if there is a budget without a goal."""
        if self.max_forward_passes is not None and self.max_se is None:
            yield "max_forward_passes needs --max-se; without it the number is fixed."


_Method = TypeVar("_Method", bound=Callable[..., Any])
_Options = TypeVar("_Options", SamplingOptions, SelfCorrectionOptions, LikelihoodOptions)


_NAMES_ELSEWHERE = {
    "num_samples": "n",
    "num_return_sequences": "n",
    "num_images_per_prompt": "n",
    "max_new_tokens": "max_tokens",
    "max_length": "length",
    "num_inference_steps": "steps",
    "num_steps": "steps",
    "generator": "seed",
    "stop_strings": "stop",
    "streamer": "on_step",
    "callback_on_step_end": "on_step",
    "logits_processor": "processors",
}
"""Names of these arguments in older versions and in other libraries."""


def no_count_at(place: int) -> Callable[[_Method], _Method]:
    """Return a decorator of a method that refuses a count as this argument, as it was before."""

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def call(pipe: object, *args: Any, **settings: Any) -> Any:
            if len(args) > place and isinstance(args[place], int):
                text = "..., " if place or "prompt" in settings else ""
                raise ConfigError(
                    f"{method.__name__}() takes the number of samples by its name, n, got "
                    f"{args[place]}. Write {method.__name__}({text}n={args[place]})."
                )
            return method(pipe, *args, **settings)

        return cast(_Method, call)

    return decorate


def first_changed(options: _Options, *names: str) -> str | None:
    """Return the first of some fields that does not have its default value, or None."""
    default = type(options)()
    return next((name for name in names if getattr(options, name) != getattr(default, name)), None)


def with_changes(
    options: _Options, changes: dict[str, Any], method: Callable[..., object]
) -> _Options:
    """Return the options with changed fields; unknown names raise, with the name of `method`."""
    names = [field.name for field in fields(options)]
    for name in changes:
        if name not in names:
            hint = did_you_mean(name, [*names, *signature(method).parameters])
            if (other := _NAMES_ELSEWHERE.get(name)) in {*names, *signature(method).parameters}:
                hint = f" It is called {other} here."
            raise ConfigError(
                f"{method.__name__}() has no option {name!r}.{hint} "
                f"{type(options).__name__} has {', '.join(names)}."
            )
    return replace(options, **changes)
