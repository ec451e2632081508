"""Result files: what is written is read back, and damaged files end in one clear message."""

import json
import math
from pathlib import Path

import pytest

from gidd.common.files import Limit
from gidd.errors import ConfigError, DataError
from gidd.evaluation.results import RESULT_FORMAT, EvaluationResult, Measurement

RESULT = EvaluationResult(
    kind="ppl",
    measurements={"ppl": Measurement(23.125, 0.25, 512), "tokens": Measurement(1e5)},
    manifest={
        "gidd": "0.1",
        "model": {"name": "nano", "path": Path("models/nano")},
        "seeds": (1, 2),
    },
    rows=[{"id": "a#0", "nelbo": 1.5, "tokens": 3}, {"id": "ä\n#1", "nelbo": None, "tokens": 0}],
)


def test_round_trip(tmp_path):
    path = tmp_path / "new folder" / "result.json"
    RESULT.save(path)
    found = EvaluationResult.read(path)
    assert found.kind == "ppl"
    assert found.measurements == RESULT.measurements
    assert found.rows == RESULT.rows
    plain = {"gidd": "0.1", "model": {"name": "nano", "path": "models/nano"}, "seeds": [1, 2]}
    assert found.manifest == plain
    assert found.to_dict() == RESULT.to_dict()
    found.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_numbers_that_json_cannot_hold(tmp_path):
    result = EvaluationResult(
        kind="ppl",
        measurements={
            "nan": Measurement(math.nan, None, 0),
            "inf": Measurement(math.inf, math.inf),
        },
        manifest={"deep": [{"x": math.nan}]},
        rows=[{"id": 0, "nelbo": -math.inf}],
    )
    result.save(tmp_path / "a.json")
    json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)  # strict JSON
    found = EvaluationResult.read(tmp_path / "a.json")
    assert math.isnan(found.measurements["nan"].value)
    assert math.isnan(found.measurements["inf"].value)
    assert found.measurements["inf"].standard_error is None
    assert found.manifest == {"deep": [{"x": None}]}
    assert found.rows == [{"id": 0, "nelbo": None}]


def damage(**changes):
    record = json.loads(json.dumps(RESULT.to_dict()))
    record.update(changes)
    return json.dumps({key: value for key, value in record.items() if value != "remove"}).encode()


WHOLE = damage()
NUMBER = {"value": 1, "standard_error": None, "num_samples": 1}
DAMAGED = {
    "empty": b"",
    "truncated": WHOLE[: len(WHOLE) // 2],
    "not JSON": b"ppl = 3",
    "not UTF-8": b"\xff\xfe\x00",
    "a list": b"[1, 2]",
    "other JSON": b"{}",
    "no format": damage(format="remove"),
    "next format": damage(format=RESULT_FORMAT + 1),
    "no kind": damage(kind="remove"),
    "no rows": damage(rows="remove"),
    "rows of numbers": damage(rows=[1, 2]),
    "rows are a number": damage(rows=3),
    "manifest is a number": damage(manifest=3),
    "measurements are a list": damage(measurements=[1]),
    "measurement is a number": damage(measurements={"ppl": 3}),
    "measurement without error": damage(measurements={"ppl": {"value": 3}}),
    "value is text": damage(measurements={"ppl": NUMBER | {"value": "much"}}),
    "value is a list": damage(measurements={"ppl": NUMBER | {"value": [1]}}),
    "value too large": damage(measurements={"ppl": NUMBER | {"value": 10**400}}),
    "samples are text": damage(measurements={"ppl": NUMBER | {"num_samples": "many"}}),
    "repeated key": b'{"format": 1, "format": 1}',
    "deep": b'{"format": 1, "x": ' + b"[" * 100_000,
    "nested": damage(manifest={"x": json.loads("[" * 100 + "]" * 100)}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(name, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(DataError, match=r"a\.json"):
        EvaluationResult.read(path)


@pytest.mark.parametrize("error", [-1.0, math.nan, math.inf])
def test_impossible_standard_errors(error, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(damage(measurements={"ppl": NUMBER | {"standard_error": error}}))
    with pytest.raises(DataError, match=r"a\.json"):
        EvaluationResult.read(path)


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path, tmp_path / "nothing.json"):
        with pytest.raises(DataError, match="gidd eval"):
            EvaluationResult.read(path)


def test_files_that_are_too_large(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    RESULT.save(path)
    monkeypatch.setattr("gidd.evaluation.results.MANIFEST_BYTES", Limit(100))
    with pytest.raises(DataError, match="at most 100 bytes"):
        EvaluationResult.read(path)
    with pytest.raises(ConfigError, match="at most 100 bytes"):
        RESULT.save(tmp_path / "b.json")
    assert not (tmp_path / "b.json").exists()


def test_mean_by_hand():
    # 1, 2, 3, 4: mean 2.5, variance 5 / 3, standard error sqrt(5 / 12)
    assert Measurement.mean([1, 2, 3, 4]) == (2.5, pytest.approx(math.sqrt(5 / 12)), 4)
    assert Measurement.mean([7]) == (7, None, 1)
    assert Measurement.mean([])[1:] == (None, 0)
    assert math.isnan(Measurement.mean([]).value)


@pytest.mark.parametrize(
    ("measurement", "text"),
    [
        (Measurement(23.1234, 0.25), "23.12 ± 0.25"),
        (Measurement(23.1234, 12.5), "23 ± 12"),
        (Measurement(1234.5, 300), "1234 ± 300"),
        (Measurement(0.00123, 0.00002), "0.001230 ± 0.000020"),
        (Measurement(5.0, 0.0), "5.0000 ± 0.0000"),
        (Measurement(math.nan, None), "nan"),
        (Measurement(1 / 3), "0.3333"),
    ],
)
def test_measurements_as_text(measurement, text):
    assert str(measurement) == text
