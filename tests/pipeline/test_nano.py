"""The model of packages/nano: loaded by its name, without a network connection."""

from pathlib import Path

import pytest
from gidd_nano import FOLDER

import gidd


@pytest.fixture(scope="module")
def nano():
    return gidd.from_pretrained("nano", device="cpu")


def test_it_is_small_and_complete():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 16e6
    card = (Path(__file__).parents[2] / "packages" / "nano" / "README.md").read_text()
    assert "stories15M" in card and "MIT" in card  # where its weights and texts come from
    assert "CC BY 4.0" in card  # of the real stories


def test_it_writes_the_same_text_again_and_fills_blanks(nano):
    first, second = (
        nano.generate(prompt="Once upon a time", length=24, steps=8, seed=3)[0].text
        for _ in range(2)
    )
    assert first == second and first.startswith("Once upon a time")
    filled = nano.infill("Tom had a[MASK:2] ball. He liked to[MASK].", steps=4)[0].text
    assert "MASK" not in filled and filled.endswith(".")


def test_a_blank_takes_the_space_before_it(nano):
    """The words of "The [MASK] was" are those of "The[MASK] was" that begin with a space."""
    for generation in nano.infill("The [MASK] was [MASK:2]", n=8, steps=4):
        assert generation.text.startswith("The ") and "  " not in generation.text
        assert all(text.startswith(" ") and len(text) > 1 for text in generation.filled)
    likely, few = nano.encode("The dog was"), {"steps": 4, "seed": 3}
    assert nano.infill("The [MASK] was", choices=["dog"], **few)[0].tokens == tuple(likely)


def test_it_prefers_english_to_shuffled_words(nano):
    sentence = "Once upon a time, there was a little girl who had a big red ball."
    shuffled = " ".join(sorted(sentence.split(), key=len))
    likely, unlikely = nano.score([sentence, shuffled])
    assert likely.nelbo < unlikely.nelbo


def test_it_corrects_its_example(nano):
    """What the page of the service and `gidd demo` show first."""
    correction = nano.correct(nano.examples.mistakes)
    assert len(correction.changes) == 1
    blanks = nano.infill(nano.examples.blanks)[0].text
    assert "MASK" not in blanks


def test_self_correction_makes_its_text_more_its_own(nano):
    text = nano.generate("Once upon a time", length=128, steps=16, seed=0)[0].text
    before, after = nano.self_correct(text, forward_passes=16).self_accuracy
    assert after > before
