"""Mistakes that are added to text: where, how many and which."""

import string

import pytest
from gidd_proof.error_models import error_model

pytest.importorskip("noises", reason="needs packages/proof/benchmarks")
from noises import (  # noqa: E402
    CONFUSED_WORDS,
    NOISES,
    add_noise,
    confusions_of,
    with_case_of,
)

LETTERS = string.ascii_lowercase
TEXT = " \n".join(["The people of the 13 States, (from Maine to Ohio), have 1,234 ships."] * 300)


@pytest.mark.parametrize("kind", NOISES)
def test_words_stay_aligned_and_white_space_stays(kind):
    for rate in (0.0, 0.1, 1.0):
        noisy = add_noise(TEXT, kind, rate, seed=3)
        assert noisy.clean == TEXT and noisy.clean_words == tuple(TEXT.split())
        assert noisy.words == tuple(noisy.text.split())  # none is empty, none is split
        assert len(noisy.words) == len(noisy.clean_words)
        assert noisy.text.split(" \n")[0].count(" ") == TEXT.split(" \n")[0].count(" ")
        assert (noisy.text == TEXT) == (rate == 0)
        assert noisy == add_noise(TEXT, kind, rate, seed=3)
    assert add_noise(TEXT, kind, 0.1, seed=4).text != add_noise(TEXT, kind, 0.1, seed=3).text


@pytest.mark.parametrize("kind", ["random", "keyboard", "ocr"])
def test_replaced_characters(kind):
    model = None if kind == "random" else error_model(kind)

    def can_change(c):
        return c.isalpha() if model is None else c in model.by_right

    noisy = add_noise(TEXT, kind, 0.1)
    places = [(a, b) for a, b in zip(TEXT, noisy.text, strict=True) if can_change(a)]
    wrong = [(a, b) for a, b in places if a != b]
    expected, deviation = 0.1 * len(places), (0.09 * len(places)) ** 0.5
    assert abs(len(wrong) - expected) < 4 * deviation
    assert all(a == b or can_change(a) for a, b in zip(TEXT, noisy.text, strict=True))
    if model is None:
        assert {b for _, b in wrong} == set(LETTERS)
    else:
        assert all(model.probability(b, a) > 0 for a, b in wrong)
    everything = add_noise(TEXT, kind, 1.0).text
    assert not any(a == b for a, b in zip(TEXT, everything, strict=True) if can_change(a))
    fewer = add_noise(TEXT, kind, 0.03).text  # some of the same mistakes
    assert all(c in (a, b) for a, b, c in zip(TEXT, noisy.text, fewer, strict=True))


def test_an_error_model_replaces_by_its_probabilities():
    noisy = add_noise("c" * 4000, "ocr", 1.0).text
    for written, probability in error_model("ocr").by_right["c"].items():
        deviation = (4000 * probability * (1 - probability)) ** 0.5
        assert abs(noisy.count(written) - 4000 * probability) < 4 * deviation


def test_kinds_of_typos_have_their_shares():
    words = " ".join(["abcdefghij"] * 2000)
    counts = {"dropped": 0, "added": 0, "replaced": 0, "exchanged": 0}
    for clean, noisy in zip(words.split(), add_noise(words, "typos", 0.005).words, strict=True):
        if len(noisy) == 9:
            counts["dropped"] += 1
        elif len(noisy) == 11:
            counts["added"] += 1
        elif noisy != clean:
            is_exchange = sorted(noisy) == sorted(clean)
            counts["exchanged" if is_exchange else "replaced"] += 1
    total = sum(counts.values())
    assert abs(total - 100) < 40  # of 20,000 letters
    shares = {"dropped": 0.35, "added": 0.25, "replaced": 0.27, "exchanged": 0.13}
    for kind, share in shares.items():
        assert abs(counts[kind] - share * total) < 4 * (share * (1 - share) * total) ** 0.5


def test_words_are_never_lost():
    for seed in range(20):
        noisy = add_noise("I a 7 of (a) b!", "typos", 1.0, seed)
        assert all(noisy.words) and noisy.words[2] == "7"
        assert noisy.words[4][0] == "(" and noisy.words[4][-1] == ")"


def test_confusions_are_words_of_the_list():
    noisy = add_noise("To: THEIR own, form (it's) xylophone Their", "confusions", 1.0)
    assert noisy.words[0] in ("Too:", "Two:")
    assert noisy.words[1] in ("THERE", "THEY'RE")
    assert noisy.words[2:5] == ("own,", "from", "(its)")
    assert noisy.words[5] == "xylophone" and noisy.words[6] in ("There", "They're")
    noisy = add_noise("of the own people " * 2000, "confusions", 0.05)
    wrong = [a for a, b in zip(noisy.clean_words, noisy.words, strict=True) if a != b]
    assert set(wrong) == {"of", "the"} and abs(len(wrong) - 200) < 60


def test_the_list_of_confusions():
    assert len(CONFUSED_WORDS) >= 60 and len(set(CONFUSED_WORDS)) == len(CONFUSED_WORDS)
    found = confusions_of()
    for word, others in found.items():
        assert others and word not in others and len(set(others)) == len(others)
        assert all(word in found[other] for other in others)
    assert confusions_of((("a", "b"), ("a", "c"))) == {"a": ["b", "c"], "b": ["a"], "c": ["a"]}


def test_case_is_that_of_the_word():
    assert [with_case_of(w, "too") for w in ("to", "To", "TO", "T")] == ["too", "Too", "TOO", "Too"]


def test_mistakes_in_arguments():
    with pytest.raises(ValueError, match="random, keyboard, .* got 'swap'"):
        add_noise("a", "swap", 0.1)
    with pytest.raises(ValueError, match="got 1.5"):
        add_noise("a", "random", 1.5)
