"""Properties of edits and of near words."""

import string

import pytest
from gidd_proof.edit_model import EditModel, count_edits, edit_distance
from gidd_proof.words import WordList

pytest.importorskip("hypothesis", reason="needs the package hypothesis")
from hypothesis import given, settings, strategies as st  # noqa: E402

SHORT = st.text("abc'", max_size=6)


@settings(deadline=None)
@given(st.lists(SHORT.filter(bool), min_size=1, max_size=30, unique=True), SHORT.filter(bool))
def test_near_words_are_those_within_two_edits(words, written):
    """The filter by letters loses none of the words that a comparison with all of them finds."""
    found = WordList(dict.fromkeys(words, 1)).near(written)
    assert all(edit_distance(word, written) == distance for word, distance in found)
    expected = {w for w in words if w != written and edit_distance(w, written) <= 2}
    assert {word for word, _ in found} == expected
    assert len(found) == len(expected)


@given(st.text(string.ascii_lowercase, max_size=6), st.text(string.ascii_lowercase, max_size=6))
def test_mistakes_are_never_more_likely_than_none(written, right):
    value = EditModel(0.5).log_probability(written, right)
    assert value <= 0
    assert (value == 0) == (written == right)


@given(SHORT, SHORT)
def test_the_kinds_add_up_to_the_distance(written, right):
    assert sum(count_edits(written, right)) == edit_distance(written, right)
