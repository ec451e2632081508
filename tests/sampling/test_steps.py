"""Steps are values: equal if their options are, checked when they are made and before a request."""

from dataclasses import dataclass, fields
from functools import partial

import pytest
import torch
from support.registrations import temporary_registrations

from gidd.common.config.components import component
from gidd.common.config.registry import builtin_components, register
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError
from gidd.pipeline.results import describe_plan
from gidd.sampling import (
    Confidence,
    Gibbs,
    GibbsSweep,
    Greedy,
    PlannedStep,
    PosteriorCorrection,
    Psi,
    RemaskSuspects,
    ReMDM,
    Renoise,
    SelfCorrectionStep,
    Threshold,
    ancestral,
    corrector_plan,
    rank_by_ratio,
    sampling_plan,
)
from gidd.vocab import Vocab

VOCAB = Vocab(5, mask_id=4)
MASKED, HYBRID = MaskedSchedule(VOCAB), HybridSchedule(VOCAB, 0.2)
UNIFORM = UniformSchedule(Vocab(5))

# a step, and others that differ from it in one option each
STEPS = {
    Confidence: [{}],
    Greedy: [{}],
    Threshold: [{}, {"fill": 0.5}, {"replace": 0.5}],
    ReMDM: [{}, {"cap": 0.5}, {"rescale": 0.5}],
    RemaskSuspects: [{}, {"suspect": 0.5}, {"max_fraction": 0.5}],
    Psi: [{}, {"renoise": 0.5}],
    Renoise: [
        {},
        {"entropy_bound": 1.0},
        {"min_temperature": 0.5},
        {"max_temperature": 1.0},
        {"stop_entropy": 0.1},
    ],
    Gibbs: [{}, {"distance": 4}, {"num_positions": 1}],
    GibbsSweep: [{}, {"distance": 4}],
    SelfCorrectionStep: [
        {},
        {"temperature": 0.2},
        {"patience": 3},
        {"num_tokens": 2},
        {"distance": 2},
        {"score": rank_by_ratio},
    ],
    PosteriorCorrection: [
        {},
        {"error_rate": 0.1},
        {"min_confidence": 0.9},
    ],
}


def test_all_parts_are_covered():
    parts = {*builtin_components("step").values(), *builtin_components("corrector").values()}
    assert {make for make in parts if isinstance(make, type)} == set(STEPS)
    for make, options in STEPS.items():
        assert {name for given in options for name in given} == {f.name for f in fields(make)}


@pytest.mark.parametrize("make", STEPS)
def test_steps_are_equal_if_and_only_if_their_options_are(make):
    options = STEPS[make]
    steps, again = [make(**given) for given in options], [make(**given) for given in options]
    assert steps == again
    assert list(map(hash, steps)) == list(map(hash, again))
    assert len(set(steps)) == len(steps)
    assert all(step != other() for step in steps for other in STEPS if other is not make)
    assert steps[0] != ancestral and steps[0] != None  # noqa: E711


def test_plans_are_equal_if_their_steps_are():
    plan = sampling_plan(even_times(4), Threshold()) + corrector_plan(Gibbs(distance=3), 2)
    again = sampling_plan(even_times(4), Threshold()) + corrector_plan(Gibbs(distance=3), 2)
    assert (plan, hash(plan)) == (again, hash(again))
    assert plan != sampling_plan(even_times(4), Threshold()) + corrector_plan(Gibbs(), 2)


@pytest.mark.parametrize(
    ("make", "option", "message"),
    [
        (Threshold, {"fill": 1.1}, r"fill .*in \[0, 1\], got 1.1. Lower"),
        (Threshold, {"replace": float("nan")}, r"replace .*in \[0, 1\], got nan. Lower"),
        (Threshold, {"fill": "0.5"}, "fill .*a number.*got '0.5'"),
        (ReMDM, {"cap": -0.1}, r"cap .*in \[0, 1\], got -0.1. 0 is"),
        (ReMDM, {"rescale": 2}, r"rescale .*in \[0, 1\], got 2. 0 is"),
        (RemaskSuspects, {"suspect": 1.5}, r"suspect .*in \[0, 1\], got 1.5. 0 never"),
        (RemaskSuspects, {"max_fraction": "1"}, "max_fraction .*a number.*got '1'"),
        (Psi, {"renoise": 1.1}, r"renoise .*in \[0, 1\], got 1.1. 0 is the ancestral"),
        (Renoise, {"entropy_bound": 0}, r"entropy_bound .*in \(0, 1e6\], got 0"),
        (Gibbs, {"distance": 0}, "distance .*at least 1.*got 0"),
        (Gibbs, {"distance": 2.0}, "distance .*an integer.*got 2.0"),
        (Gibbs, {"distance": True}, "distance .*an integer.*got True"),
        (Gibbs, {"num_positions": 0}, "num_positions .*at least 1.*got 0. Leave it out"),
        (GibbsSweep, {"distance": -1}, "distance .*at least 1.*got -1"),
        (SelfCorrectionStep, {"temperature": -0.1}, r"temperature .*\[0, .*got -0.1. 0 always"),
        (SelfCorrectionStep, {"patience": 0}, "patience .*at least 1.*got 0. The paper"),
        (SelfCorrectionStep, {"num_tokens": 0}, "num_tokens .*at least 1.*got 0. The paper"),
        (SelfCorrectionStep, {"distance": 0}, "distance .*at least 1.*got 0"),
        (
            SelfCorrectionStep,
            {"score": "gain"},
            "score .*a function.*got 'gain'. Use rank_by_probability",
        ),
        (PosteriorCorrection, {"error_rate": 1.0}, r"error_rate .*in \[0, 1\), got 1.0"),
        (PosteriorCorrection, {"error_rate": "1"}, "error_rate .*a number.*got '1'"),
        (PosteriorCorrection, {"min_confidence": -1}, r"min_confidence .*in \[0, 1\], got -1. It"),
    ],
)
def test_wrong_options_are_refused_by_the_class_and_by_the_command_line(make, option, message):
    with pytest.raises(ConfigError, match=message):
        make(**option)
    kind, name = next(
        (kind, name)
        for kind in ("step", "corrector")
        for name, found in builtin_components(kind).items()
        if found is make
    )
    (problem,) = component(kind, name, **option).problems()
    assert problem.startswith(next(iter(option)))


