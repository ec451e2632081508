"""Reports of a run: a log that survives kills, views, trackers."""

import importlib.util
import io
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console
from support.resources import largest_file

from gidd.errors import ConfigError, DataError
from gidd.training.reporting import log as metrics_log, trackers as report_trackers
from gidd.training.reporting.report import Report, View, format_duration, format_metrics

METRICS = {"loss": 0.1 + 0.2, "nelbo": 1 / 3, "ppl": math.exp(1 / 3), "grad_norm": 0.25}
WALL = {"seconds": 1.5, "seconds_left": 60.0, "tokens_per_second": 12_345.6, "mfu": 0.412}


def run(folder, steps, *, start=0, evaluate_every=5, **options):
    """A training whose metrics are functions of the step, except for the time."""
    with Report(folder, num_steps=steps[-1], start=start, quiet=True, **options) as report:
        for step in steps:
            report.training(step, {"loss": 1 / step, "seconds": float(np.random.rand())})
            if step % evaluate_every == 0:
                report.evaluation(step, {"nelbo": math.sin(step)}, ["one", "två\n"])


def reproducible(folder):
    lines = metrics_log.read(folder)
    return [{name: v for name, v in line.items() if name != "wall"} for line in lines]


def shown(**options):
    file = io.StringIO()
    return file, Console(file=file, **options)


def test_numbers_come_back_to_the_last_bit(tmp_path):
    values = np.frombuffer(np.random.default_rng(0).bytes(8 * 2000), dtype=np.float64).tolist()
    values += [5e-324, 1.7976931348623157e308, -0.0, 0.1, math.inf, -math.inf, math.nan]
    with Report(tmp_path, num_steps=1, quiet=True) as report:
        report.training(1, {f"x{i}": value for i, value in enumerate(values)})
    text = (tmp_path / metrics_log.METRICS_FILE).read_text()
    (line,) = metrics_log.read(tmp_path)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    back = [float(line[f"x{i}"]) for i in range(len(values))]
    known = [value for value in values if not math.isnan(value)]
    found = [value for value in back if not math.isnan(value)]
    assert np.array(found).tobytes() == np.array(known).tobytes()
    assert len(back) - len(found) == len(values) - len(known)


def test_the_clock_is_kept_apart(tmp_path):
    with Report(tmp_path, num_steps=9, quiet=True) as report:
        report.training(3, METRICS | WALL)
        report.evaluation(3, {"nelbo": 2.0}, ["a text"])
    training, evaluation = metrics_log.read(tmp_path)
    assert training == {"kind": "training", "step": 3, **METRICS, "wall": WALL}
    assert evaluation == {
        "kind": "evaluation",
        "step": 3,
        "nelbo": 2.0,
        "samples": ["a text"],
        "wall": {},
    }


@pytest.mark.parametrize("torn", [0, 1, 7, 30])
@pytest.mark.parametrize("start", [1, 5, 12])
def test_log_of_a_continued_run_equals_that_of_an_undisturbed_one(tmp_path, start, torn):
    """The killed run was further than its checkpoint, and in the middle of a line."""
    run(tmp_path / "whole", range(1, 21))
    run(tmp_path / "ended", range(1, 14))
    log = tmp_path / "ended" / metrics_log.METRICS_FILE
    log.write_bytes(log.read_bytes() + b'{"kind": "training", "step": 14, "loss'[:torn])
    run(tmp_path / "ended", range(start + 1, 21), start=start)
    assert reproducible(tmp_path / "ended") == reproducible(tmp_path / "whole")
    assert log.read_bytes().endswith(b"\n")
    assert [path.name for path in log.parent.iterdir()] == [metrics_log.METRICS_FILE]


def test_what_is_there_of_the_step_that_was_saved_is_not_written_twice(tmp_path):
    run(tmp_path, range(1, 11))
    before = reproducible(tmp_path)
    with Report(tmp_path, num_steps=20, start=10, quiet=True) as report:
        report.evaluation(10, {"nelbo": math.sin(10)}, ["one", "två\n"])
    assert reproducible(tmp_path) == before


def test_a_run_that_begins_forgets_an_older_log(tmp_path):
    run(tmp_path, range(1, 11))
    run(tmp_path, range(1, 3))
    assert [line["step"] for line in metrics_log.read(tmp_path)] == [1, 2]


def test_a_damaged_line_does_not_stop_a_run_but_is_reported(tmp_path):
    run(tmp_path, range(1, 4))
    log = tmp_path / metrics_log.METRICS_FILE
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + b"\x00\xff\n" + lines[2])
    with pytest.raises(DataError, match=r"metrics.jsonl, line 2 is damaged"):
        metrics_log.read(tmp_path)
    file, console = shown()
    Report(tmp_path, num_steps=9, start=3, console=console).close()
    assert [line["step"] for line in metrics_log.read(tmp_path)] == [1, 3]
    assert "metrics.jsonl: removed 1 damaged lines" in file.getvalue()


