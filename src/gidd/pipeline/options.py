"""Options of sampling, self-correction and likelihoods, and the plans and processors they describe.

The options are checked without torch, so that the command line reports mistakes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast, final, get_args

from gidd.common.allowed import SEED, Allowed, choice, field_problems, integer, number, optional
from gidd.common.parts import Part
from gidd.common.registry import part_names
from gidd.common.terminal import shorten
from gidd.diffusion.constants import MAX_TEMPERATURE, TRAINING_EPS
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from gidd.sampling import Plan, Processor

MeshName = Literal["even", "sine"]
ScoreName = Literal["likelihood", "gain"]
GridName = Literal["sine", "stratified", "paper"]

CLEAN_TIME = TRAINING_EPS
"""The time at which finished text is scored: the least noise that models are trained with."""

ERROR_RATE = number(
    lambda rate: 0 <= rate < 1, "in [0, 1)", "It is the fraction of wrong tokens, e.g. 0.05."
)
"""Allowed fractions of wrong tokens."""

MIN_CONFIDENCE = number(
    lambda p: 0 <= p <= 1, "in [0, 1]", "It is the least probability of a replacement, e.g. 0.9."
)
"""Allowed posterior probabilities from which tokens are replaced."""

_MAX_STEPS = 1_000_000
"""Of a plan, which is made before the first step."""

_TEMPERATURE = number(lambda t: 0 <= t <= MAX_TEMPERATURE, f"in [0, {MAX_TEMPERATURE:g}]")


@final
@dataclass(frozen=True, kw_only=True)
class CorrectionOptions:
    """Self-correction (App. C): replace unlikely tokens of a finished text, a few at a time."""

    calls: int = 256
    """Maximum forward passes; stops earlier on convergence. 0 disables correction.
    Otherwise at least 2, because each pass scores the change made by the previous one."""

    temperature: float = 0.1
    """Temperature of the replacements; the paper uses 0.1 to 0.5, 0 is greedy."""

    patience: int = 32
    """Stop after this many forward passes without a better self-accuracy."""

    tokens_per_call: int = 1
    """Tokens replaced per forward pass; the paper uses 1, more is faster."""

    distance: int = 2
    """Minimum distance between tokens replaced in the same forward pass."""

    score: ScoreName = "likelihood"
    """Order of changes: probability of the new token (the paper), or ratio of new to old."""

    def problems(self, prefix: str = "") -> Iterable[str]:
        """Yield one message per invalid option; `prefix` goes before the option's name."""
        passes = integer(2, _MAX_STEPS)

        def contains(calls: object) -> bool:
            return integer(0, 0).contains(calls) or passes.contains(calls)

        reason = "Each forward pass scores the change made by the previous one."
        return field_problems(
            self,
            prefix,
            calls=Allowed(contains, f"0 (no correction) or {passes.text}", reason),
            temperature=_TEMPERATURE._replace(fix="The paper uses 0.1 to 0.5."),
            patience=integer(1),
            tokens_per_call=integer(1),
            distance=integer(1),
            score=choice(get_args(ScoreName)),
        )

    def plan(self) -> Plan:
        """Return the corrector's steps on finished text; invalid options raise `ConfigError`."""
        from gidd.sampling import SelfCorrectionStep, corrector_plan, gain, likelihood

        _require_none(self.problems())
        corrector = SelfCorrectionStep(
            temperature=self.temperature,
            patience=self.patience,
            num_tokens=self.tokens_per_call,
            distance=self.distance,
            score={"likelihood": likelihood, "gain": gain}[self.score],
        )
        return corrector_plan(corrector, self.calls, CLEAN_TIME)


