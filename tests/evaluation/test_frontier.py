"""Sweeps of sampling options: rows, Pareto points, and resuming."""

import json

import pytest
from support.small_grader import small_llama, small_tokenizer
from support.small_model import write_model

import gidd
from gidd.errors import ConfigError, DataError
from gidd.evaluation.samples.frontier_settings import FrontierGrid, FrontierSetting
from gidd.pipeline.options import CorrectionOptions, SamplingOptions

pytest.importorskip("transformers", reason='needs `pip install "gidd[eval]"`')

from gidd.evaluation.samples.frontier import evaluate_frontier, mark_frontier
from gidd.evaluation.samples.grader import Grader
from gidd.evaluation.samples.samples import evaluate_model_samples

GRID = FrontierGrid(
    steps=(2, 3),
    temperature=(0.5, 1.0),
    corrector=("none", "self_correction"),
    corrector_calls=(2,),
)
SWEEP = {"num_samples": 3, "length": 10, "seed": 2}


@pytest.fixture(scope="module")
def grader() -> Grader:
    return Grader(small_llama(), small_tokenizer(), name="small")


@pytest.fixture(scope="module")
def complete(pipe, grader, tmp_path_factory):
    out = tmp_path_factory.mktemp("frontier") / "frontier.json"
    return evaluate_frontier(pipe, GRID, grader=grader, out=out, **SWEEP), out


def test_a_row_is_the_evaluation_of_its_setting(complete, pipe, grader):
    result, _ = complete
    assert len(result.rows) == 8
    row = next(row for row in result.rows if FrontierSetting.of_row(row)[:2] == (3, 0.5))
    alone = evaluate_model_samples(
        pipe, 3, length=10, seed=2, grader=grader, steps=3, temperature=0.5
    )
    for name in ("gen_ppl", "entropy", "self_accuracy"):
        assert row[name] == alone.measurements[name].value
        assert row[f"{name}_se"] == alone.measurements[name].standard_error
    assert (row["nfe"], row["num_samples"], row["min_p"]) == (3, 3, None)
    corrected = [row for row in result.rows if row["corrector"] == "self_correction"]
    assert all(row["corrector_calls"] == 2 and row["nfe"] > row["steps"] for row in corrected)
    assert result.measurements["gen_ppl steps=3 temperature=0.5"].value == row["gen_ppl"]


def test_settings_become_sampling_options():
    base = SamplingOptions(mesh="sine", correction=CorrectionOptions(calls=0, temperature=0.3))
    plain = FrontierSetting(16, 0.7, 0.1, "none", 0).options(base)
    assert (plain.steps, plain.temperature, plain.min_p, plain.mesh) == (16, 0.7, 0.1, "sine")
    assert (plain.corrector_calls, plain.correction.calls) == (0, 0)
    gibbs = FrontierSetting(16, 0.7, None, "gibbs", 8).options(base)
    assert (gibbs.corrector, gibbs.corrector_calls, gibbs.correction.calls) == ("gibbs", 8, 0)
    corrected = FrontierSetting(16, 0.7, None, "self_correction", 8).options(base)
    assert (corrected.corrector_calls, corrected.correction.calls) == (0, 8)
    assert corrected.correction.temperature == 0.3
    both = FrontierGrid(steps=(4,), temperature=(1.0,), corrector=("none",), corrector_calls=(8, 9))
    assert both.settings() == [FrontierSetting(4, 1.0, None, "none", 0)]  # once


def test_pareto_points():
    points = [(10.0, 4.0), (20.0, 5.0), (15.0, 3.9), (10.0, 4.0), (30.0, 5.0), (None, 9.0)]
    rows = mark_frontier([{"gen_ppl": ppl, "entropy": entropy} for ppl, entropy in points])
    assert [row["on_frontier"] for row in rows] == [True, True, False, True, False, False]