def test_all_wrong_options_are_reported_at_once():
    with pytest.raises(ConfigError, match="(?s)fill .*replace "):
        Threshold(fill=2, replace=-1)


@pytest.mark.parametrize("step", [Confidence(), Greedy(), Threshold()])
@pytest.mark.parametrize("t", [1.0, 0.5, 0.0])
def test_filling_masks_needs_masks(step, t):
    """`Threshold` fills masks from t = 1 only; later it edits given tokens under any noise."""
    step.check(MASKED, t)
    step.check(HYBRID, t)
    for schedule, fraction in ((UNIFORM, "0.0%"), (UniformSchedule(VOCAB), "0.0%")):
        if isinstance(step, Threshold) and t < 1:
            step.check(schedule, t)
        else:
            with pytest.raises(ConfigError, match=f"masks at t = 1, got {fraction}.*ancestral"):
                step.check(schedule, t)


def test_schedules_that_are_not_hashable_are_checked_too():
    class Own(MaskedSchedule):
        __hash__ = None

    Confidence().check(Own(VOCAB), 1.0)


def test_a_step_that_returns_its_best_state_needs_two_calls():
    assert SelfCorrectionStep.min_steps == 2
    assert not any(hasattr(make, "min_steps") for make in STEPS if make is not SelfCorrectionStep)


@dataclass(frozen=True)
class OwnStep:
    width: int = 3

    def __call__(self, schedule, s, t, state, predict): ...


@dataclass(frozen=True)
class NamedStep:
    def __call__(self, schedule, s, t, state, predict): ...


def own_function(schedule, s, t, state, predict, *, width=3): ...


def test_names_in_logs():
    """Edit logs and manifests of earlier versions have the same names."""
    expected = {
        ancestral: "ancestral",
        Confidence(): "confidence",
        Greedy(): "greedy",
        Threshold(): "threshold",
        ReMDM(): "remdm",
        RemaskSuspects(): "remask_suspects",
        Psi(): "psi",
        Renoise(): "renoise",
        Gibbs(): "gibbs",
        GibbsSweep(): "gibbs_sweep",
        SelfCorrectionStep(): "self_correction",
        PosteriorCorrection(): "posterior_correction",
        OwnStep(): "OwnStep",
        own_function: "own_function",
        partial(own_function, width=2): "own_function",
    }
    assert {step: PlannedStep(step, 1.0, 0.5).name for step in expected} == expected
    with temporary_registrations():
        register("step", "named")(NamedStep)
        assert PlannedStep(NamedStep(), 1.0, 0.5).name == "named"


def test_manifests_have_the_options_of_steps():
    def described(step):
        (phase,) = describe_plan(corrector_plan(step, 2, 0.5))
        return {name: value for name, value in phase.items() if name not in ("from", "to", "steps")}

    assert described(ancestral) == {"step": "ancestral"}
    assert described(Threshold(fill=0.5)) == {"step": "threshold", "fill": 0.5, "replace": 0.9}
    assert described(SelfCorrectionStep(score=rank_by_ratio)) == {
        "step": "self_correction",
        "temperature": 0.1,
        "patience": 32,
        "num_tokens": 1,
        "distance": 1,
        "score": "rank_by_ratio",
    }
    assert described(partial(own_function, width=2)) == {"step": "own_function", "width": 2}
    table = described(partial(own_function, width=torch.eye(5)))
    assert table == {"step": "own_function", "width": "tensor of shape [5, 5]"}