@final
@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Sampler, number of steps, and restrictions on the predicted distribution."""

    steps: int = 128
    """Number of denoising steps; each is at most one forward pass."""

    mesh: MeshName = "even"
    """Spacing of the steps in time: even (the paper), or sine, with shorter steps at both ends.
    With uniform noise, sine samples closer to the data distribution."""

    sampler: str = "ancestral"
    """Denoising step. All draw samples, except greedy, which searches for a likely text."""

    sampler_options: Mapping[str, Any] = field(default_factory=lambda: {})
    """Options of the sampler, e.g. {"fill": 0.5} for threshold."""

    block_length: int | None = None
    """Generate from left to right in blocks of this many tokens, each with all steps; None
    generates all tokens together. A block does not see what comes after it."""

    temperature: float = 1.0
    """Softmax temperature; below 1 sharpens the distribution, 0 takes the most likely token."""

    top_k: int | None = None
    """Top-k: sample from the k most likely tokens."""

    top_p: float | None = None
    """Nucleus sampling: sample from the fewest tokens that have this total probability."""

    min_p: float | None = None
    """Min-p: drop tokens below this fraction of the highest probability."""

    cut_off: float | None = None
    """Drop tokens below this absolute probability (App. G)."""

    corrector: str = "gibbs_sweep"
    """Corrector of the finished text; gibbs_sweep redraws every other token in a forward pass."""

    corrector_options: Mapping[str, Any] = field(default_factory=lambda: {})
    """Options of the corrector, e.g. {"distance": 4} for gibbs_sweep."""

    corrector_calls: int = 0
    """Forward passes of the corrector."""

    correction: CorrectionOptions = field(default_factory=lambda: CorrectionOptions(calls=0))
    """Self-correction of the finished text (App. C); off unless correction.calls is set."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the option's name."""
        keep_all = "Omit it to keep all tokens."
        cut = optional(number(lambda p: 0 <= p < 1, "in [0, 1)", keep_all))
        own = "Register your own with @gidd.register({!r}, NAME)."
        yield from field_problems(
            self,
            steps=integer(1, _MAX_STEPS, "16 to 512 are common."),
            mesh=choice(get_args(MeshName)),
            sampler=choice(part_names("step"), own.format("step")),
            corrector=choice(part_names("corrector"), own.format("corrector")),
            block_length=optional(integer(1, fix="Omit it to generate all tokens together.")),
            temperature=_TEMPERATURE,
            top_k=optional(integer(1, fix=keep_all)),
            top_p=optional(number(lambda p: 0 < p <= 1, "in (0, 1]", "0.9 is common.")),
            min_p=cut,
            cut_off=cut,
            corrector_calls=integer(0, _MAX_STEPS),
        )
        yield from _part_problems("sampler", "step", self.sampler, self.sampler_options)
        yield from _part_problems("corrector", "corrector", self.corrector, self.corrector_options)
        if isinstance(cast(Any, self.correction), CorrectionOptions):
            yield from self.correction.problems("correction.")
        else:
            yield f"correction must be a CorrectionOptions, got {shorten(self.correction)}."

    def plan(self) -> Plan:
        """Return the steps from t = 1 to 0, then corrector steps, then self-correction."""
        from gidd.diffusion.times import even_mesh, sine_mesh
        from gidd.sampling import corrector_plan, sampling_plan

        _require_none(self.problems())
        step = Part("step", self.sampler, self.sampler_options).build()
        corrector = Part("corrector", self.corrector, self.corrector_options).build()
        mesh = {"even": even_mesh, "sine": sine_mesh}[self.mesh](self.steps)
        corrected = corrector_plan(corrector, self.corrector_calls) + self.correction.plan()
        return sampling_plan(mesh, step) + corrected

    def processors(self) -> tuple[Processor, ...]:
        """Return the processors of x_theta: temperature first, then the cut-offs."""
        from gidd.sampling import CutOff, MinP, Temperature, TopK, TopP

        processors = (
            None if self.temperature == 1 else Temperature(self.temperature),
            None if self.top_k is None else TopK(self.top_k),
            None if self.top_p is None else TopP(self.top_p),
            None if self.min_p is None else MinP(self.min_p),
            None if self.cut_off is None else CutOff(self.cut_off),
        )
        return tuple(processor for processor in processors if processor is not None)


def _part_problems(flag: str, kind: str, name: object, options: object) -> Iterable[str]:
    """Yield one message per invalid option of a part; without options it is not imported."""
    if not isinstance(options, Mapping):
        yield f"{flag}_options must be a mapping of names to values, got {shorten(options)}."
    elif options and name in part_names(kind):
        try:
            chosen = Part(kind, cast(str, name), cast("Mapping[str, Any]", options))
        except ConfigError as error:
            yield f"{flag}_options must be options of {name}: {error}"
        else:
            yield from (f"{flag}.{problem}" for problem in chosen.problems())


@dataclass(frozen=True, kw_only=True)
class EstimatorOptions:
    """Times and noise of an estimate of the NELBO."""

    nodes: int = 12
    """Times per text and repeat at which the NELBO is evaluated."""

    repeats: int = 4
    """Independent estimates of each text, for the Monte Carlo error; with --max-se, the minimum."""

    grid: GridName = "sine"
    """Times: sine (unbiased, smallest error), stratified (unbiased, as in training), paper (without
    reconstruction and prior; the paper uses --nodes 128)."""

    seed: int = 0
    """Random seed of times and noise."""

    min_repeats_allowed: ClassVar[int] = 2

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        least = self.min_repeats_allowed
        reason = "The standard error is computed from them." if least > 1 else ""
        yield from field_problems(
            self,
            seed=SEED,
            nodes=integer(1, 1_000_000),
            repeats=integer(least, 1_000_000, reason),
            grid=choice(get_args(GridName)),
        )


@dataclass(frozen=True, kw_only=True)
class LikelihoodOptions(EstimatorOptions):
    """Times, noise and budget of an estimate of the NELBO of texts."""

    max_se: float | None = None
    """Add repeats until the standard error over all texts is at most this, in nats per token."""

    max_calls: int | None = None
    """With --max-se: start no repeat that exceeds this number of forward passes."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from super().problems()
        positive = number(lambda value: 0 < value < float("inf"), "above 0")
        yield from field_problems(self, max_se=optional(positive), max_calls=optional(integer(1)))
        if self.max_calls is not None and self.max_se is None:
            yield "max_calls needs --max-se; without it the number of forward passes is fixed."


_Options = TypeVar("_Options", SamplingOptions, CorrectionOptions, LikelihoodOptions)


def with_changes(
    options: _Options, changes: dict[str, Any], method: Callable[..., object]
) -> _Options:
    """Return the options with some fields changed, as given to `method`; unknown names raise."""
    names = [field.name for field in fields(options)]
    for name in changes:
        if name not in names:
            near = get_close_matches(name, [*names, *signature(method).parameters], 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"{method.__name__}() has no option {name!r}.{hint} "
                f"{type(options).__name__} has {', '.join(names)}."
            )
    return replace(options, **changes)


def _require_none(problems: Iterable[str]) -> None:
    if found := list(problems):
        raise ConfigError("\n".join(found))
