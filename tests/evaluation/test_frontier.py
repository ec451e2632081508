"""`benchmarks/frontier.py`: rows, Pareto points, and resuming."""

import json
import sys
from pathlib import Path

import pytest
from support.small_grader import small_llama, small_tokenizer
from support.small_model import write_model

import gidd
from gidd.errors import ConfigError
from gidd.pipeline.options import SamplingOptions, SelfCorrectionOptions

pytest.importorskip("transformers", reason='needs `pip install "gidd[eval]"`')

from gidd.evaluation.graders import CausalScorer
from gidd.evaluation.samples import evaluate_model_samples

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    from frontier import FrontierGrid, FrontierSetting, evaluate_frontier, main, mark_frontier
finally:
    del sys.path[0]

GRID = FrontierGrid(
    steps=(2, 3),
    temperature=(0.5, 1.0),
    corrector=("none", "self_correction"),
    corrector_steps=(2,),
)
SWEEP = {"num_samples": 3, "length": 10, "seed": 2}


@pytest.fixture(scope="module")
def grader() -> CausalScorer:
    return CausalScorer(small_llama(), small_tokenizer(), name="small")


@pytest.fixture(scope="module")
def complete(pipe, grader, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frontier")
    return evaluate_frontier(pipe, GRID, grader=grader, folder=folder, **SWEEP), folder


@pytest.mark.slow
def test_a_row_is_the_evaluation_of_its_setting(complete, pipe, grader):
    result, _ = complete
    assert len(result.rows) == 8
    row = next(row for row in result.rows if row["setting"] == "steps=3 temperature=0.5")
    alone = evaluate_model_samples(
        pipe, 3, length=10, seed=2, grader=grader, steps=3, temperature=0.5
    )
    for name in ("gen_ppl", "entropy", "self_accuracy"):
        assert row[name] == alone.measurements[name].value
        assert row[f"{name}_se"] == alone.measurements[name].standard_error
    assert (row["nfe"], row["num_samples"], row["min_p"]) == (3, 3, None)
    corrected = [row for row in result.rows if row["corrector"] == "self_correction"]
    assert all(row["corrector_steps"] == 2 and row["nfe"] > row["steps"] for row in corrected)
    assert result.measurements["gen_ppl steps=3 temperature=0.5"].value == row["gen_ppl"]


def test_settings_become_sampling_options():
    base = SamplingOptions(
        timestep_spacing="sine",
        self_correction=SelfCorrectionOptions(forward_passes=0, temperature=0.3),
    )
    plain = FrontierSetting(16, 0.7, 0.1, "none", 0).options(base)
    assert (plain.steps, plain.temperature, plain.min_p, plain.timestep_spacing) == (
        16,
        0.7,
        0.1,
        "sine",
    )
    assert (plain.final_corrector_steps, plain.self_correction.forward_passes) == (0, 0)
    gibbs = FrontierSetting(16, 0.7, None, "gibbs", 8).options(base)
    assert (
        gibbs.final_corrector,
        gibbs.final_corrector_steps,
        gibbs.self_correction.forward_passes,
    ) == ("gibbs", 8, 0)
    corrected = FrontierSetting(16, 0.7, None, "self_correction", 8).options(base)
    assert (corrected.final_corrector_steps, corrected.self_correction.forward_passes) == (0, 8)
    assert corrected.self_correction.temperature == 0.3
    both = FrontierGrid(steps=(4,), temperature=(1.0,), corrector=("none",), corrector_steps=(8, 9))
    assert both.settings() == [FrontierSetting(4, 1.0, None, "none", 0)]  # once


def test_pareto_points():
    points = [(10.0, 4.0), (20.0, 5.0), (15.0, 3.9), (10.0, 4.0), (30.0, 5.0), (None, 9.0)]
    rows = mark_frontier([{"gen_ppl": ppl, "entropy": entropy} for ppl, entropy in points])
    assert [row["on_frontier"] for row in rows] == [True, True, False, True, False, False]


@pytest.mark.slow
def test_an_interrupted_sweep_measures_what_is_missing(complete, pipe, grader, tmp_path):
    expected, files = complete
    labels = []

    def interrupt(label, done, total):
        labels.append(label.partition(",")[0])
        if label.startswith("4 of 8"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_frontier(
            pipe, GRID, grader=grader, folder=tmp_path, on_progress=interrupt, **SWEEP
        )
    assert len(list(tmp_path.iterdir())) == 3
    labels.clear()
    result = evaluate_frontier(
        pipe,
        GRID,
        grader=grader,
        folder=tmp_path,
        on_progress=lambda label, *_: labels.append(label.partition(",")[0]),
        **SWEEP,
    )
    settings = GRID.settings()
    assert list(dict.fromkeys(labels)) == [
        f"{i + 1} of 8: {settings[i]}" for i in range(3, len(settings))
    ]
    assert result.to_dict() == expected.to_dict()
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted(f.name for f in files.iterdir())


def test_other_settings_are_measured_again(complete, pipe, grader):
    """The name of a file depends on model, grader, seed and all options of the sampler."""
    _, folder = complete
    before = set(folder.iterdir())
    one = FrontierGrid(steps=(2,), temperature=(0.5,))
    other = CausalScorer(small_llama(), small_tokenizer(), name="small", max_length=9)
    evaluate_frontier(pipe, one, grader=grader, folder=folder, **SWEEP)
    assert set(folder.iterdir()) == before
    for changes in (
        {"seed": 5},
        {"length": 9},
        {"grader": other},
        {"options": SamplingOptions(timestep_spacing="sine")},
    ):
        settings = SWEEP | {"grader": grader} | changes
        evaluate_frontier(pipe, one, folder=folder, **settings)
    assert len(set(folder.iterdir()) - before) == 4


def test_invalid_values_are_refused_before_sampling(pipe, grader, tmp_path):
    for grid, message in (
        (FrontierGrid(corrector=("magic",)), "corrector must be one of none"),
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


@pytest.mark.slow
def test_the_script_writes_a_table_and_continues(tmp_path, monkeypatch, capsys):
    model, grader = str(write_model(tmp_path / "model")), str(tmp_path / "grader")
    small_llama().save_pretrained(grader)
    small_tokenizer().save_pretrained(grader)
    out = tmp_path / "frontier.json"
    words = [model, "--steps", "2", "3", "--temperature", "0.5", "1.0", "--min-p", "none"]
    words += ["--length", "10", "--num-samples", "2", "--grader", grader, "--out", str(out)]

    def run(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", ["frontier.py", *words, *more])
        main()
        return capsys.readouterr().out

    table, rows = run(), json.loads(out.read_text())["rows"]
    assert [(row["steps"], row["temperature"]) for row in rows] == [
        (2, 0.5),
        (2, 1.0),
        (3, 0.5),
        (3, 1.0),
    ]
    assert sum("*" in line for line in table.splitlines()) == sum(r["on_frontier"] for r in rows)
    written = out.read_bytes()
    assert len(list((tmp_path / "frontier.settings").iterdir())) == 4
    assert run() == table and out.read_bytes() == written
    run("--num-samples", "3")  # other numbers, other files
    assert len(list((tmp_path / "frontier.settings").iterdir())) == 8
    with pytest.raises(SystemExit):
        run("--corrector", "magic")
    assert "corrector must be one of none" in capsys.readouterr().err
