"""Word lists, edit distances and the probabilities of mistakes."""

import math

import pytest
from gidd_proof.edit_model import (
    DOUBLED,
    FIRST_LETTER,
    OTHER_LETTER,
    SAME_VOWEL,
    USUAL_KINDS,
    EditModel,
    count_edits,
    edit_distance,
)
from gidd_proof.error_models import error_model
from gidd_proof.words import CACHED_LOOKUPS, MODEL_FOLDER, WordList

from gidd.errors import DataError

WORDS = WordList.of_texts(["The people's Union, the union of States.", "It’s the end"])


def test_words_are_counted_in_lower_case():
    assert WORDS.counts == {
        "the": 3, "people's": 1, "union": 2, "of": 1, "states": 1, "it's": 1, "end": 1,
    }  # fmt: skip
    assert "UNION" in WORDS
    assert "It’s" in WORDS
    assert "unoin" not in WORDS


def test_frequencies_are_shares_of_the_corpus():
    assert WORDS.log_frequency("The") == pytest.approx(math.log(3 / 11))
    both = WORDS.log_frequency("the") + WORDS.log_frequency("end")
    assert WORDS.log_frequency("the end") == pytest.approx(both)
    assert WORDS.log_frequency("unknown") < WORDS.log_frequency("end") - math.log(2)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("union", "union", 0),
        ("union", "unoin", 1),  # two neighbours exchanged
        ("union", "uion", 1),
        ("union", "unnion", 1),
        ("union", "onion", 1),
        ("union", "", 5),
        ("ca", "abc", 3),  # no part is edited twice
    ],
)
def test_edit_distances(a, b, expected):
    assert edit_distance(a, b) == edit_distance(b, a) == expected


def test_a_saved_list_is_read_back(tmp_path):
    WORDS.save(tmp_path / "words.txt")
    assert WordList.read(tmp_path / "words.txt").counts == WORDS.counts
    assert (tmp_path / "words.txt").read_text().startswith("the\t3\nunion\t2\n")
    (tmp_path / "plain.txt").write_text("Alpha\r\nbeta\n")
    assert WordList.read(tmp_path / "plain.txt").counts == {"alpha": 1, "beta": 1}


def test_damaged_lists_are_refused(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("word\tmany\n")
    with pytest.raises(DataError, match=r"words\.txt"):
        WordList.read(path)
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"words\.txt"):
        WordList.read(path)


def test_lookups_are_cached_within_a_bound():
    """A service looks up any number of words; memory must not grow with them."""
    words = WordList({"the": 3, "union": 1})
    for number in range(CACHED_LOOKUPS + 100):
        words.near(f"w{number:x}")
    assert words.near("teh") == (("the", 1),)
    assert words._near.cache_info().currsize == CACHED_LOOKUPS


def test_possessives_of_known_words_are_known():
    assert "Union's" in WORDS and "union’s" in WORDS
    assert "unoin's" not in WORDS
    assert WORDS.log_frequency("unoin's") < WORDS.log_frequency("union's")


def test_a_model_without_words_gets_the_packaged_ones(tmp_path):
    packaged = WordList.of_model(tmp_path)
    assert packaged.counts == WordList.read(MODEL_FOLDER / "words.txt").counts
    assert 100_000 < len(packaged) < 150_000
    assert {
        "laptop",
        "email",
        "don't",
        "colour",
        "smartphone",
        "kubernetes",
    } <= packaged.counts.keys()
    (tmp_path / "words.txt").write_text("only\t3\n")
    assert WordList.of_model(tmp_path).counts == {"only": 3}


def test_the_probability_of_a_mistake():
    costs = EditModel(0.02)
    cost = {
        "unian": 0.02 * USUAL_KINDS["substitute"] * SAME_VOWEL,
        "unioc": 0.02 * USUAL_KINDS["substitute"] * OTHER_LETTER,
        "inion": 0.02 * USUAL_KINDS["substitute"] * SAME_VOWEL * FIRST_LETTER,
        "unnion": 0.02 * USUAL_KINDS["insert"] * DOUBLED,
        "unions": 0.02 * USUAL_KINDS["insert"] * (1 - DOUBLED) / 26,
        "unon": 0.02 * USUAL_KINDS["delete"],
        "unoin": 0.02 * USUAL_KINDS["swap"],
    }
    for written, probability in cost.items():
        assert costs.log_probability(written, "union") == pytest.approx(math.log(probability))
    assert costs.log_probability("union", "union") == 0
    both = math.log(cost["unian"]) + math.log(cost["unions"])
    assert costs.log_probability("unians", "union") == pytest.approx(both)


def test_an_error_model_makes_its_mistakes_likely():
    plain, keyboard = EditModel(0.02), EditModel(0.02, error_model("keyboard"))
    assert keyboard.log_probability("ubion", "union") > plain.log_probability("ubion", "union")
    assert keyboard.log_probability("upion", "union") < plain.log_probability("upion", "union")
    assert math.isfinite(keyboard.log_probability("unoin", "union"))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("union", (0, 0, 0, 0)),
        ("unian", (1, 0, 0, 0)),
        ("unions", (0, 1, 0, 0)),
        ("unon", (0, 0, 1, 0)),
        ("unoin", (0, 0, 0, 1)),
        ("onoin", (1, 0, 0, 1)),
        ("", (0, 0, 5, 0)),
    ],
)
def test_edits_are_counted_by_kind(written, expected):
    assert count_edits(written, "union") == expected


def test_words_with_endings_and_prefixes():
    words = WordList({"listening": 3, "balustrade": 2, "directed": 2, "cat": 9})
    assert all(map(words.has_stem, ("listenings", "Balustraded", "codirected", "redirected")))
    assert not any(map(words.has_stem, ("listeningx", "cats", "directed", "adirected")))
