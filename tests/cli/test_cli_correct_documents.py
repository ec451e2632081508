"""Random documents through `gidd correct --in-place`: all bytes outside changes are kept."""

import json
import random
import unicodedata
from pathlib import Path

import pytest
from support.small_proofreader import write_proofreader

from gidd.cli import main
from gidd.cli.model_options import ModelOptions
from gidd.pipeline import from_pretrained

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

PIECES = [
    *("the", "peopel", "teh", "union", "sattes", "of", "presents", "Thee", "itself", "unionof"),
    *(
        "🙂",
        "👩‍👩‍👧",
        "e\u0301",
        "naïve",
        "東京",
        "שָׁלוֹם",
        "العربية",
        "हिन्दी",
        "Ωmega",
        "ﬁsh",
        "İ",
        "ß",
    ),
    *("“quoted”", "it’s", "—", "…", "1790", "3.14", "<b>", "&amp;", "a_b", "http://x.org/?q=1"),
    *("\x00", "\x1b[2J", "\ufeff", "\u200f", "\u2028", "\u00a0", "\ufffd", "\x85", "\U0010ffff"),
    *("0123456789" * 20, "的" * 200),
]
SPACES = [" ", " ", " ", " ", "  ", "\t", "\n", "\r\n", "\r", "\n\n", "", "", "\v", "\f"]
KEPT = {"Cc", "Zl", "Zp"}
"""Categories of characters that correction neither writes nor replaces: line breaks, controls."""


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    return from_pretrained(write_proofreader(tmp_path_factory.mktemp("model")))


def document(seed: int) -> str:
    numbers = random.Random(seed)
    pieces = numbers.choices(PIECES, k=numbers.randint(1, 14))
    return "".join(piece + numbers.choice(SPACES) for piece in pieces)


def layout(text: str) -> list[str]:
    return [c for c in text if unicodedata.category(c) in KEPT or ord(c) > 0x2100]


LONG = [pytest.param(k, marks=pytest.mark.long) for k in range(100, 1000, 100)]


@pytest.mark.parametrize("first", [0, *LONG])
def test_bytes_outside_changes_are_identical(capsys, pipe, monkeypatch, tmp_path, first):
    monkeypatch.setattr(ModelOptions, "load", lambda self, name: pipe)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    changes = 0
    for seed in range(first, first + 100):
        path = tmp_path / f"{seed}.txt"
        text = document(seed)
        path.write_bytes(text.encode())
        rate = ["--error-rate", random.Random(seed).choice(["0.02", "0.1", "0.3"])]
        main(["correct", str(path), *rate, "--in-place", "--jsonl"])
        row = json.loads(capsys.readouterr().out)
        found, expected, end = path.read_bytes(), b"", 0
        for edit in row["edits"]:
            assert end <= edit["start"] < edit["stop"]
            assert text[edit["start"] : edit["stop"]] == edit["old"]
            expected += (text[end : edit["start"]] + edit["new"]).encode()
            end = edit["stop"]
            changes += edit["change"]
        assert found == expected + text[end:].encode(), seed
        assert layout(found.decode()) == layout(text), seed
    assert changes > 50


def test_a_long_line_of_several_parts(capsys, pipe, monkeypatch, tmp_path):
    monkeypatch.setattr(ModelOptions, "load", lambda self, name: pipe)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = Path(tmp_path / "long.txt")
    text = "0123 " * 900 + "peopel " + "🙂" * 4000 + " sattes"
    path.write_text(text)
    main(["correct", str(path), "--error-rate", "0.01", "--in-place"])
    capsys.readouterr()
    assert path.read_text() == text.replace("peopel", "people").replace("sattes", "states")


@pytest.mark.parametrize("word", ["x" * 200, "0123456789abcdef" * 12, "of" * 90, "a'" * 100 + "a"])
def test_words_that_are_longer_than_the_context(capsys, pipe, monkeypatch, word):
    """Such as keys and checksums: they are kept, and the words around them corrected."""
    monkeypatch.setattr(ModelOptions, "load", lambda self, name: pipe)
    main(["correct", "--text", f"the peopel {word} sattes", "--error-rate", "0.1"])
    out = capsys.readouterr().out
    assert word in out
    assert out.startswith("the people ")
