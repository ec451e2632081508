"""`benchmarks/scaling.py`: power laws and their crossing, from runs whose exponents are known."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from support.synthetic_runs import run_config, small_tokenizer, write_synthetic_run

from gidd.errors import ConfigError, DataError
from gidd.evaluation.results import EvaluationResult
from gidd.models import DiTConfig
from gidd.training.reporting.speed import transformer_flops_per_token

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    from scaling import (
        PowerLaw,
        bootstrap_fits,
        evaluate_scaling,
        fit_frontier,
        interval,
        main,
        on_frontier,
        read_training_run,
    )
finally:
    del sys.path[0]

STEPS = (1, 10, 20, 40)
START = 1e9
"""FLOPs below which synthetic runs are worse than the power law."""


def law(exponent, at_1e9):
    """A power law through a NELBO at 1e9 FLOPs; the first points of a run are above it."""

    def evaluate(flops):
        value = at_1e9 * (flops / 1e9) ** exponent
        return {"nelbo": value * (1.5 if flops < START else 1.0), "nelbo_se": 0.01}

    return evaluate


def write_series(folder, name, exponent, at_1e9, p_uniform):
    return [
        write_synthetic_run(
            folder / f"{name}-{width}",
            run_config(p_uniform=p_uniform, width=width),
            STEPS,
            law(exponent, at_1e9),
        )
        for width in (32, 48, 64)
    ]


def test_the_frontier_by_hand():
    flops = np.array([1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 0.5])
    nelbo = np.array([5.0, 4.0, 3.0, 3.0, 2.0, 2.0, 9.0])
    #                 yes  worse yes  equal yes  same again yes
    assert on_frontier(flops, nelbo).tolist() == [True, False, True, False, True, False, True]


def test_a_fit_recovers_the_power_law_and_ignores_points_above_the_frontier():
    flops = np.geomspace(1e15, 1e20, 30)
    good = np.stack([flops, 300 * flops**-0.06])
    bad = np.stack([flops, 301 * flops**-0.06])
    fit = fit_frontier([good, bad])
    assert fit.exponent == pytest.approx(-0.06, rel=1e-9)
    assert math.exp(fit.log_coefficient) == pytest.approx(300, rel=1e-9)
    assert fit_frontier([np.array([[1e9, 1e9], [3.0, 2.0]])]) is None


def test_bootstrap_intervals_cover_the_exponent_and_resample_runs():
    generator = np.random.default_rng(0)
    curves = [
        np.array([[f], [300 * f**-0.06 * math.exp(0.01 * generator.normal())]])
        for f in np.geomspace(1e15, 1e20, 12)
    ]
    low, high = interval([fit.exponent for fit in bootstrap_fits(curves, 500, 0)])
    assert low < -0.06 < high
    assert 0.001 < high - low < 0.02  # least squares has a standard error of 0.0009
    assert bootstrap_fits(curves, 5, 0) == bootstrap_fits(curves, 5, 0)
    assert bootstrap_fits(curves[:1], 500, 0) == []


def test_crossing_by_hand():
    steep, flat = PowerLaw(-0.2, math.log(100.0)), PowerLaw(-0.1, math.log(10.0))
    assert steep.crossing(flat) == pytest.approx(1e10)  # 10 = F ** 0.1
    assert flat.crossing(steep) == math.inf
    assert PowerLaw(flat.exponent - 1e-6, 5.0).crossing(flat) == math.inf
    assert interval([1e10] * 17 + [math.inf] * 3) == [1e10, math.inf]


def run_script(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["scaling.py", *map(str, words)])
    main()


def test_runs_to_exponents_and_their_crossing(tmp_path, capsys, monkeypatch):
    """Both laws are exact: 8 F9^-0.1 and 9 F9^-0.15 cross where F9^0.05 = 9/8."""
    runs = write_series(tmp_path, "mask", -0.1, 8.0, 0.0)
    runs += write_series(tmp_path, "hybrid", -0.15, 9.0, 0.2)
    out = tmp_path / "scaling.json"
    run_script(monkeypatch, *runs, "--out", out, "--min-flops", "1e9")
    printed = capsys.readouterr()
    assert "exponent_p_uniform=0.2" in printed.out
    expected = 1e9 * (9 / 8) ** 20
    assert f"lower than p_uniform=0.0 above {expected:.2e}" in printed.out
    result = EvaluationResult.read(out)
    values = {name: entry.value for name, entry in result.measurements.items()}
    assert values["exponent_p_uniform=0.0"] == pytest.approx(-0.1, rel=1e-6)
    assert values["exponent_p_uniform=0.2"] == pytest.approx(-0.15, rel=1e-6)
    assert values["coefficient_p_uniform=0.0"] == pytest.approx(8 * 1e9**0.1, rel=1e-6)
    assert values["crossing_p_uniform=0.2_p_uniform=0.0"] == pytest.approx(expected, rel=1e-5)
    (row, *_) = result.rows
    assert row.keys() >= {"series", "run", "flops", "nelbo", "tokens", "on_frontier"}
    assert row["nelbo_se"] == 0.01
    assert json.loads(out.read_text())["manifest"]["fits"]["p_uniform=0.0"]["num_runs"] == 3


def series_of(folders, setting="p_uniform"):
    series = {}
    for run in map(read_training_run, folders):
        series.setdefault(run.label(setting), []).append(run)
    return series


def test_points_count_tokens_and_flops(tmp_path):
    run = read_training_run(write_synthetic_run(tmp_path, run_config(), [10], law(-0.1, 8.0)))
    (point,) = run.points
    assert point["tokens"] == 10 * 8 * 16
    per_token = point["flops"] / point["tokens"]
    assert per_token == pytest.approx(6 * (2 * 12 * 32**2 + 2 * 32 * 280), rel=0.1)


def test_the_budget_of_the_paper():
    """Base models were trained on 131 billion tokens (App. E): 3.3e20 FLOPs (App. A).

    Without embeddings it would be 3.0e20.
    """
    size = DiTConfig.base(50258, 512)
    per_token = transformer_flops_per_token(size, 512)
    total = 131e9 * (per_token + 6 * size.width * size.vocab_size)
    assert total == pytest.approx(3.3e20, rel=0.03)


def test_a_series_that_is_lower_and_steeper_does_not_cross(tmp_path):
    runs = write_series(tmp_path, "mask", -0.1, 9.0, 0.0)
    runs += write_series(tmp_path, "hybrid", -0.15, 7.0, 0.2)
    result = evaluate_scaling(series_of(runs), min_flops=START)
    assert not any(name.startswith("crossing") for name in result.measurements)


def test_series_by_setting(tmp_path):
    mask = write_series(tmp_path, "mask", -0.1, 8.0, 0.0)
    assert set(series_of(mask, "backbone.width")) == {"width=32", "width=48", "width=64"}
    assert set(series_of(mask, "noise")) == {"noise=hybrid"}
    with pytest.raises(ConfigError, match="run mask-32 has no 'widht'"):
        series_of(mask, "backbone.widht")


def test_what_is_missing_is_named(tmp_path, capsys, monkeypatch):
    with pytest.raises(SystemExit, match="2"):
        run_script(monkeypatch, tmp_path)
    assert f"{tmp_path}/checkpoints contains no checkpoint" in capsys.readouterr().err
    no_validation = write_synthetic_run(tmp_path / "a", run_config(), [10], lambda _: {"loss": 3.0})
    with pytest.raises(DataError, match="no validation, which has nelbo"):
        read_training_run(no_validation)
    one = write_synthetic_run(tmp_path / "b", run_config(), [10], law(-0.1, 8.0))
    with pytest.raises(DataError, match="two points with different FLOPs"):
        evaluate_scaling({"b": [read_training_run(one)]})
    other = write_synthetic_run(
        tmp_path / "c", run_config(), STEPS, law(-0.1, 8.0), small_tokenizer(270)
    )
    with pytest.raises(DataError, match="different tokenizers"):
        evaluate_scaling({"b": [read_training_run(one)], "c": [read_training_run(other)]})
