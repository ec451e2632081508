"""Options and arguments of the wrong type or range: one message, before anything is computed."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.small_model import write_model

import gidd
from gidd import Pipeline
from gidd.common.config.allowed import problems_of
from gidd.errors import ConfigError
from gidd.pipeline.options import SamplingOptions, SelfCorrectionOptions

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

NO_INTEGERS = [1.5, True, "1", None, math.nan, 10**30, -1, [1]]
NO_NUMBERS = [True, "1", None, math.nan, math.inf, 1e39, 10**400, -0.1, [1]]
INTEGERS = {
    SamplingOptions: ["steps", "top_k", "final_corrector_steps"],
    SelfCorrectionOptions: ["forward_passes", "patience", "tokens_per_step", "distance"],
}
NUMBERS = {
    SamplingOptions: ["temperature", "top_p", "min_p", "epsilon_cutoff"],
    SelfCorrectionOptions: ["temperature"],
}
NONE_ALLOWED = {"top_k", "top_p", "min_p", "epsilon_cutoff"}
CASES = [
    (kind, name, value)
    for fields, values in ((INTEGERS, NO_INTEGERS), (NUMBERS, NO_NUMBERS))
    for kind, names in fields.items()
    for name in names
    for value in values
    if value is not None or name not in NONE_ALLOWED
]


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_an_option_of_the_wrong_type_or_range_is_the_only_problem(kind, name, value):
    (problem,) = problems_of(replace(kind(), **{name: value}))
    assert problem.startswith(f"{name} must be ")
    assert len(problem) < 300


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("name", ["fill", "replace"])
def test_an_option_of_a_sampler_of_the_wrong_type_or_range_is_the_only_problem(name, value):
    options = SamplingOptions(sampler="threshold", sampler_options={name: value})
    (problem,) = problems_of(options)
    assert problem.startswith(f"sampler.{name} must be ")
    with pytest.raises(ConfigError, match=f"sampler.{name}"):
        options.plan()


@pytest.mark.parametrize("value", [0, *NO_INTEGERS])
@pytest.mark.parametrize("corrector", ["gibbs", "gibbs_sweep", "self_correction"])
def test_an_option_of_a_corrector_of_the_wrong_type_or_range_is_the_only_problem(corrector, value):
    options = SamplingOptions(
        final_corrector=corrector, final_corrector_options={"distance": value}
    )
    (problem,) = problems_of(options)
    assert problem.startswith("final_corrector.distance must be ")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": "threshold", "sampler_options": {"fill": 0.5}, "timestep_spacing": "sine"},
        {"final_corrector": "gibbs", "final_corrector_steps": 3, "steps": 4},
        {"self_correction": SelfCorrectionOptions(forward_passes=8, score="gain")},
    ],
)
def test_equal_options_give_equal_plans(options):
    """So that equal requests made apart are stepped together."""
    first, again = SamplingOptions(**options).plan(), SamplingOptions(**options).plan()
    assert (first, hash(first)) == (again, hash(again))
    assert first != SamplingOptions(**options | {"steps": 7}).plan()


def test_equal_corrections_give_equal_plans():
    first, again = (
        SelfCorrectionOptions(forward_passes=8).plan(),
        SelfCorrectionOptions(forward_passes=8).plan(),
    )
    assert (first, hash(first)) == (again, hash(again))
    assert first != SelfCorrectionOptions(forward_passes=8, patience=3).plan()


@pytest.mark.parametrize("part", ["sampler", "final_corrector"])
@pytest.mark.parametrize("value", [None, 3, "fill", [("fill", 0.5)], {"flil": 0.5}, {3: 0.5}])
def test_options_that_a_part_does_not_have_are_the_only_problem(part, value):
    (problem,) = problems_of(SamplingOptions(**{f"{part}_options": value}))
    assert problem.startswith(f"{part}_options must be ")


@pytest.mark.parametrize(
    "name", ["timestep_spacing", "sampler", "final_corrector", "self_correction"]
)
@pytest.mark.parametrize("value", [None, 3, "x", ["even"]])
def test_a_choice_that_does_not_exist_is_the_only_problem(name, value):
    (problem,) = problems_of(replace(SamplingOptions(), **{name: value}))
    assert problem.startswith(f"{name} must be ")


def test_integers_and_numbers_of_numpy_are_allowed():
    options = SamplingOptions(steps=np.int64(3), temperature=np.float32(0.5), top_k=np.int32(2))
    assert not list(problems_of(options))


@pytest.fixture(scope="module")
def pipe(tmp_path_factory) -> Pipeline:
    return gidd.from_pretrained(write_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("value", [1.5, True, "1", [1], 10**30, -1])
@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("generate", "n"),
        ("generate", "length"),
        ("generate", "max_tokens"),
        ("generate", "seed"),
        ("generate", "start_index"),
        ("generate", "steps"),
        ("infill", "n"),
        ("infill", "seed"),
        ("infill", "start_index"),
        ("self_correct", "seed"),
        ("self_correct", "forward_passes"),
        ("score", "seed"),
        ("score", "nodes"),
        ("score", "repeats"),
    ],
)
def test_arguments_that_must_be_integers(pipe, method, name, value):
    texts = {"generate": [], "infill": ["a[MASK]"], "self_correct": ["a"], "score": ["a"]}
    with pytest.raises(ConfigError, match=f"^{name} must be "):
        getattr(pipe, method)(*texts[method], **{name: value})


@pytest.mark.parametrize("temperature", [0, 1e-300, 1e38])
def test_the_extreme_temperatures_that_are_allowed_give_text(pipe, temperature):
    (generation,) = pipe.generate(length=8, steps=2, temperature=temperature, confidence=True)
    assert all(map(math.isfinite, generation.confidence))
    assert pipe.schedule.vocab.mask_id not in generation.tokens


def test_the_smallest_top_p_keeps_the_most_likely_token(pipe):
    (least,) = pipe.generate(length=8, steps=2, top_p=5e-324)
    (greedy,) = pipe.generate(length=8, steps=2, top_k=1)
    assert least.tokens == greedy.tokens


def test_a_manifest_says_how_many_tokens_may_be_written(pipe):
    """Inside a text, end-of-text and padding are banned, and the mask is never predicted."""
    (sample,) = pipe.infill("a[MASK]b", steps=2)
    size = pipe.schedule.vocab.size
    assert sample.manifest["processors"] == [f"Ban(2 of {size} tokens)"]
