"""Channels: probabilities by hand, tables of tokens, learning from pairs, files and the command."""

import json
import math
import string

import pytest
import torch
from gidd.proofreading import Channel, channel_by_name, learn_channel
from gidd.proofreading.alignment import CharacterEdit, character_edits
from gidd.proofreading.channels import EDIT_KINDS, MAX_SUBSTITUTIONS
from gidd.proofreading.learn_channel import MAX_PAIR_CHARACTERS
from gidd.proofreading.pair_files import read_pairs

from gidd.cli import main
from gidd.errors import ConfigError, DataError

SUBSTITUTE_ONLY = {"substitute": 1.0, "insert": 0.0, "delete": 0.0, "swap": 0.0}


def test_keyboard_neighbours_touch_and_keep_the_case():
    channel = channel_by_name("keyboard")
    assert set(channel.by_right["g"]) == set("tyfhvb")
    assert set(channel.by_right["G"]) == set("TYFHVB")
    assert set(channel.by_right["a"]) == set("qwsz")
    assert set(channel.by_right["1"]) == set("`2q")
    assert channel.probability("y", "g") == pytest.approx(1 / 6)
    assert channel.probability("p", "g") == channel.probability("g", "g") == 0
    assert channel.kinds == SUBSTITUTE_ONLY


@pytest.mark.parametrize("name", ["keyboard", "ocr"])
def test_built_in_channels_are_distributions_of_all_letters_and_digits(name):
    channel = channel_by_name(name)
    assert channel.name == name
    assert set(string.ascii_letters + string.digits) <= set(channel.by_right)
    for right, others in channel.by_right.items():
        assert math.fsum(others.values()) == pytest.approx(1)
        assert all(len(written) == 1 and written != right for written in others)
        assert list(others.values()) == sorted(others.values(), reverse=True)
        # what is mistaken for another character can be the mistaken one
        assert all(right in channel.by_right[written] for written in others)


def test_look_alikes():
    channel = channel_by_name("ocr")
    for pair in ("ec", "o0", "l1", "lI", "hb", "nu"):
        assert channel.probability(*pair) > 0 < channel.probability(*pair[::-1])
    assert channel.probability("e", "k") == 0


def test_the_table_of_tokens_by_hand():
    channel = Channel("two", {("b", "a"): 0.75, ("x", "a"): 0.25, ("a", "b"): 1.0})
    bare = channel.table(["a", None, "b", "c"], other=0.0)
    third = 1 / 2  # of the two other characters
    assert bare.dtype == torch.float64
    assert bare.tolist() == [
        [0, 0, 1, 0],  # x is no token, so b alone is left
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [third, 0, third, 0],  # without a listed mistake: uniform
    ]
    mixed = channel.table(["a", None, "b", "c"], other=0.1)
    expected = [[0, 0, 0.95, 0.05], [0, 0, 0, 0], [0.95, 0, 0, 0.05], [0.5, 0, 0.5, 0]]
    assert torch.allclose(mixed, torch.tensor(expected, dtype=torch.float64), atol=1e-15)


@pytest.mark.parametrize("name", ["keyboard", "ocr"])
def test_rows_of_tables_sum_to_one_over_the_others(name):
    characters = [*string.printable, None, "é", None]
    table = channel_by_name(name).table(characters)
    is_text = torch.tensor([c is not None for c in characters])
    assert torch.allclose(table.sum(1), is_text.double(), atol=1e-12)
    assert not table.diagonal().any() and not table[:, ~is_text].any() and (table >= 0).all()
    assert (table[is_text][:, is_text].fill_diagonal_(1) > 0).all()  # no mistake is impossible
    assert channel_by_name(name).table([None, "a"]).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("substitutions", "kinds", "message"),
    [
        ({("a", "a"): 1.0}, SUBSTITUTE_ONLY, "'a' for 'a'"),
        ({("ab", "a"): 1.0}, SUBSTITUTE_ONLY, "'ab' for 'a'"),
        ({("b", "a"): math.nan}, SUBSTITUTE_ONLY, "nan"),
        ({("b", "a"): -0.1}, SUBSTITUTE_ONLY, "-0.1"),
        ({("b", "a"): 0.6, ("c", "a"): 0.6}, SUBSTITUTE_ONLY, "1.2 for 'a'"),
        ({}, SUBSTITUTE_ONLY | {"swap": 0.5}, "sum 1"),
        ({}, {"substitute": 1.0}, "insert, delete, swap"),
        ({}, SUBSTITUTE_ONLY | {"merge": 0.0}, "merge"),
    ],
)
def test_impossible_channels_are_refused(substitutions, kinds, message):
    with pytest.raises(ConfigError, match=message):
        Channel("bad", substitutions, kinds)


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