def test_an_interrupted_sweep_resumes_to_the_same_file(complete, pipe, grader, tmp_path):
    _, expected = complete
    out = tmp_path / "frontier.json"

    def interrupt(setting, number, count):
        assert count == 8
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_frontier(pipe, GRID, grader=grader, out=out, on_setting=interrupt, **SWEEP)
    assert len(json.loads(out.read_text())["rows"]) == 3
    measured = []
    evaluate_frontier(
        pipe,
        GRID,
        grader=grader,
        out=out,
        on_setting=lambda setting, *_: measured.append(setting),
        **SWEEP,
    )
    assert measured == GRID.settings()[3:]
    assert out.read_bytes() == expected.read_bytes()
    evaluate_frontier(
        pipe, GRID, grader=grader, out=out, on_setting=interrupt, **SWEEP
    )  # none left


def test_a_larger_grid_adds_settings(complete, pipe, grader, tmp_path):
    result, expected = complete
    out = tmp_path / "frontier.json"
    out.write_bytes(expected.read_bytes())
    more = FrontierGrid(steps=(1,), temperature=(1.0,))
    grown = evaluate_frontier(pipe, more, grader=grader, out=out, **SWEEP)
    assert len(grown.rows) == 9
    assert [row["gen_ppl"] for row in grown.rows[:8]] == [row["gen_ppl"] for row in result.rows]


def test_a_file_of_other_settings_is_refused(complete, pipe, grader, tmp_path):
    _, out = complete
    before = out.read_bytes()
    with pytest.raises(DataError, match=r"seed \(2, now 5\)"):
        evaluate_frontier(pipe, GRID, grader=grader, out=out, **SWEEP | {"seed": 5})
    other = Grader(small_llama(), small_tokenizer(), name="small", max_length=9)
    with pytest.raises(DataError, match=r"grader\.max_length \(64, now 9\)"):
        evaluate_frontier(pipe, GRID, grader=other, out=out, **SWEEP)
    options = SamplingOptions(mesh="sine")
    with pytest.raises(DataError, match=r"sampling\.mesh"):
        evaluate_frontier(pipe, GRID, grader=grader, out=out, options=options, **SWEEP)
    assert out.read_bytes() == before
    record = json.loads(before)
    for change in ({"gen_ppl": "low"}, {"steps": [1]}, {"corrector": None}):
        record["rows"][0] |= change
        (tmp_path / "edited.json").write_text(json.dumps(record))
        with pytest.raises(DataError, match="did not write"):
            evaluate_frontier(pipe, GRID, grader=grader, out=tmp_path / "edited.json", **SWEEP)
    (tmp_path / "ppl.json").write_text(json.dumps(record | {"kind": "ppl"}))
    with pytest.raises(DataError, match="gidd eval ppl"):
        evaluate_frontier(pipe, GRID, grader=grader, out=tmp_path / "ppl.json", **SWEEP)


def test_invalid_values_are_refused_before_sampling(pipe, grader, tmp_path):
    for grid, message in (
        (FrontierGrid(steps=(0,)), "steps must be"),
        (FrontierGrid(temperature=(-1.0,)), "temperature must be"),
        (FrontierGrid(corrector=("magic",)), "corrector must be of none"),
        (FrontierGrid(corrector=("gibbs",), corrector_calls=(0,)), "corrector_calls must be"),
        (FrontierGrid(steps=()), "steps must have at least one value"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate_frontier(pipe, grid, grader=grader, **SWEEP)
    masked = gidd.from_pretrained(write_model(tmp_path, p_uniform=0.0), device="cpu")
    with pytest.raises(ConfigError, match="masking alone"):
        evaluate_frontier(masked, GRID, grader=grader, **SWEEP)
    plain = FrontierGrid(steps=(2,), temperature=(1.0,))
    result = evaluate_frontier(masked, plain, grader=grader, **SWEEP)
    assert result.rows[0]["self_accuracy"] is None
