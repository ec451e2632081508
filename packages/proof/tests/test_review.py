"""`gidd-proof --interactive`: keys and decisions."""

import pytest
from gidd_proof.review import require_terminal, review

from gidd.errors import ConfigError
from gidd.pipeline import Alternative, Correction, TextEdit

TEXT = "to the peopel\nof teh union"
EDITS = (
    TextEdit(
        7,
        "peopel",
        "people",
        tuple(map(Alternative, ["people", "peopel", "pope"], [0.9, 0.08, 0.02])),
    ),
    TextEdit(17, "teh", "teh", tuple(map(Alternative, ["teh", "the"], [0.7, 0.3]))),
)
CORRECTION = Correction(
    text="",
    original=TEXT,
    edits=EDITS,
    error_rate=0.1,
    noise_level=None,
    forward_passes=1,
    manifest={},
)


def reviewed(keys: str, lines: tuple[str, ...] = ()) -> str:
    typed, entered = iter(keys), iter(lines)
    found = review(
        "letter.txt",
        CORRECTION,
        read_key=lambda: next(typed),
        read_line=lambda start: next(entered),
    )
    assert next(typed, None) is None
    assert [edit.old for edit in found.edits] == ["peopel", "teh"]
    return found.text


@pytest.mark.parametrize(
    ("keys", "lines", "expected"),
    [
        ("aa", (), "to the people\nof the union"),
        ("rr", (), TEXT),
        ("32", (), "to the pope\nof the union"),
        ("xA9\x1b1r", (), "to the people\nof teh union"),  # keys without a meaning are ignored
        ("eer", ("", "populace"), "to the populace\nof teh union"),
        ("as", (), "to the people\nof teh union"),
        ("s", (), TEXT),
    ],
)
def test_keys(keys, lines, expected):
    assert reviewed(keys, lines) == expected


def test_a_place_is_shown_with_its_context_and_alternatives(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    reviewed("rr")
    err = capsys.readouterr().err
    assert "letter.txt:1  1 of 2" in err
    assert "  to the [-peopel-]\n" in err
    assert "  1 people  90%\n  2 peopel   8%  as it is\n  3 pope     2%\n" in err
    assert "letter.txt:2  2 of 2" in err
    assert "  of [-teh-] union\n" in err


def test_it_needs_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(ConfigError, match="--interactive needs a terminal"):
        require_terminal()
