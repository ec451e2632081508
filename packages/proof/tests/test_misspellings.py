"""Common misspellings, and what was meant."""

import pytest
from gidd_proof.misspellings import MISSPELLINGS_FILE, Misspellings
from gidd_proof.words import MODEL_FOLDER, WordList, normal

WORDS = WordList.of_model(MODEL_FOLDER)


def test_the_list_has_known_words_and_misspellings_that_differ_from_them():
    lines = (MODEL_FOLDER / MISSPELLINGS_FILE).read_text().splitlines()
    rights = [line.partition(": ")[0] for line in lines]
    assert rights == sorted(set(rights), key=str.lower)
    for line in lines:
        right, _, wrong = line.partition(": ")
        assert all(word in WORDS for word in right.split()), right
        assert len(set(wrong.split())) == len(wrong.split()) > 0
        assert normal(right) not in wrong.split()
        for misspelling in wrong.split():  # rare words of the list, or none
            assert WORDS.frequency(misspelling) < 1e-5, misspelling


@pytest.mark.parametrize(
    ("written", "rights"),
    [
        ("wierd", ("weird",)),
        ("Collegue", ("colleague",)),
        ("collegues", ("colleagues",)),
        ("bycicles", ("bicycles",)),
        ("alot", ("a lot",)),
        ("wnat", ("want", "what")),
        ("unecessary", ("unnecessary",)),
        ("weird", ()),
        ("xyzzy", ()),
    ],
)
def test_what_was_meant(written, rights):
    assert Misspellings.packaged().corrections(written, WORDS) == rights


def test_a_word_list_without_the_right_word_has_no_correction():
    assert Misspellings.packaged().corrections("wierd", WordList({"wired": 1})) == ()


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("The garden was beautifull and the sun was warm.", "beautiful and"),
        ("Every new collegue asks the same question.", "new colleague asks"),
        ("It was a wierd week.", "weird week"),
        ("We learned alot of new words.", "a lot of"),
        ("My sister studies at a univercity in Spain.", "a university in"),
        ("I wouldnt buy it.", "wouldn't buy"),  # and not "by": neighbors are read as meant
        ("I saw th ecat in the garden.", "saw the cat in"),
    ],
)
def test_listed_words_are_corrected(proofreader, text, corrected):
    assert corrected in proofreader.correct(text).text


def test_words_of_the_user_are_right(proofreader):
    text = "It was a wierd week."
    assert proofreader.with_words(["wierd"]).correct(text).text == text