KILLED = """
import os, sys
from pathlib import Path
from gidd.training.reporting.report import Report
report = Report(Path(sys.argv[1]), num_steps=100, quiet=True)
for step in range(1, 51):
    report.training(step, {"loss": 1 / step})
os.kill(os.getpid(), 9)
"""


def test_a_kill_loses_no_line_that_was_written(tmp_path):
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)]).returncode == -9
    assert [line["loss"] for line in metrics_log.read(tmp_path)] == [1 / s for s in range(1, 51)]


def test_a_line_that_cannot_be_written_is_an_error(tmp_path):
    """As on a full disk: of the first line only 10 bytes can be written, of the second none."""
    with Report(tmp_path, num_steps=9, quiet=True) as report, largest_file(10):
        for reason in ("the disk is full", "File too large"):
            with pytest.raises(DataError, match=rf"metrics.jsonl cannot be written: .*{reason}"):
                report.training(1, METRICS)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "run"
    with pytest.raises(DataError) as error:
        Report(folder, num_steps=9, quiet=True)
    assert f"{folder / metrics_log.METRICS_FILE} cannot be written: Not a directory" in str(
        error.value
    )
    assert "--out" in str(error.value)


def test_a_report_that_is_not_enabled_does_nothing(tmp_path):
    file, console = shown()
    with Report(tmp_path / "run", num_steps=9, enabled=False, console=console) as report:
        report.training(1, METRICS)
        report.evaluation(1, METRICS, ["text"])
        report.note("text")
    assert not (tmp_path / "run").exists()
    assert file.getvalue() == ""


def test_plain_lines_are_few_and_whole(tmp_path):
    file, console = shown(width=40)
    with Report(tmp_path, num_steps=1000, console=console) as report:
        report.note("[bold]Resumed[/bold] from here.")
        for step in range(1, 1001):
            report.training(step, METRICS | WALL | {"learning_rate": 5e-4})
        report.evaluation(1000, {"nelbo": 1.5, "ppl": 4.4817}, ["a\n\x1b[31mtext", "b", "c"])
    lines = file.getvalue().splitlines()
    assert lines[0] == "[bold]Resumed[/bold] from here."
    assert [line.split("  ")[0] for line in lines[1:5]] == [
        "step 1/1,000",
        "step 2/1,000",
        "step 3/1,000",
        "step 1,000/1,000",
    ]
    assert lines[4] == (
        "step 1,000/1,000  loss 0.3000  NELBO 0.3333  PPL 1.40  |grad| 0.250  lr 5.0e-04  "
        "tokens/s 12,346  MFU 41.2%  0:00:02 elapsed  0:01:00 left"
    )
    assert lines[5:] == [
        "validation at step 1,000  NELBO 1.5000  PPL 4.48",
        "  sample: a �[31mtext",
        "  sample: b",
    ]


LARGE = METRICS | {"loss": 13.25, "ppl": 99_999.0, "tokens_per_second": 9.9e5, "mfu": 0.412}
LARGE |= {"seconds_left": 2e5}


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_bottom_of_a_terminal_shows_all_metrics(width):
    view = View(shown(force_terminal=True, width=width)[1], 500_000, 0)
    view.training(123_456, LARGE)
    file, console = shown(width=width)
    console.print(view.render())
    view.close()
    bottom = file.getvalue()
    assert "…" not in bottom
    assert all(len(line) <= width for line in bottom.splitlines())
    words = " ".join(bottom.split())
    for text in ("123,456/500,000", "loss 13.2500", "99,999.00", "41.2%", "2 days, 7:33:20 left"):
        assert text in words
    assert bottom.splitlines()[-1].startswith("━" * (width // 5))


def test_live_view_prints_samples_and_notes(tmp_path):
    file, console = shown(force_terminal=True, width=80)
    with Report(tmp_path, num_steps=500_000, console=console) as report:
        report.training(123_456, METRICS | WALL)
        report.evaluation(123_000, {"nelbo": 3.5, "ppl": 33.1}, ["a sample"])
        report.note("Saved.")
    assert "a sample" in file.getvalue() and "Saved." in file.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_notes_and_samples_cannot_control_the_terminal(tmp_path, is_terminal):
    file, console = shown(force_terminal=is_terminal, width=80)
    hostile = "\x1b]0;PWNED\x07\x9b31m[link=x]:smile:\udcff"
    with Report(tmp_path, num_steps=9, console=console) as report:
        report.evaluation(3, {"nelbo": 3.5}, [f"a {hostile}"])
        report.note(f"b {hostile}")
    for letter in "ab":
        assert f"{letter} \ufffd]0;PWNED\ufffd\ufffd31m[link=x]:smile:\ufffd" in file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00:00"),
        (59.6, "0:01:00"),
        (3661, "1:01:01"),
        (200_000, "2 days, 7:33:20"),
        (math.inf, "?"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


class Failing:
    name = "a tracker"

    def scalars(self, step, values):
        raise ConnectionError("no route")

    text = close = scalars


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (0.0213, "NELBO 6.003 ± 0.021"),
        (0.2, "NELBO 6.00 ± 0.20"),
        (1e-7, "NELBO 6.0031 ± 0.0000"),
        (math.nan, "NELBO 6.0031"),
    ],
)
def test_the_validation_nelbo_has_its_standard_error(error, text):
    assert format_metrics({"nelbo": 6.00312, "nelbo_se": error}) == text


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path):
    file, console = shown()
    with Report(tmp_path, num_steps=9, trackers=[Failing()], console=console) as report:
        report.training(1, METRICS)
        report.training(2, METRICS)
    assert len(metrics_log.read(tmp_path)) == 2
    assert file.getvalue().count("a tracker failed") == 1


