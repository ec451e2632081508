"""Error models: probabilities by hand, tables of tokens, learning from pairs, files."""

import json
import math
import string

import pytest
import torch
from gidd_proof import ErrorModel, learn_errors
from gidd_proof.cli import main
from gidd_proof.edit_model import CharacterEdit, character_edits
from gidd_proof.error_models import (
    MAX_PAIR_CHARACTERS,
    MAX_SUBSTITUTIONS,
    error_model,
    read_pairs,
)

from gidd.errors import ConfigError, DataError

SUBSTITUTE_ONLY = {"substitute": 1.0, "insert": 0.0, "delete": 0.0, "swap": 0.0}


def test_keyboard_neighbours_touch_and_keep_the_case():
    model = error_model("keyboard")
    assert set(model.by_right["g"]) == set("tyfhvb")
    assert set(model.by_right["G"]) == set("TYFHVB")
    assert set(model.by_right["a"]) == set("qwsz")
    assert set(model.by_right["1"]) == set("`2q")
    assert model.probability("y", "g") == pytest.approx(1 / 6)
    assert model.probability("p", "g") == model.probability("g", "g") == 0
    assert model.kinds == SUBSTITUTE_ONLY


@pytest.mark.parametrize("name", ["keyboard", "ocr"])
def test_built_in_error_models_are_distributions_of_all_letters_and_digits(name):
    model = error_model(name)
    assert model.name == name
    assert set(string.ascii_letters + string.digits) <= set(model.by_right)
    for right, others in model.by_right.items():
        assert math.fsum(others.values()) == pytest.approx(1)
        assert all(len(written) == 1 and written != right for written in others)
        assert list(others.values()) == sorted(others.values(), reverse=True)
        # what is mistaken for another character can be the mistaken one
        assert all(right in model.by_right[written] for written in others)


def test_look_alikes():
    model = error_model("ocr")
    for pair in ("ec", "o0", "l1", "lI", "hb", "nu"):
        assert model.probability(*pair) > 0 < model.probability(*pair[::-1])
    assert model.probability("e", "k") == 0


def test_the_table_of_tokens_by_hand():
    model = ErrorModel("two", {("b", "a"): 0.75, ("x", "a"): 0.25, ("a", "b"): 1.0})
    bare = model.table(["a", None, "b", "c"], other=0.0)
    third = 1 / 2  # of the two other characters
    assert bare.dtype == torch.float64
    assert bare.tolist() == [
        [0, 0, 1, 0],  # x is no token, so b alone is left
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [third, 0, third, 0],  # without a listed mistake: uniform
    ]
    mixed = model.table(["a", None, "b", "c"], other=0.1)
    expected = [[0, 0, 0.95, 0.05], [0, 0, 0, 0], [0.95, 0, 0, 0.05], [0.5, 0, 0.5, 0]]
    assert torch.allclose(mixed, torch.tensor(expected, dtype=torch.float64), atol=1e-15)


@pytest.mark.parametrize("name", ["keyboard", "ocr"])
def test_rows_of_tables_sum_to_one_over_the_others(name):
    characters = [*string.printable, None, "é", None]
    table = error_model(name).table(characters)
    is_text = torch.tensor([c is not None for c in characters])
    assert torch.allclose(table.sum(1), is_text.double(), atol=1e-12)
    assert not table.diagonal().any() and not table[:, ~is_text].any() and (table >= 0).all()
    assert (table[is_text][:, is_text].fill_diagonal_(1) > 0).all()  # no mistake is impossible
    assert error_model(name).table([None, "a"]).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("substitutions", "kinds", "message"),
    [
        ({("a", "a"): 1.0}, SUBSTITUTE_ONLY, "'a' for 'a'"),
        ({("ab", "a"): 1.0}, SUBSTITUTE_ONLY, "'ab' for 'a'"),
        ({("b", "a"): math.nan}, SUBSTITUTE_ONLY, "nan"),
        ({("b", "a"): -0.1}, SUBSTITUTE_ONLY, "-0.1"),
        ({("b", "a"): 0.6, ("c", "a"): 0.6}, SUBSTITUTE_ONLY, "'a' must sum to at most 1, got 1.2"),
        ({}, SUBSTITUTE_ONLY | {"swap": 0.5}, "sum 1"),
        ({}, {"substitute": 1.0}, "insert, delete, swap"),
        ({}, SUBSTITUTE_ONLY | {"merge": 0.0}, "merge"),
    ],
)
def test_impossible_error_models_are_refused(substitutions, kinds, message):
    with pytest.raises(ConfigError, match=message):
        ErrorModel("bad", substitutions, kinds)


