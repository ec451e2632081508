"""Word lists, edit distances and the probabilities of mistakes."""

import math
import string

import pytest
from gidd.proofreading.alignment import edit_distance
from gidd.proofreading.channels import channel_by_name
from gidd.proofreading.edit_costs import USUAL_KINDS, EditCosts, count_edits
from gidd.proofreading.words import WordList
from hypothesis import given, strategies as st

from gidd.errors import DataError

WORDS = WordList.of_texts(["The people's Union, the union of States.", "It’s the end"])
SHORT = st.text("abc'", max_size=6)


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


@given(st.lists(SHORT.filter(bool), min_size=1, max_size=30, unique=True), SHORT.filter(bool))
def test_near_words_are_those_within_two_edits(words, written):
    """The filter by letters loses none of the words that a comparison with all of them finds."""
    found = WordList(dict.fromkeys(words, 1)).near(written)
    expected = {w for w in words if w != written and edit_distance(w, written) <= 2}
    assert set(found) == expected
    assert len(found) == len(expected)


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
    path.write_text("\n" * 400_001)
    with pytest.raises(DataError, match="at most 400,000 words"):
        WordList.read(path)


def test_the_probability_of_a_mistake():
    costs = EditCosts(0.02)
    cost = {
        "unian": 0.02 * USUAL_KINDS["substitute"] / 26,
        "unions": 0.02 * USUAL_KINDS["insert"] / 26,
        "unon": 0.02 * USUAL_KINDS["delete"],
        "unoin": 0.02 * USUAL_KINDS["swap"],
    }
    for written, probability in cost.items():
        assert costs.log_probability(written, "union") == pytest.approx(math.log(probability))
    assert costs.log_probability("union", "union") == 0
    both = math.log(cost["unian"]) + math.log(cost["unions"])
    assert costs.log_probability("unians", "union") == pytest.approx(both)


def test_a_channel_makes_its_mistakes_likely():
    plain, keyboard = EditCosts(0.02), EditCosts(0.02, channel_by_name("keyboard"))
    assert keyboard.log_probability("ubion", "union") > plain.log_probability("ubion", "union")
    assert keyboard.log_probability("upion", "union") < plain.log_probability("upion", "union")
    assert math.isfinite(keyboard.log_probability("unoin", "union"))


@given(st.text(string.ascii_lowercase, max_size=6), st.text(string.ascii_lowercase, max_size=6))
def test_mistakes_are_never_more_likely_than_none(written, right):
    value = EditCosts(0.5).log_probability(written, right)
    assert value <= 0
    assert (value == 0) == (written == right)


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


@given(SHORT, SHORT)
def test_the_kinds_add_up_to_the_distance(written, right):
    assert sum(count_edits(written, right)) == edit_distance(written, right)
