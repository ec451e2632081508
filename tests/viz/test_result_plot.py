"""Figures of evaluations: every kind, with missing values, and what is refused."""

import math

import numpy as np
import pytest

from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.errors import ConfigError, DataError
from gidd.viz import figure
from gidd.viz.figure import COLOURS
from gidd.viz.result_plot import Panel, ResultTable, plot_noise, plot_results
from gidd.vocab import Vocab

pytest.importorskip("matplotlib", reason="comes with gidd[viz]")


def frontier_rows():
    return [
        {
            "steps": steps,
            "temperature": temperature,
            "min_p": min_p,
            "corrector": corrector,
            "final_corrector_steps": 8,
            "gen_ppl": 40 * math.exp(3 * temperature) * (1 + 99 / steps),
            "gen_ppl_se": 4.0,
            "entropy": 4 + temperature,
            "entropy_se": 0.1,
            "on_frontier": steps == 256,
        }
        for steps in (16, 256)
        for temperature in (0.5, 1.0)
        for min_p in (0.0, 1e-3)
        for corrector in ((None, "self_correction") if min_p else (None,))
    ]


def self_correction_rows():
    return [
        {
            "temperature": temperature,
            "forward_passes": forward_passes,
            "num_changed": forward_passes * temperature,
            "gen_ppl": 100 - forward_passes,
            "gen_ppl_se": 3.0,
            "entropy": 5.0,
            "entropy_se": None,
            "self_accuracy": 0.5 + forward_passes / 100,
        }
        for forward_passes in (0, 16, 32)
        for temperature in (0.01, 0.1, 1.0)
    ]


def correction_rows():
    rows = [{"noise": "none", "rate": 0.0, "method": "gidd", "wer_before": 0.0, "wer": 0.001}]
    return rows + [
        {"noise": noise, "rate": rate, "method": "gidd", "wer_before": 4 * rate}
        | {"wer": 0.8 * rate, "wer_se": 0.01}
        for noise in ("typos", "ocr", "keyboard", "random")
        for rate in (0.01, 0.1)
    ]


ROWS = {
    "correction": correction_rows(),
    "frontier": frontier_rows(),
    "judge": [],
    "ppl": [
        {"id": i, "tokens": 10**i, "bytes": 40, "nelbo": 3.0 * 10**i, "standard_error": 0.1}
        for i in range(1, 5)
    ],
    "samples": [
        {"id": i, "gen_nll": 2.0 + i, "entropy": 5.0 + 0.1 * i, "text": "a"} for i in range(5)
    ],
    "self_correction": self_correction_rows(),
    "tasks": [],
}
MEASUREMENTS = {
    "judge": {"style_before": (5.0, 0.2), "style_after": (6.0, 0.1), "style_p_value": (0.1, None)},
    "tasks": {"acc_arc": (0.3, 0.02), "acc_piqa": (0.5, None)},
}


def table(kind, label="a", rows=None):
    return ResultTable(label, ROWS[kind] if rows is None else rows, MEASUREMENTS.get(kind, {}))


def pixels(path):
    from matplotlib import image

    return image.imread(path)[..., :3]


@pytest.fixture
def axes_of(monkeypatch):
    """The axes of a plot by the names of their columns."""
    from matplotlib.figure import Figure

    made, build = [], Figure.__init__

    def spy(self, *args, **kwargs):
        build(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(Figure, "__init__", spy)
    monkeypatch.setattr(figure, "DPI", 30)  # for speed
    return lambda: {(a.get_xlabel(), a.get_ylabel()): a for a in made[-1].axes if a.get_xlabel()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROWS)
def test_results_are_drawn_in_their_colours(kind, tmp_path):
    out = tmp_path / "new" / "a.png"
    plot_results(kind, [table(kind, f"$x^{{{i}") for i in range(2)], out)
    image = pixels(out)
    assert 0.003 < (image.min(-1) < 0.9).mean() < 0.4  # neither blank nor black
    # the second result is drawn over the first, which has the same rows
    rgb = np.array([int(COLOURS[1][i : i + 2], 16) for i in (1, 3, 5)]) / 255
    assert (np.abs(image - rgb).max(-1) < 0.02).sum() > 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in ROWS if ROWS[kind]])