@pytest.mark.parametrize(
    ("wrong", "right", "edits"),
    [
        ("same", "same", []),
        ("gfeat", "great", [("substitute", "r", "f")]),
        ("sned", "send", [("swap", "en", "ne")]),
        ("helo", "hello", [("delete", "l", "")]),
        ("worldly", "world", [("insert", "", "l"), ("insert", "", "y")]),
        ("", "ab", [("delete", "a", ""), ("delete", "b", "")]),
        ("xbca", "abc", [("substitute", "a", "x"), ("insert", "", "a")]),
        ("ab ", " ab", [("delete", " ", ""), ("insert", "", " ")]),
    ],
)
def test_edits_by_hand(wrong, right, edits):
    assert character_edits(wrong, right) == [CharacterEdit(*edit) for edit in edits]


def test_a_learnt_error_model_has_the_smoothed_counts():
    pairs = [("cxt", "cat"), ("cxt", "cat"), ("cot", "cat"), ("ct", "cat"), ("tac", "cat")]
    model = learn_errors(pairs, "cats")
    # alphabet a c o t x; the last pair replaces c by t and t by c
    assert set(model.by_right) == {"a", "c", "t"}
    total = 3 + 4
    expected = {"x": 3 / total, "o": 2 / total, "c": 1 / total, "t": 1 / total}
    assert model.by_right["a"] == pytest.approx(expected)
    assert model.probability("t", "c") == pytest.approx(2 / 5)
    assert model.probability("a", "o") == 0  # o was never replaced
    counts = {"substitute": 5 + 1, "insert": 1, "delete": 1 + 1, "swap": 1}
    assert model.kinds == pytest.approx({k: n / 10 for k, n in counts.items()})
    assert math.fsum(model.kinds.values()) == pytest.approx(1)


def test_what_cannot_be_learnt_from():
    with pytest.raises(DataError, match="at least one mistake"):
        learn_errors([("a", "a")])
    with pytest.raises(DataError, match="pair 2"):
        learn_errors([("a", "b"), ("a" * (MAX_PAIR_CHARACTERS + 1), "a")])
    many = [(chr(k), chr(k + 1)) for k in range(5000, 5600)]
    with pytest.raises(DataError, match=f"{MAX_SUBSTITUTIONS:,} substitutions"):
        learn_errors(many)


def test_a_saved_error_model_is_the_same(tmp_path):
    model = learn_errors([("cxt\t", "cat\n"), ("üb", "äb"), ("🙂", "🙃")], "mine")
    model.save(tmp_path / "a.json")
    assert error_model(tmp_path / "a.json") == model
    assert error_model(str(tmp_path / "a.json")).table(["ä", "ü"]).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 1"),
        ({"kinds": {}}, "kinds"),
        ({"substitutions": {"a": {"b": 2}}}, "got 2.0"),
        ({"substitutions": {"a": {"bc": 1}}}, "'bc' for 'a'"),
        ({"substitutions": []}, "cannot be read"),
    ],
)
def test_files_that_are_no_error_models(tmp_path, change, message):
    path = tmp_path / "a.json"
    record = {"format": 1, "name": "a", "kinds": SUBSTITUTE_ONLY, "substitutions": {}} | change
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=message):
        error_model(path)
    path.write_text("{}")
    with pytest.raises(DataError, match="learn-errors"):
        error_model(path)


def test_names_that_are_no_error_models(tmp_path):
    with pytest.raises(ConfigError, match="keyboard, ocr or a file .* got 'dvorak'"):
        error_model("dvorak")
    with pytest.raises(ConfigError, match="got"):
        error_model(tmp_path)


def test_pairs_are_read_from_lines(tmp_path):
    (tmp_path / "a.tsv").write_bytes("\ufeffhat\tthat\r\n\r\na b\ta c\n".encode())
    assert list(read_pairs(tmp_path / "a.tsv")) == [("hat", "that"), ("a b", "a c")]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tsv", b"a\tb\nab\n", "line 2, must be wrong<TAB>right"),
        ("a.tsv", b"a\tb\tc", "line 1, must be"),
        ("a.tsv", b"\xff\tb", "UTF-8"),
    ],
)
def test_files_without_pairs(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        list(read_pairs(tmp_path / name))
    with pytest.raises(DataError, match="cannot be read"):
        list(read_pairs(tmp_path / "missing"))


def test_the_command_learns(tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("gfeat\tgreat\nhte\tthe\n")
    out = tmp_path / "mine.json"
    main(["learn-errors", str(tmp_path / "a.tsv"), "--out", str(out)])
    assert "replacements of 1 characters; mistakes: 33% substitute" in capsys.readouterr().out
    # alphabet: a e f g h r t
    assert error_model(out).probability("f", "r") == pytest.approx(2 / 7)
    assert json.loads(out.read_text())["name"] == "mine"