def test_missing_packages(tmp_path, monkeypatch):
    """The default continues without TensorBoard and reports it; a given tracker is required."""
    real = importlib.util.find_spec
    absent = ("tensorboard", "wandb", "trackio")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else real(name)
    )
    trackers, notes = report_trackers.default_trackers(tmp_path, 0)
    assert trackers == [] and len(notes) == 1 and "gidd[train]" in notes[0]
    for name, extra in zip(absent, ("train", "wandb", "trackio"), strict=True):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match=rf"{name} .*gidd\[{extra}\]"):
            getattr(report_trackers, f"{name}_tracker")(tmp_path, 0, {})


def test_tensorboard_reads_back_what_a_continued_run_wrote(tmp_path):
    pytest.importorskip("tensorboard", reason="comes with gidd[train]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps, start in ((range(1, 9), 0), (range(6, 11), 5)):
        tracker = report_trackers.tensorboard_tracker(tmp_path, start, config={"size": "nano"})
        run(tmp_path, steps, start=start, trackers=[tracker])
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    loss = events.Scalars("training/loss")
    assert [point.step for point in loss] == list(range(1, 11))
    assert [point.value for point in loss] == [np.float32(1 / s) for s in range(1, 11)]
    assert [point.step for point in events.Scalars("validation/nelbo")] == [5, 10]
    tags = events.Tags()["tensors"]
    assert {"settings/text_summary", "sample/0/text_summary", "sample/1/text_summary"} <= set(tags)
    (text,) = events.Tensors("sample/1/text_summary")[-1].tensor_proto.string_val
    assert text.decode() == "    två\n"


def test_wandb_writes_offline_and_no_secret(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is on request: pip install gidd[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MY_TOKEN", "do-not-tell")
    monkeypatch.setattr(sys, "argv", ["gidd", "--token", "do-not-tell"])
    for steps, start in ((range(1, 9), 0), (range(6, 11), 5)):
        tracker = report_trackers.wandb_tracker(tmp_path, start, config={"size": "nano"})
        run(tmp_path, steps, start=start, trackers=[tracker])
    logs = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(logs) == 2
    assert {log.stem for log in logs} == {f"run-{(tmp_path / 'run_id').read_text()}"}
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"training/loss" in data for data in written)
    assert not any(b"do-not-tell" in data for data in written)


TRACKIO = """
import sys
from pathlib import Path
from gidd.training.reporting.report import Report
from gidd.training.reporting.trackers import trackio_tracker
folder = Path(sys.argv[1])
tracker = trackio_tracker(folder, 0, config={"size": "nano"})
with Report(folder, num_steps=3, quiet=True, trackers=[tracker]) as report:
    for step in (1, 2, 3):
        report.training(step, {"loss": 1 / step})
    report.evaluation(3, {"nelbo": 0.5}, ["a text"])
from trackio.sqlite_storage import SQLiteStorage
(run,) = SQLiteStorage.get_runs("gidd")
print([(line["step"], line["training/loss"]) for line in SQLiteStorage.get_logs("gidd", run)
       if "training/loss" in line])
"""


def test_trackio_keeps_the_numbers(tmp_path):
    if importlib.util.find_spec("trackio") is None:
        pytest.skip("trackio is on request: pip install gidd[trackio]")
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", TRACKIO, str(tmp_path / "nano")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert str([(step, 1 / step) for step in (1, 2, 3)]) in result.stdout.splitlines()