def test_a_learnt_channel_has_the_smoothed_counts():
    pairs = [("cxt", "cat"), ("cxt", "cat"), ("cot", "cat"), ("ct", "cat"), ("tac", "cat")]
    channel = learn_channel(pairs, "cats")
    # alphabet a c o t x; the last pair replaces c by t and t by c
    assert set(channel.by_right) == {"a", "c", "t"}
    total = 3 + 4
    expected = {"x": 3 / total, "o": 2 / total, "c": 1 / total, "t": 1 / total}
    assert channel.by_right["a"] == pytest.approx(expected)
    assert channel.probability("t", "c") == pytest.approx(2 / 5)
    assert channel.probability("a", "o") == 0  # o was never replaced
    counts = {"substitute": 5 + 1, "insert": 1, "delete": 1 + 1, "swap": 1}
    assert channel.kinds == pytest.approx({k: n / 10 for k, n in counts.items()})
    assert math.fsum(channel.kinds.values()) == pytest.approx(1)


def test_what_cannot_be_learnt_from():
    with pytest.raises(DataError, match="at least one mistake"):
        learn_channel([("a", "a")])
    with pytest.raises(DataError, match="pair 2"):
        learn_channel([("a", "b"), ("a" * (MAX_PAIR_CHARACTERS + 1), "a")])
    many = [(chr(k), chr(k + 1)) for k in range(5000, 5600)]
    with pytest.raises(DataError, match=f"{MAX_SUBSTITUTIONS:,} substitutions"):
        learn_channel(many)


def test_a_saved_channel_is_the_same(tmp_path):
    channel = learn_channel([("cxt\t", "cat\n"), ("üb", "äb"), ("🙂", "🙃")], "mine")
    channel.save(tmp_path / "a.json")
    assert channel_by_name(tmp_path / "a.json") == channel
    assert channel_by_name(str(tmp_path / "a.json")).table(["ä", "ü"]).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 1"),
        ({"kinds": {}}, "kinds"),
        ({"kinds": dict.fromkeys(EDIT_KINDS, "1")}, "must be a number, got '1'"),
        ({"substitutions": {"a": {"b": 2}}}, "got 2"),
        ({"substitutions": {"a": {"b": True}}}, "got True"),
        ({"substitutions": {"a": {"bc": 1}}}, "'bc' for 'a'"),
        ({"substitutions": []}, "damaged or invalid"),
        ({"substitutions": {"a": {str(k): 0.0 for k in range(MAX_SUBSTITUTIONS + 1)}}}, "at most"),
    ],
)
def test_files_that_are_no_channels(tmp_path, change, message):
    path = tmp_path / "a.json"
    record = {"format": 1, "name": "a", "kinds": SUBSTITUTE_ONLY, "substitutions": {}} | change
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=message):
        channel_by_name(path)
    path.write_text("{}")
    with pytest.raises(DataError, match="format 1"):
        channel_by_name(path)


def test_names_that_are_no_channels(tmp_path):
    with pytest.raises(ConfigError, match="keyboard, ocr or a file .* got 'dvorak'"):
        channel_by_name("dvorak")
    with pytest.raises(ConfigError, match="got"):
        channel_by_name(tmp_path)


def test_pairs_are_read_from_tabs_and_from_json(tmp_path):
    (tmp_path / "a.tsv").write_bytes("\ufeffhat\tthat\r\n\r\na b\ta c\n".encode())
    assert list(read_pairs(tmp_path / "a.tsv")) == [("hat", "that"), ("a b", "a c")]
    (tmp_path / "a.jsonl").write_text('{"wrong": "a\\tb", "right": "ab"}\n')
    assert list(read_pairs(tmp_path / "a.jsonl")) == [("a\tb", "ab")]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tsv", b"a\tb\nab\n", "line 2, must have two texts"),
        ("a.tsv", b"a\tb\tc", "line 1, must have two"),
        ("a.tsv", b"\xff\tb", "UTF-8"),
        ("a.jsonl", b"a\tb", "line 1, cannot be read as JSON"),
        ("a.jsonl", b'{"wrong": "a"}', "wrong and right"),
        ("a.jsonl", b'["a", "b"]', "wrong and right"),
    ],
)
def test_files_without_pairs(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        list(read_pairs(tmp_path / name))
    with pytest.raises(DataError, match="does not exist"):
        list(read_pairs(tmp_path / "missing"))


def test_the_command_learns_and_shows(tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("gfeat\tgreat\nhte\tthe\n")
    out = str(tmp_path / "mine.json")
    main(["channel", "learn", str(tmp_path / "a.tsv"), "--out", out])
    assert "replacements of 1 different" in capsys.readouterr().out
    main(["channel", "show", out])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("mine: mistakes: 33% substitute, 17% insert")
    # alphabet: a e f g h r t
    assert lines[2].split()[:3] == ["r", "f", "28.6%"]
    main(["channel", "show", "keyboard", "--num", "2"])
    assert "more characters" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["channel", "show", "keyboard", "--num", "0"])
    assert "num must be an integer" in capsys.readouterr().err
