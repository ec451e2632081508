"""Figures of evaluations: every kind, with missing values, and what is refused."""

import math

import numpy as np
import pytest

from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.errors import ConfigError, DataError
from gidd.viz import figure
from gidd.viz.figure import COLOURS, ResultRows, column, grouped, varying
from gidd.viz.noise_plot import NamedSchedule, plot_noise
from gidd.viz.result_plots import RESULT_PLOTS, plot_results
from gidd.vocab import Vocab

pytest.importorskip("matplotlib", reason="comes with gidd[viz]")


def frontier_rows():
    return [
        {
            "steps": steps,
            "temperature": temperature,
            "min_p": min_p,
            "corrector": corrector,
            "corrector_calls": 8,
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
            "calls": calls,
            "num_changed": calls * temperature,
            "gen_ppl": 100 - calls,
            "gen_ppl_se": 3.0,
            "entropy": 5.0,
            "entropy_se": None,
            "self_accuracy": 0.5 + calls / 100,
        }
        for calls in (0, 16, 32)
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


def scaling_rows():
    return [
        {
            "series": series,
            "run": "a",
            "flops": flops,
            "nelbo": 3 * flops**-0.05,
            "standard_error": 0.01,
            "on_frontier": flops > 1e10,
        }
        for series in ("a", "b")
        for flops in (1e10, 1e12, 1e14)
    ]


def judge_rows():
    after = {"clarity": 9, "style": 2}
    return [{"id": i, "before": {"clarity": i % 3, "style": 2}, "after": after} for i in range(9)]


ROWS = {
    "correction": correction_rows(),
    "frontier": frontier_rows(),
    "judge": judge_rows(),
    "ppl": [
        {"id": i, "tokens": 10**i, "bytes": 40, "nelbo": 3.0 * 10**i, "standard_error": 0.1}
        for i in range(1, 5)
    ],
    "samples": [
        {"id": i, "gen_nll": 2.0 + i, "entropy": 5.0 + 0.1 * i, "text": "a"} for i in range(5)
    ],
    "scaling": scaling_rows(),
    "self_correction": self_correction_rows(),
}
FIT = {"exponent": -0.05, "log_coefficient": math.log(3), "exponent_interval": [-0.06, -0.04]}
FIT["band"] = [{"flops": f, "low": 1.0, "high": 1.1} for f in (1e10, 1e14)]
DETAILS = {
    "fits": {"a": FIT, "b": None},
    "crossings": [{"steep": "a", "flat": "b", "flops": 1e15}, {"flops": None}],
}
SIZES = {
    "correction": (1095, 1740),
    "frontier": (1770, 1800),
    "judge": (750, 1800),
    "ppl": (750, 1800),
    "samples": (750, 1800),
    "scaling": (975, 1500),
    "self_correction": (1050, 1800),
}
"""Height and width in pixels."""


def pixels(path):
    from matplotlib import image

    return image.imread(path)[..., :3]


def test_every_kind_has_a_figure():
    assert RESULT_PLOTS.keys() == ROWS.keys() == SIZES.keys()


@pytest.mark.parametrize("kind", ROWS)
def test_results_are_drawn_in_their_colours(kind, tmp_path):
    out = tmp_path / "new" / "a.png"
    results = [ResultRows(f"$x^{{{i}", ROWS[kind], DETAILS) for i in range(2)]
    plot_results(kind, results, out)
    image = pixels(out)
    assert image.shape == (*SIZES[kind], 3)
    assert 0.003 < (image.min(-1) < 0.9).mean() < 0.4  # neither blank nor black
    # the second result is drawn over the first, which has the same rows
    rgb = np.array([int(COLOURS[1][i : i + 2], 16) for i in (1, 3, 5)]) / 255
    assert (np.abs(image - rgb).max(-1) < 0.02).sum() > 100


@pytest.mark.parametrize("kind", ROWS)
def test_single_rows_and_missing_values(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(figure, "DPI", 30)  # for speed
    (row, *_) = ROWS[kind]
    keep = ("series", "setting", "flops")

    def without_numbers(value):
        return {
            k: v if k in keep else dict.fromkeys(v, value) if isinstance(v, dict) else value
            for k, v in row.items()
        }

    for rows in ([row], [without_numbers(math.nan), without_numbers(None), {"before": {}}]):
        plot_results(kind, [ResultRows("_a", rows)], tmp_path / "a.png")
        # a figure of correction has a panel per noise
        expected = 144 if kind == "correction" else SIZES[kind][1] / 5
        assert pixels(tmp_path / "a.png").shape[1] == expected


def test_what_is_refused(tmp_path):
    table = ResultRows("a", ROWS["samples"])
    with pytest.raises(ConfigError, match="1 to 7 results, got 8"):
        plot_results("samples", [table] * 8, tmp_path / "a.png")
    with pytest.raises(ConfigError, match="'tasks' have no figure"):
        plot_results("tasks", [table], tmp_path / "a.png")
    with pytest.raises(DataError, match="no rows"):
        plot_results("samples", [ResultRows("a", [])], tmp_path / "a.png")
    with pytest.raises(ConfigError, match="is a folder"):
        plot_results("samples", [table], tmp_path)
    with pytest.raises(DataError, match="a result is damaged"):
        plot_results("judge", [table], tmp_path / "a.png")
    many = [{**ROWS["scaling"][0], "series": str(i)} for i in range(8)]
    with pytest.raises(ConfigError, match="1 to 7 series, got 8"):
        plot_results("scaling", [ResultRows("a", many)], tmp_path / "a.png")


def test_tables():
    rows = [{"steps": 8, "min_p": 0.1}, {"steps": 8, "min_p": None}, {"steps": 16}]
    np.testing.assert_equal(column(rows, "min_p"), [0.1, np.nan, np.nan])
    assert varying(rows, ["steps", "temperature"]) == ["steps"]
    assert list(grouped(rows, ["steps"])) == ["8 steps", "16 steps"]


def test_noise_of_every_kind_is_drawn(tmp_path):
    vocab, unmasked = Vocab(size=9, mask_id=0), Vocab(size=9, mask_id=None)
    schedules = [
        NamedSchedule("$p_u$ 0.2", HybridSchedule(vocab, 0.2)),
        NamedSchedule("masked", MaskedSchedule(vocab)),
        NamedSchedule("uniform", UniformSchedule(unmasked)),
    ]
    plot_noise(schedules, tmp_path / "a.png")
    assert pixels(tmp_path / "a.png").shape == (750, 1800, 3)
    with pytest.raises(ConfigError, match="1 to 7 schedules, got 9"):
        plot_noise(schedules * 3, tmp_path / "a.png")


def test_noise_fractions_and_weights_are_those_of_the_paper(tmp_path):
    """Eq. 16: at t = 1/2, p_u of all tokens are uniform. App. H.8: 1 / (t (1 - t)) on masks."""
    from gidd.viz.noise_plot import _fractions, _weights

    schedule = HybridSchedule(Vocab(size=9, mask_id=0), 0.2)
    half = _fractions(schedule, np.array([0.5]))
    assert half["replaced"] == pytest.approx(0.2) and half["masked"] == pytest.approx(0.4)
    assert _weights(schedule, np.array([0.25]))["masked"] == pytest.approx(1 / (0.25 * 0.75))
