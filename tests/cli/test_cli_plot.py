"""`gidd plot`: runs, results and models, and labels that tell them apart."""

import pytest
from support.small_model import write_model
from support.synthetic_runs import run_config, write_synthetic_run

from gidd.cli import main
from gidd.evaluation.results import EvaluationResult
from gidd.viz import run_plot

pytest.importorskip("matplotlib", reason="comes with gidd[viz]")

ROWS = [{"id": i, "gen_nll": 3.0 + i, "entropy": 5.0} for i in range(3)]


def write_result(path, kind="samples", **manifest):
    EvaluationResult(kind=kind, measurements={}, manifest=manifest, rows=ROWS).save(path)
    return str(path)


def refuse(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plot", *words])
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_a_result_is_plotted_beside_it(tmp_path, capsys):
    main(["plot", write_result(tmp_path / "a.json")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("suffix", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("PNG", b"\x89PNG")]
)
def test_the_suffix_chooses_the_format(suffix, start, tmp_path):
    out = tmp_path / f"x.{suffix}"
    main(["plot", write_result(tmp_path / "a.json"), "--out", str(out)])
    assert out.read_bytes().startswith(start)


def test_columns_are_chosen(tmp_path, capsys):
    result = write_result(tmp_path / "a.json")
    main(["plot", result, "--x", "id", "--y", "entropy"])
    assert "gen_nll" in refuse([result, "--x", "id", "--y", "nothing"], capsys)


@pytest.mark.slow
def test_the_noise_of_a_model_is_plotted_in_its_folder(tmp_path, capsys):
    folder = write_model(tmp_path / "model")
    main(["plot", str(folder)])
    assert capsys.readouterr().out.strip() == str(folder / "noise.png")


@pytest.mark.parametrize(
    ("manifests", "expected"),
    [
        ([{"model": {"name": name}} for name in "ab"], ["a", "b"]),
        ([{"model": {"name": "a"}}] * 2, ["first", "second"]),
        ([{"schedule": "text", "model": None}] * 2, ["first", "second"]),
    ],
)
def test_labels_are_what_differs(tmp_path, monkeypatch, manifests, expected):
    found = []
    monkeypatch.setattr(
        "gidd.viz.result_plot.plot_results",
        lambda kind, results, out, panel: found.extend(result.label for result in results),
    )
    paths = [tmp_path / f"{name}.json" for name in ("first", "second")]
    for path, manifest in zip(paths, manifests, strict=True):
        write_result(path, **manifest)
    main(["plot", *map(str, paths)])
    assert found == expected


def test_runs_that_differ_by_the_seed_only_are_one_curve(tmp_path, monkeypatch):
    runs = [
        str(write_synthetic_run(tmp_path / f"run{i}", config, [1, 2], lambda _: {"nelbo": 3.0}))
        for i, config in enumerate(
            [run_config(seed=0), run_config(seed=1), run_config(seed=0, width=64)]
        )
    ]
    found = []
    monkeypatch.setattr(
        run_plot, "plot_runs", lambda groups, out: found.append([g.name for g in groups])
    )
    for mean in ("seeds", "all", "none"):
        main(["plot", *runs, "--mean", mean])
    assert found == [
        ["run0: mean of 2 seeds", "run2"],
        ["mean of 3 runs"],
        ["run0", "run1", "run2"],
    ]


def test_mixtures_and_too_many_results_are_refused(tmp_path, capsys):
    one, other = write_result(tmp_path / "a.json"), write_result(tmp_path / "b.json", "frontier")
    assert "results must be of one kind, got frontier, samples" in refuse([one, other], capsys)
    model = str(write_model(tmp_path / "model"))
    assert "not a mixture" in refuse([one, model], capsys)
    assert "not a mixture" in refuse([model, str(tmp_path)], capsys)
    assert "--x" in refuse([one, "--x", "entropy"], capsys)
    assert "missing.json is not a file" in refuse([str(tmp_path / "missing.json")], capsys)
