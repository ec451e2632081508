"""Random requests of every kind, for the tests of sessions."""

import random

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError
from gidd.sampling import (
    Confidence,
    EpsilonCutoff,
    Gibbs,
    GibbsSweep,
    Greedy,
    MinP,
    Plan,
    PosteriorCorrection,
    Processor,
    Psi,
    RemaskSuspects,
    ReMDM,
    Renoise,
    Request,
    SelfCorrectionStep,
    Step,
    Temperature,
    Threshold,
    TopK,
    TopP,
    ancestral,
    ban,
    corrector_plan,
    posterior_sampling_plan,
    rank_by_ratio,
    sampling_plan,
)
from gidd.sampling.correctors import COMPONENTS as CORRECTORS
from gidd.sampling.steps import COMPONENTS as STEPS
from gidd.vocab import Vocab
from support.ancestral_reference import ancestral_reference

SAMPLERS = {
    "ancestral": [ancestral],
    "ancestral_reference": [ancestral_reference],
    "confidence": [Confidence()],
    "greedy": [Greedy()],
    "threshold": [Threshold(), Threshold(fill=0.2, replace=0.3)],
    "remdm": [ReMDM(), ReMDM(cap=1.0, rescale=0.5)],
    "remask_suspects": [RemaskSuspects(), RemaskSuspects(suspect=0.5, max_fraction=1.0)],
    "psi": [Psi(), Psi(renoise=0.7)],
    "renoise": [Renoise(), Renoise(entropy_bound=3.0, stop_entropy=2.0)],
}
FIXERS = {
    "gibbs": [Gibbs(), Gibbs(distance=1, num_positions=3)],
    "gibbs_sweep": [GibbsSweep(), GibbsSweep(distance=3)],
    "posterior": [PosteriorCorrection(), PosteriorCorrection(error_rate=0.3, min_confidence=0.1)],
    "self_correction": [
        SelfCorrectionStep(),
        SelfCorrectionStep(temperature=0.5, patience=2, num_tokens=3, score=rank_by_ratio),
    ],
}
assert set(SAMPLERS) == {*STEPS, "ancestral_reference"}, "a step has no requests"
assert set(FIXERS) == set(CORRECTORS), "a corrector has no requests"


def is_defined(step: Step, schedule: MixingSchedule) -> bool:
    """Whether a step can sample with this noise."""
    try:
        getattr(step, "check", lambda *_: None)(schedule, 1.0)
    except ConfigError:
        return False
    return True


def random_request(
    rng: random.Random, vocab: Vocab, max_length: int, *, index: int, schedule: MixingSchedule
) -> Request:
    """Return a request with any plan, length, prompt, protected positions and processors."""
    length = rng.randint(1, max_length)
    share = rng.choice((0.0, 0.3, 0.8))
    mask = vocab.mask_id if vocab.mask_id is not None else 0
    given = [v for v in range(vocab.size) if v != mask]
    tokens = tuple(rng.choice(given) if rng.random() < share else None for _ in range(length))
    names = [name for name, steps in SAMPLERS.items() if is_defined(steps[0], schedule)]
    plan = random_plan(rng, rng.choice(SAMPLERS[rng.choice(names)]))
    protected = None
    if rng.random() < 0.4:
        protected = tuple(v is not None and rng.random() < 0.5 for v in tokens)
    return Request(
        tokens=tokens,
        plan=plan,
        seed=rng.randrange(4),
        sample_index=index,
        protected=protected,
        processors=random_processors(rng, vocab),
        stop=(given[0],) if rng.random() < 0.3 else (),
    )


def random_plan(rng: random.Random, sampler: object) -> Plan:
    """Return a plan that samples, with correctors between steps or behind them."""
    times = even_times(rng.randint(1, 8))
    if rng.random() < 0.15:
        return posterior_sampling_plan(rng.choice((0.2, 0.7)), rng.randint(1, 5))
    between = [rng.choice(FIXERS["gibbs"])] if rng.random() < 0.2 else []
    plan = sampling_plan(times, sampler, correctors=between)
    for name, steps in FIXERS.items():
        if rng.random() < 0.3:
            time = rng.choice((1e-4, 0.1)) if name in ("posterior", "self_correction") else 0.0
            plan += corrector_plan(rng.choice(steps), rng.randint(2, 6), time)
    return plan


def random_processors(rng: random.Random, vocab: Vocab) -> tuple[Processor, ...]:
    """Return up to two processors."""
    choices = [
        Temperature(rng.choice((0.0, 0.5, 1.7))),
        TopK(rng.randint(1, 9)),
        TopP(rng.choice((0.3, 0.9))),
        MinP(0.1),
        EpsilonCutoff(0.05),
        ban(vocab, rng.sample(range(min(5, vocab.size)), 2)),
    ]
    return tuple(rng.sample(choices, rng.choice((0, 0, 1, 2))))
