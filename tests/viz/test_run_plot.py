"""`gidd plot`: curves from logs."""

import math

import numpy as np
import pytest

from gidd.cli import main
from gidd.training.reporting.log import METRICS_FILE
from gidd.training.reporting.report import Report
from gidd.viz.figure import COLOURS
from gidd.viz.run_plot import MetricSeries, RunGroup, RunLog, plot_runs


def write_run(folder, *, floor=3.0, num_steps=60, likelihood="nelbo"):
    with Report(folder, num_steps=num_steps, quiet=True) as report:
        for step in range(1, num_steps + 1):
            value = floor + 4 * math.exp(-step / 10)
            metrics = {"loss": value, likelihood: value, "learning_rate": 1e-3, "grad_norm": 0.5}
            if likelihood == "nelbo":
                metrics |= {"nelbo_masked": 0.7 * value, "nelbo_replaced": 0.3 * value}
                metrics |= {"nelbo_kept": math.nan}
            report.training(step, metrics)
            if step % 20 == 0:
                report.evaluation(step, {likelihood: value + 0.1})
    return folder


def pixels(path):
    image = pytest.importorskip("matplotlib.image", reason="comes with gidd[viz]")
    return image.imread(path)[..., :3]


@pytest.mark.slow
@pytest.mark.parametrize("likelihoods", [["nelbo"], ["nll"], ["nelbo", "nelbo", "nll"]])
def test_plot_draws_every_run_in_its_colour(tmp_path, capsys, likelihoods):
    pytest.importorskip("matplotlib", reason="comes with gidd[viz]")
    runs = [
        str(write_run(tmp_path / f"run{i}", floor=3.0 + i, likelihood=likelihood))
        for i, likelihood in enumerate(likelihoods)
    ]
    main(["plot", *runs, "--out", str(tmp_path / "new" / "curves.png")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "new" / "curves.png")
    image = pixels(tmp_path / "new" / "curves.png")
    assert image.shape == (1125, 1800, 3)
    assert 0.005 < (image.min(-1) < 0.9).mean() < 0.3  # neither blank nor black
    for colour in COLOURS[: len(runs)]:
        rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        assert (np.abs(image - rgb).max(-1) < 0.02).sum() > 500


def test_smoothing_preserves_a_line_and_reduces_noise():
    steps = np.arange(1, 4001)
    line = MetricSeries(steps, 5 - 0.001 * steps).smooth()
    inside = slice(0, -60)  # the window is cut at the end
    np.testing.assert_allclose(line[inside], (5 - 0.001 * steps)[inside], atol=1e-9)
    noise = np.random.default_rng(0).normal(size=4000)
    smooth = MetricSeries(steps, noise).smooth()[100:]
    assert smooth.std() < 0.15  # a mean of 101 values: 0.0995


def test_curves_skip_missing_and_non_finite_values(tmp_path):
    run = RunLog.read(write_run(tmp_path / "run"))
    assert run.name == "run"
    assert len(run.curve("training", "nelbo_kept").values) == 0
    assert len(run.curve("training", "unknown").values) == 0
    assert run.curve("evaluation", "nelbo").steps.tolist() == [20, 40, 60]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist. Give the folder of a run"),
        (b"", "has no lines yet. Wait"),
        (b'{"kind": "trai', "has no lines yet. Wait"),
        (b'{"kind": "training", "st\n{"kind": "training", "step": 2}\n', "line 1 is damaged"),
        (b'{"kind": "training", "step": 2}\n[]\n', "line 2 is damaged"),
    ],
)
def test_errors_say_what_to_do(tmp_path, capsys, content, message):
    if content is not None:
        (tmp_path / METRICS_FILE).write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["plot", str(tmp_path)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gidd: {tmp_path / METRICS_FILE}") and message in error


GOOD = b'{"kind": "training", "step": 1, "loss": 3.0, "wall": {}}\n'
DAMAGED = {
    "null": b"null",
    "no kind": b'{"step": 1}',
    "kind": b'{"kind": ["training"], "step": 1}',
    "step true": b'{"kind": "training", "step": true}',
    "step 1.0": b'{"kind": "training", "step": 1.0}',
    "step -1": b'{"kind": "training", "step": -1}',
    "step 10**400": b'{"kind": "training", "step": 1' + b"0" * 400 + b"}",
    "loss list": b'{"kind": "training", "step": 1, "loss": []}',
    "loss text": b'{"kind": "training", "step": 1, "loss": "3"}',
    "loss null": b'{"kind": "training", "step": 1, "loss": null}',
    "loss hidden by wall": b'{"kind": "training", "step": 1, "loss": [], "wall": {"loss": 1}}',
    "loss NaN": b'{"kind": "training", "step": 1, "loss": NaN}',
    "loss 1e999": b'{"kind": "training", "step": 1, "loss": 1e999}',
    "loss 10**400": b'{"kind": "training", "step": 1, "loss": 1' + b"0" * 400 + b"}",
    "loss 10**9999": b'{"kind": "training", "step": 1, "loss": 1' + b"0" * 9999 + b"}",
    "wall": b'{"kind": "training", "step": 1, "wall": 3}',
    "samples": b'{"kind": "evaluation", "step": 1, "samples": "text"}',
    "deep": b"[" * 10**5 + b"]" * 10**5,
    "deep loss": b'{"kind": "training", "step": 1, "loss": ' + b"[" * 99 + b"]" * 99 + b"}",
    "long": b'{"kind": "' + b"a" * 2**24 + b'", "step": 1}',
    "many values": b"[" + b"0," * 6_000_000 + b"0]",
    "escapes": b"\x1b]0;title\x07",
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_line_is_named_in_one_message(tmp_path, capsys, kind):
    (tmp_path / METRICS_FILE).write_bytes(GOOD + DAMAGED[kind] + b"\n" + GOOD)
    with pytest.raises(SystemExit) as ended:
        main(["plot", str(tmp_path)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gidd: {tmp_path / METRICS_FILE}, line 2 is damaged")
    assert error.count("\n") == 1 and len(error) < 1000 and "\x1b" not in error


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_run_that_resumes_removes_damaged_lines(tmp_path, kind):
    log = tmp_path / METRICS_FILE
    log.write_bytes(GOOD + DAMAGED[kind] + b"\n" + GOOD)
    Report(tmp_path, num_steps=9, start=1, quiet=True).close()
    assert log.read_bytes() == GOOD + GOOD


@pytest.mark.slow
def test_extreme_values_are_plotted_or_left_out(tmp_path):
    pytest.importorskip("matplotlib", reason="comes with gidd[viz]")
    names = ("loss", "nelbo", "nelbo_masked", "grad_norm", "learning_rate")
    values = (0.0, -0.0, 5e-324, -1e38, 1e38, 1e308, -1e308, 1.0, math.inf, math.nan)
    for folder, steps in (("few", range(10)), ("huge", range(2**63 - 10, 2**63))):
        with Report(tmp_path / folder, num_steps=9, quiet=True) as report:
            for step, value in zip(steps, values, strict=True):
                report.training(step, dict.fromkeys(names, value))
                report.evaluation(step, {"nelbo": value})
        main(["plot", str(tmp_path / folder)])
        assert pixels(tmp_path / folder / "curves.png").shape == (1125, 1800, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["$x^{$", "$\\nothing$", "a_b^c", "%s {0}", "\x1b[2J\udcff"])
def test_names_of_runs_are_not_formulas(tmp_path, name):
    pytest.importorskip("matplotlib", reason="comes with gidd[viz]")
    runs = [str(write_run(tmp_path / folder, num_steps=2)) for folder in (name, "other")]
    main(["plot", *runs, "--out", str(tmp_path / "curves.png")])


@pytest.mark.slow
def test_a_metric_that_was_logged_once_is_visible(tmp_path, capsys):
    """As a point in each of the five panels, since a line needs two."""
    pytest.importorskip("matplotlib", reason="comes with gidd[viz]")
    main(["plot", str(write_run(tmp_path, num_steps=1) / METRICS_FILE)])
    assert capsys.readouterr().out.strip() == str(tmp_path / "curves.png")
    image = pixels(tmp_path / "curves.png")
    assert image.shape == (1125, 1800, 3)
    rgb = np.array([int(COLOURS[0][i : i + 2], 16) for i in (1, 3, 5)]) / 255
    mine = np.abs(image - rgb).max(-1) < 0.02
    below = np.split(mine[700:1060], 4, axis=1)
    above = mine[:640]
    assert all(panel.sum() > 30 for panel in (above, *below))


def test_a_log_without_likelihoods_has_a_title(tmp_path, figures_made):
    with Report(tmp_path, num_steps=1, quiet=True) as report:
        report.training(1, {"loss": 3.0})
    main(["plot", str(tmp_path)])
    titles = [axes.get_title(loc="left") for axes in figures_made[0].subfigs[0].axes]
    assert titles[0].startswith("Likelihood, nats per token")


def test_no_run_and_a_folder_as_output_are_refused(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="comes with gidd[viz]")
    run = str(write_run(tmp_path / "run", num_steps=2))
    for words, message in (
        ([], "at least one run"),
        ([run] * 8, "1 to 7 runs, got 8"),
        ([run, "--out", str(tmp_path)], f"got {tmp_path}."),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["plot", *words])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


def log_of(name, steps, values, kind="training", metric="nelbo", **others):
    lines = [
        {"kind": kind, "step": step, metric: value, **others}
        for step, value in zip(steps, values, strict=True)
    ]
    return RunLog(name, lines)


def test_a_group_has_the_mean_and_range_at_common_steps():
    group = RunGroup("g", [log_of("a", [1, 2, 3], [1, 2, 3]), log_of("b", [2, 3, 4], [4, 7, 9])])
    band = group.band("training", "nelbo")
    assert band.steps.tolist() == [2, 3]
    assert band.mean.tolist() == [3.0, 5.0]
    assert band.low.tolist() == [2.0, 3.0] and band.high.tolist() == [4.0, 7.0]
    assert group.band("training", "loss") is None
    apart = RunGroup("g", [log_of("a", [1], [1]), log_of("b", [2], [4])])
    assert apart.band("training", "nelbo") is None


def errors_of(axes):
    """Lengths of the vertical error bars, in the order of drawing."""
    ends = [bars.get_segments() for bars in axes.collections if hasattr(bars, "get_segments")]
    return [[float(low[1]), float(high[1])] for segments in ends for low, high in segments]


@pytest.fixture
def figures_made(monkeypatch):
    figures = pytest.importorskip("matplotlib.figure", reason="comes with gidd[viz]")
    made, build = [], figures.Figure.__init__

    def spy(figure, *args, **kwargs):
        build(figure, *args, **kwargs)
        made.append(figure)

    monkeypatch.setattr(figures.Figure, "__init__", spy)
    return made


def test_validation_has_the_standard_errors_of_the_log(tmp_path, figures_made):
    lines = [{"kind": "evaluation", "step": s, "nelbo": 4.0, "nelbo_se": 0.5} for s in (1, 2)]
    plot_runs([RunLog("run", lines)], tmp_path / "a.png")
    (axes,) = figures_made[0].subfigs[0].axes
    assert errors_of(axes) == [[3.5, 4.5]] * 2
    assert "± 1 standard error" in axes.get_title(loc="left")


def test_runs_of_one_group_are_one_curve_with_their_range(tmp_path, figures_made):
    runs = [log_of(str(i), [1, 2], [v, v], "evaluation") for i, v in enumerate((2.0, 3.0, 7.0))]
    plot_runs([RunGroup("seeds", runs)], tmp_path / "a.png")
    (axes,) = figures_made[0].subfigs[0].axes
    assert errors_of(axes) == [[2.0, 7.0]] * 2
    assert "mean and range of the runs" in axes.get_title(loc="left")
    (legend,) = figures_made[0].legends
    assert "validation NELBO 4.000" in legend.get_texts()[0].get_text()
