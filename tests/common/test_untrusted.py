"""Records from outside: bounded size, number of values and nesting; no aliases."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from gidd.common import files
from gidd.common.config.codec import from_plain, plain_from_yaml
from gidd.common.files import Limit, explain_damage, file_kind, parse_json, read_json
from gidd.common.terminal import shorten
from gidd.errors import CheckpointError, ConfigError, DataError

SMALL = Limit(100, variable="GIDD_TEST_LIMIT")


def test_a_limit_is_changed_by_its_environment_variable(monkeypatch):
    with pytest.raises(DataError, match=r"a\.json must have at most 100 bytes, got 101.*GIDD_TEST"):
        SMALL.require(101, "a.json", DataError)
    SMALL.require(100, "a.json", DataError)
    monkeypatch.setenv("GIDD_TEST_LIMIT", "101")
    SMALL.require(101, "a.json", DataError)


@pytest.mark.parametrize("text", ["-1", "0", "many", "1e6", "10" * 20, "٣"])
def test_an_invalid_environment_variable_is_refused(text, monkeypatch):
    monkeypatch.setenv("GIDD_TEST_LIMIT", text)
    with pytest.raises(ConfigError, match="GIDD_TEST_LIMIT must be a number of bytes"):
        _ = SMALL.value


def test_limits_stand_in_the_documentation():
    found = [value for value in vars(files).values() if isinstance(value, Limit)]
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    for limit in found:
        assert f"| {limit.default:,} {limit.unit} |" in text
    changeable = {limit.variable for limit in found if limit.variable}
    assert len(changeable) == 3 and all(f"`{variable}`" in text for variable in changeable)


def write(folder, text):
    path = folder / "a.json"
    path.write_text(text)
    return path


def test_json_of_any_ordinary_shape_is_read(tmp_path):
    value = {"a": [1, 2.5, None, True, "x,[{", {"b": {}}], "c": []}
    assert read_json(write(tmp_path, json.dumps(value)), "", DataError) == value


@pytest.mark.parametrize("depth", [64, 1000, 100_000])
@pytest.mark.parametrize("brackets", ["[]", '{"a":}'])
def test_json_that_is_nested_too_deeply_is_refused(tmp_path, depth, brackets):
    opened, closed = brackets[:-1], brackets[-1]
    text = '{"a": ' + opened * depth + ("1" if brackets[0] == "{" else "") + closed * depth + "}"
    with pytest.raises(DataError, match="nested deeper than 64"):
        read_json(write(tmp_path, text), "Copy it again.", DataError)


def test_json_of_63_levels_is_read(tmp_path):
    text = '{"a": ' + "[" * 63 + "]" * 63 + "}"
    assert read_json(write(tmp_path, text), "", DataError)["a"]


def test_too_many_values_are_refused_before_they_are_built(tmp_path, monkeypatch):
    monkeypatch.setattr("gidd.common.files.JSON_VALUES", Limit(1000, "values"))
    path = write(tmp_path, '{"a": [' + ",".join(["[]"] * 1000) + "]}")
    with pytest.raises(ConfigError, match=r"a\.json must have at most 1,000 values"):
        read_json(path, "", DataError)


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "{", '{"a": 1} x', '"\ud800"', '{"a":' + "9" * 5000]
)
def test_what_is_not_a_json_object_is_refused(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=r"a\.json.*Copy it again"):
        read_json(path, "Copy it again.", DataError)


def test_a_pipe_a_device_and_a_folder_are_refused_by_name(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    for name, kind in (("pipe", "named pipe"), ("zero", "character device"), ("folder", "folder")):
        assert file_kind(tmp_path / name) == kind
        with pytest.raises(DataError, match=f"{name} must be a regular file, got a {kind}"):
            read_json(tmp_path / name, "", DataError)
    assert file_kind(tmp_path / "self") == "broken symbolic link"
    with pytest.raises(DataError, match="self cannot be read"):
        read_json(tmp_path / "self", "", DataError)


def test_parse_json_raises_value_errors_only():
    for data in (b"\xff", b"nope", b"[" * 200_000, b"1" * 10_000):
        with pytest.raises(ValueError):
            parse_json(data, "data")


@dataclass(frozen=True)
class Setting:
    name: str


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "kind: Setting\nname: &a x\nother: *a",
        "a: &a [1]\nb: &b [*a, *a]\nc: &c [*b, *b]",
        "[" * 100 + "]" * 100,
        "[" * 60_000,
        "{" * 60_000,
        "- " * 60_000,
        "? " * 50_000,
        "a: !!python/object/apply:os.system [ls]",
        "a: !!python/name:os.system",
        "a: 2020-99-99",
        "a: " + "9" * 5000,
        "a: 0x" + "f" * 5000 + "g",
        "kind: Setting\nname: x\n? [1, 2]\n: y",
        "kind: Setting\nname: x\n1: y\n2020-01-01: z\nnull: n",
        "\x00",
        "%YAML 9.9\n---\na: 1",
        "x" * 200_000,
    ],
)
def test_hostile_yaml_is_refused(text):
    with pytest.raises(ConfigError):
        from_plain(Setting, plain_from_yaml(text))


@pytest.mark.slow
def test_a_message_shows_a_bounded_part_of_a_value():
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    table = {str(k): "y" * 1000 for k in range(1000)}
    for value in (nested, "x" * 10**6, table, list(range(10**6))):
        assert len(shorten(value)) <= 200
    assert shorten({"a": 1}) == "{'a': 1}"


def test_any_exception_becomes_one_error_except_those_of_the_user():
    class Panic(BaseException):
        pass

    for reason in (Panic("x" * 1000), RecursionError(), MemoryError(), KeyError("a\nb")):
        with (
            pytest.raises(CheckpointError, match="^model is damaged or invalid: ") as caught,
            explain_damage("model", "Copy it again.", CheckpointError),
        ):
            raise reason
        assert len(str(caught.value)) < 400 and caught.value.__cause__ is reason
    for kept in (KeyboardInterrupt, SystemExit, DataError):
        with pytest.raises(kept), explain_damage("model", "", CheckpointError):
            raise kept