def test_single_rows_and_missing_values(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(figure, "DPI", 30)
    (row, *_) = ROWS[kind]
    for value in (math.nan, None, 1e308, -math.inf):
        missing = [dict.fromkeys(row, value), {}]
        plot_results(kind, [table(kind, "_a", [row, *missing])], tmp_path / "a.png")
        if not any(isinstance(part, str) for part in row.values()):
            with pytest.raises(DataError, match="nothing to plot"):
                plot_results(kind, [table(kind, "_a", missing)], tmp_path / "a.png")


def test_what_there_is_is_plotted_without_empty_panels(axes_of, tmp_path):
    """Without a grader samples have no generative perplexity, but measurements."""
    rows = [{name: row[name] for name in ("id", "entropy")} for row in ROWS["samples"]]
    result = ResultTable("a", rows, {"entropy": (5.2, 0.1), "self_accuracy": (0.3, 0.02)})
    plot_results("samples", [result, result._replace(label="b")], tmp_path / "a.png")
    (axes,) = axes_of().values()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["entropy", "self_accuracy"]
    with pytest.raises(DataError, match="--x id and --y gen_nll.*entropy"):
        rows = [row | {"gen_nll": None} for row in rows]
        plot_results(
            "samples", [ResultTable("a", rows)], tmp_path / "b.png", Panel("id", "gen_nll")
        )
    assert not (tmp_path / "b.png").exists()
    rows = [row | {"gen_ppl": None, "self_accuracy": None} for row in self_correction_rows()]
    plot_results("self_correction", [ResultTable("a", rows)], tmp_path / "a.png")
    assert [y for _, y in axes_of()] == ["changed tokens", "unigram entropy, nats"]


@pytest.mark.slow
def test_points_have_their_errors_and_groups_their_curves(axes_of, tmp_path):
    plot_results("self_correction", [table("self_correction")], tmp_path / "a.png")
    axes = axes_of()[("changed tokens", "generative perplexity")]
    points = [line.get_xydata().tolist() for line in axes.lines if line.get_linestyle() == "-"]
    assert [[0.16, 84], [1.6, 84], [16, 84]] in points  # over temperatures, 16 forward passes
    bars = [c.get_segments() for c in axes.collections]
    assert [[16, 81], [16, 87]] in [segment.tolist() for bar in bars for segment in bar]
    rows = [{"flops": 10.0**k, "nelbo": 3 * 10.0 ** (-k / 20)} for k in range(10, 15)]
    plot_results(
        "scaling", [table("scaling", rows=rows)], tmp_path / "a.png", Panel("flops", "nelbo")
    )
    (axes,) = axes_of().values()
    assert axes.get_xscale() == "log"


def test_any_columns_of_the_rows_can_be_plotted(axes_of, tmp_path):
    panel = Panel("steps", "entropy", ("temperature",))
    plot_results("frontier", [table("frontier")], tmp_path / "a.png", panel)
    (axes,) = axes_of().values()
    lines = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert sorted(line.get_ydata()[0] for line in lines if line.get_linestyle() == "-") == [4.5, 5]
    with pytest.raises(ConfigError, match="nothing.*column.*temperature"):
        plot_results("frontier", [table("frontier")], tmp_path / "a.png", Panel("steps", "nothing"))


def test_what_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="1 to 7 results, got 8"):
        plot_results("samples", [table("samples")] * 8, tmp_path / "a.png")
    with pytest.raises(DataError, match="nothing to plot"):
        plot_results("samples", [ResultTable("a", [])], tmp_path / "a.png")
    for out in (tmp_path, tmp_path / "a.jpg"):
        with pytest.raises(ConfigError, match="--out"):
            plot_results("samples", [table("samples")], out)
    with pytest.raises(DataError, match="a result is damaged"):
        plot_results("tasks", [ResultTable("a", [], {"acc": 3})], tmp_path / "a.png")


@pytest.mark.slow
def test_noise_of_every_kind_is_drawn(tmp_path):
    vocab, unmasked = Vocab(size=9, mask_id=0), Vocab(size=9, mask_id=None)
    schedules = [
        ("$p_u$ 0.2", HybridSchedule(vocab, 0.2)),
        ("masked", MaskedSchedule(vocab)),
        ("uniform", UniformSchedule(unmasked)),
    ]
    plot_noise(schedules, tmp_path / "a.png")
    assert pixels(tmp_path / "a.png").shape == (750, 1800, 3)
    with pytest.raises(ConfigError, match="1 to 7 schedules, got 9"):
        plot_noise(schedules * 3, tmp_path / "a.png")


def test_noise_fractions_and_weights_are_those_of_the_paper(tmp_path):
    """Eq. 16: at t = 1/2, p_u of all tokens are uniform. App. H.8: 1 / (t (1 - t)) on masks."""
    from gidd.viz.result_plot import _fractions, _weights

    schedule = HybridSchedule(Vocab(size=9, mask_id=0), 0.2)
    half = _fractions(schedule, np.array([0.5]))
    assert half["replaced"] == pytest.approx(0.2) and half["masked"] == pytest.approx(0.4)
    assert _weights(schedule, np.array([0.25]))["masked"] == pytest.approx(1 / (0.25 * 0.75))
