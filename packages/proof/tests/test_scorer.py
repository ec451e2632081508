"""Pseudo-log-likelihoods of crops with a network whose predictions are known."""

import math

import pytest
import torch
from gidd_proof.candidates import Candidate, Place, Surroundings
from gidd_proof.confidence import HYPHEN, QUOTE, contenders, crop, prior_scores
from gidd_proof.contexts import Contexts, Table
from gidd_proof.scorer import CandidateScorer, Crop
from gidd_proof.words import MODEL_FOLDER, WordList

import gidd
from gidd.diffusion import HybridSchedule
from gidd.sampling import FunctionNetwork, Session, WindowReader, run_sync

TOKENIZER = gidd.from_pretrained(MODEL_FOLDER, device="cpu").tokenizer
VOCAB = TOKENIZER.vocab
PASSES = []
NO_CONTEXTS = Contexts(Table.without_ngrams())


def ramp(z, t):
    """Predict token v with a probability proportional to v + 1, whatever the text."""
    PASSES.append(len(z))
    out = torch.arange(1, VOCAB.size + 1, dtype=torch.float32).expand(*z.shape, -1).clone()
    out[..., VOCAB.mask_id] = 0
    return out / out.sum(-1, keepdim=True)


@pytest.fixture
def scorer():
    reader = WindowReader(Session(FunctionNetwork(ramp), HybridSchedule(VOCAB, p_uniform=0.3)))
    return CandidateScorer(reader, TOKENIZER, frozenset("abcdé'-"))


def test_the_likelihood_of_a_crop_is_the_sum_of_its_counted_characters(scorer):
    total = sum(range(1, VOCAB.size + 1)) - (VOCAB.mask_id + 1)
    a, b, c = (math.log((v + 1) / total) for v in TOKENIZER.encode("abc"))
    crops = [Crop("abcd", 1, 3), Crop("ab", 0, 1)]
    found = run_sync(scorer(crops, 0.01))
    assert found == pytest.approx([b + c, a], rel=1e-5)


def test_scores_are_kept(scorer):
    first = run_sync(scorer([Crop("abc", 0, 3)], 0.01))
    PASSES.clear()
    assert run_sync(scorer([Crop("abc", 0, 3)], 0.01)) == first
    assert PASSES == []


@pytest.mark.parametrize(("text", "read"), [("a’b", "a'b"), ("ácä", "aca"), ("a🙂東b", "a--b")])
def test_unknown_characters_are_replaced_one_by_one(scorer, text, read):
    same = [Crop(text, 0, len(text)), Crop(read, 0, len(read))]
    first, second = run_sync(scorer(same, 0.01))
    assert first == second


def test_a_crop_is_a_candidate_with_its_context():
    text = "x" * 100 + "teh" + "y" * 100
    found = crop(text, Place(100, 103, ()), "the")
    assert len(found.text) == 64
    assert found.text[found.start : found.stop] == "x" * 10 + "the" + "y" * 10
    assert crop("teh", Place(0, 3, ()), "the") == Crop("the", 0, 3)


def test_names_short_words_and_repeated_words_are_changed_less():
    words = WordList({"people": 10})
    place = Place(0, 6, (Candidate("people", -5.0),))
    (lower_case,) = prior_scores(
        "peopel", place._replace(has_capitals=False), words, NO_CONTEXTS, 1
    )
    (plain,), (name,), (short,), (repeated,) = (
        prior_scores(found, place, words, NO_CONTEXTS, times)
        for found, times in (("peopel", 1), ("Peopel", 1), ("pepl", 1), ("peopel", 4))
    )
    assert plain > max(name, short, repeated, lower_case)


def test_known_words_need_better_neighbours():
    words = WordList({"form": 10, "from": 10, "farm": 10})
    confused = Contexts(Table.without_ngrams(), [("form", "from")])
    found = Candidate("form", 0.0, -4.0)
    fitting, other = Candidate("from", -5.0, 4.0), Candidate("farm", -5.0, 4.0)
    place = Place(0, 4, (fitting, fitting._replace(gain=-4.0), other), written=found)
    likely, unlikely, neighbour = prior_scores("form", place, words, confused, 1)
    assert likely > 0 > unlikely
    assert likely > neighbour


def test_the_network_reads_what_is_not_decided():
    long, short = Place(0, 8, ()), Place(0, 6, ())
    assert contenders(long, [0.0, -2.0, -9.0]) == [0, 1]
    assert contenders(long, [0.0, -9.0]) == []
    assert contenders(long, [-20.0, -20.0]) == []
    assert contenders(short, [0.0, -1.0]) == []
    assert contenders(long._replace(written=Candidate("together", 0.0)), [0.0, -1.0]) == []


def test_surroundings_of_a_word_make_changes_less_likely():
    text = 'The Coot-peopel, "peopel" and 5 km'
    words = WordList({"people": 10})

    def score(start, stop):
        around = Surroundings.of(text, start, stop)
        place = Place(start, stop, (Candidate("people", -5.0),), surroundings=around)
        return prior_scores(text[start:stop], place, words, NO_CONTEXTS, 1)[0]

    after_hyphen, quoted = text.index("-") + 1, text.index('"') + 1
    plain = prior_scores("peopel", Place(0, 6, (Candidate("people", -5.0),)), words, NO_CONTEXTS, 1)
    assert score(after_hyphen, after_hyphen + 6) == pytest.approx(plain[0] + HYPHEN)
    assert score(quoted, quoted + 6) == pytest.approx(plain[0] + 2 * QUOTE)
    assert Surroundings.of(text, text.index("km"), len(text)) == Surroundings(follows_number=True)
    assert Surroundings.of(text, 0, 3) == Surroundings()
