"""Doubled words and articles."""

import pytest
from gidd_proof.contexts import Contexts
from gidd_proof.rules import find_slips, find_variants, right_article
from gidd_proof.words import MODEL_FOLDER, WordList

WORDS = WordList(dict.fromkeys(["apple", "huge"], 1))


@pytest.fixture(scope="module")
def contexts():
    return Contexts.of_model(MODEL_FOLDER)


def slips(text, contexts, protected=()):
    return [place.texts for place in find_slips(text, protected, WORDS, contexts)]


def test_doubled_words(contexts):
    assert slips("The the cat is is here.", contexts) == [("The the", "The"), ("is is", "is")]
    assert slips("at the\nthe end", contexts) == [("the\nthe", "the")]
    assert slips("at the the the end", contexts) == [("the the", "the")]  # changes do not overlap


@pytest.mark.parametrize(
    "text",
    [
        "He had had it.",
        "I know that that is so.",
        "It is very very good.",
        "We went to Duran Duran.",
        "the, the",
        "the\n\nthe",
    ],
)
def test_words_that_may_be_doubled(contexts, text):
    assert slips(text, contexts) == []


def test_protected_words_are_not_doubled(contexts):
    assert slips("the `the` the the", contexts, [(4, 9)]) == [("the the", "the")]


@pytest.mark.parametrize(
    ("article", "word", "right"),
    [
        ("a", "apple", "an"),
        ("a", "hour", "an"),
        ("a", "honest", "an"),
        ("a", "umbrella", "an"),
        ("a", "unimportant", "an"),
        ("an", "banana", "a"),
        ("an", "university", "a"),
        ("an", "European", "a"),
        ("an", "one", "a"),
        ("an", "useful", "a"),
    ],
)
def test_wrong_articles(article, word, right):
    assert right_article(article, word, begins=False) == right
    assert right_article(right, word, begins=False) == ""


@pytest.mark.parametrize(
    ("article", "word"),
    [("an", "hotel"), ("an", "MP"), ("a", "NASA"), ("a", "and"), ("a", "i"), ("the", "apple")],
)
def test_unclear_articles_stay(article, word):
    assert right_article(article, word, begins=False) == ""


def test_articles_keep_their_capital():
    assert right_article("A", "apple", begins=True) == "An"
    assert right_article("A", "apple", begins=False) == ""  # vitamin A


def test_articles_before_known_words_only(contexts):
    assert slips("He ate a apple.", contexts) == [("a", "an")]
    assert slips("from a iuge armadillo, an huge one", contexts) == [("an", "a")]
    assert slips("The Dong-a apple", contexts) == []


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Then th ecat sat down.", "the cat"),
        ("The end o fthe road.", "of the"),
        ("We mad eit home.", "made it"),
        ("The cat a nd the dog.", "and"),
        ("He went t he wrong way.", "the"),
    ],
)
def test_moved_spaces(contexts, text, right):
    words = WordList.of_model(MODEL_FOLDER)
    assert [place.texts[1] for place in find_slips(text, [], words, contexts)] == [right]


@pytest.mark.parametrize(
    "text",
    ["books with Rei on the cover", "in Pool C along with them", "met oy the players", "a b c"],
)
def test_spaces_between_words_that_may_be_right_stay(contexts, text):
    words = WordList.of_model(MODEL_FOLDER)
    assert list(find_slips(text, [], words, contexts)) == []


def variants(text):
    return [place.texts for place in find_variants(text, [])]


def test_a_text_keeps_the_spelling_that_it_has_most():
    assert variants("The colour of the theatre, and the Center.") == [("Center", "Centre")]
    assert variants("The color of the theater, and the centre.") == [("centre", "center")]
    assert variants("The color of the theatre.") == []  # as many
    assert variants("The colour of the theatre was organized, organised.") == []


def test_other_spellings_are_listed_and_not_changed(proofreader):
    found = proofreader.correct("The colour of the theatre is that of the center.")
    assert found.changes == ()
    assert [(edit.old, edit.best_other) for edit in found.suggestions] == [("center", "centre")]


def test_a_text_is_read_once_however_many_spaces_moved(contexts, monkeypatch):
    calls, tokens, words = [], contexts.tokens, WordList.of_model(MODEL_FOLDER)
    monkeypatch.setattr(contexts, "tokens", lambda text: calls.append(text) or tokens(text))
    assert len(list(find_slips("Then th ecat sat down. " * 5, [], words, contexts))) == 5
    assert len(calls) == 1
