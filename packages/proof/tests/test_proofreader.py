"""Texts through the packaged model: what is fixed, what is kept, and what is refused."""

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gidd_proof
import pytest
from gidd_proof.error_models import error_model

from gidd.errors import ConfigError, DataError
from gidd.pipeline import apply_edits

TEXT = "The peopel of the union are togehter.\nThey want to see it agian and beleive."
FIXED = "The people of the union are together.\nThey want to see it again and believe."
MODERN = Path(__file__).parent / "modern"


def test_typos_are_fixed(proofreader):
    result = proofreader.correct(TEXT, error_rate=0.05)
    assert result.text == FIXED == apply_edits(TEXT, result.edits)
    assert result.noise_level is None
    assert all(edit.confidence >= 0.5 for edit in result.changes)
    assert (
        result.manifest["task"] == "proofread"
        and result.manifest["forward_passes"] == result.forward_passes
    )


def test_the_error_rate_is_estimated(proofreader):
    result = proofreader.correct(TEXT)
    assert result.noise_level.low <= result.error_rate <= result.noise_level.high
    assert result.text == FIXED


def test_a_minimum_confidence_leaves_the_rest_as_suggestions(proofreader):
    none = proofreader.correct(TEXT, error_rate=0.05, min_confidence=1.0)
    assert none.text == TEXT
    assert {"peopel", "togehter"} <= {edit.old for edit in none.suggestions}


def test_protected_text_and_unknown_characters_stay(proofreader):
    text = "The `peopel` of 東京 wrote to peopel@exmaple.org 🙂\r\n\tabout the togehter peopel."
    start = text.index("togehter")
    result = proofreader.correct(text, error_rate=0.05, protected=[(start, start + 8)])
    assert result.text == text.removesuffix("peopel.") + "people."
    whole = proofreader.correct(TEXT, protected=[(0, len(TEXT))])
    assert (whole.text, whole.forward_passes) == (TEXT, 0)


def test_a_text_that_is_checked_again_needs_no_forward_pass(proofreader):
    text = "The conseration was a matter of contination."
    first = proofreader.correct(text)
    assert first.forward_passes > 0
    assert proofreader.correct(text).edits == first.edits


def test_progress_is_reported(proofreader):
    progress = []
    proofreader.correct(TEXT * 20, on_progress=lambda *count: progress.append(count))
    assert len(progress) == 2
    assert progress[-1][1] == 20 * len(TEXT)


def test_an_error_model_changes_the_candidates(proofreader):
    plain = proofreader.correct("the ubion of states", error_rate=0.05)
    keyboard = replace(proofreader, error_model=error_model("keyboard"))
    typed = keyboard.correct("the ubion of states", error_rate=0.05)
    assert typed.manifest["error_model"] == "keyboard"
    assert plain.edits[0].alternatives != typed.edits[0].alternatives


def test_mistakes_of_a_user_are_refused(proofreader):
    with pytest.raises(DataError, match="must not be empty"):
        proofreader.correct("")
    with pytest.raises(ConfigError, match="protected span"):
        proofreader.correct("abc", error_rate=0.1, protected=[(2, 1)])


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("blog.txt", 12),
        ("email.txt", 15),
        ("essay.txt", 9),
        ("fiction.txt", 14),
        ("news.txt", 15),
        ("readme.md", 15),
    ],
)
def test_modern_documents(proofreader, name, fixed):
    """Of 15 mistakes most are fixed, none wrongly, and good words stay."""
    clean, typed = ((MODERN / kind / name).read_text() for kind in ("clean", "typo"))
    found = proofreader.correct(typed)
    words = list(zip(clean.split(), typed.split(), found.text.split(), strict=True))
    assert sum(right != wrong for right, wrong, _ in words) == 15
    assert sum(right == new != wrong for right, wrong, new in words) >= fixed
    assert all(new in (right, wrong) for right, wrong, new in words)
    assert all(new == right for right, wrong, new in words if right == wrong)


@pytest.mark.parametrize("path", sorted((MODERN / "clean").iterdir()), ids=lambda path: path.name)
def test_clean_modern_documents_come_back_unchanged(proofreader, path):
    clean = path.read_text()
    assert proofreader.correct(clean).text == clean


def test_torch_and_the_network_are_loaded_when_a_text_needs_them():
    code = """
import sys
import gidd_proof
proofreader = gidd_proof.load(device="cpu")
assert proofreader.correct("The peopel are hapy.").text == "The people are happy."
assert "torch" not in sys.modules
assert proofreader.correct("The conseration was a matter of contination.").forward_passes
assert "torch" in sys.modules and "torch._dynamo" not in sys.modules
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_an_old_model_folder_loads_with_its_words(proofreader, tmp_path):
    proofreader.pipe.save(tmp_path)
    (tmp_path / "words.txt").write_text("union\t5\nof\t20\n")
    again = gidd_proof.load(tmp_path, device="cpu")
    assert again.words.counts == {"union": 5, "of": 20}


SCRIPTS = [
    "abc etaoin ",
    "ÀÉçñößł ",
    "абвгд ",
    "αβγδ ",
    "العربية ",
    "漢字かな ",
    "🙂👩‍💻🇫🇷 ",
    "\x00\t\r\n\u200b\u2028",
]


def test_random_documents_change_in_the_reported_places_only(proofreader):
    numbers = random.Random(0)
    words = [*FIXED.split(), *TEXT.split(), "`peopel`", "https://x.org/peopel", "1st", "don’t"]
    for _ in range(1000):
        pieces = [
            numbers.choice(words)
            if numbers.random() < 0.6
            else "".join(numbers.choices(numbers.choice(SCRIPTS), k=numbers.randrange(1, 9)))
            for _ in range(numbers.randrange(1, 40))
        ]
        text = numbers.choice(["", " ", "\n"]).join(pieces)
        result = proofreader.correct(text)
        assert result.text == apply_edits(text, result.edits)
        last = 0
        for edit in result.edits:
            assert edit.start >= last
            assert text[edit.start : edit.stop] == edit.old
            assert not any(map(str.isdigit, edit.old))
            last = edit.stop


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("She is much taller then her brother.", "She is much taller than her brother."),
        ("The company has lost it's way.", "The company has lost its way."),
        ("They said that it is to late to go.", "They said that it is too late to go."),
        ("We saw the the sea.", "We saw the sea."),
        ("He ate a apple.", "He ate an apple."),
        ("It was incorectly detemined.", "It was incorrectly determined."),
        ("I dont know.", "I don't know."),
        ("There are alot of people.", "There are a lot of people."),
    ],
)
def test_slips_that_the_neighbours_show(proofreader, text, right):
    assert proofreader.correct(text).text == right
    assert proofreader.correct(right).text == right
