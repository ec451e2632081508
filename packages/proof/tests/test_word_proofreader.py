"""Words proofread with a network whose predictions are known."""

import math

import pytest
import torch
from gidd_proof.edit_model import EditModel
from gidd_proof.proofreader import chunks_of, spread
from gidd_proof.scorer import CandidateScorer, Crop
from gidd_proof.word_proofreader import WordProofreader
from gidd_proof.words import MODEL_FOLDER, WordList

import gidd
from gidd.diffusion import HybridSchedule
from gidd.pipeline import apply_edits
from gidd.sampling import FunctionNetwork, PosteriorPass, Session, WindowReader, run_job

PIPE = gidd.from_pretrained(MODEL_FOLDER, device="cpu")
TOKENIZER = PIPE.tokenizer
VOCAB = TOKENIZER.vocab
CHARACTERS = [PIPE.token_texts.decode_one(v) for v in range(VOCAB.size)]
SCHEDULE = HybridSchedule(VOCAB, p_uniform=0.3)
TEXT = "the union of the states"


def knows(text):
    """A network that predicts what stands between the same neighbours in a text, else anything.

    Neighbours are two characters on each side; evidence of either side alone counts less.
    """
    target = TOKENIZER.encode(f"  {text}  ")
    triples = [(target[i - 2 : i], target[i], target[i + 1 : i + 3]) for i in range(2, len(target))]
    space = TOKENIZER.encode(" ")[0]

    def x_theta(z, t):
        out = torch.full((*z.shape, VOCAB.size), 1e-3)
        for row, tokens in enumerate(z.tolist()):
            padded = [space, space, *tokens, space, space]
            for i in range(len(tokens)):
                left, right = padded[i : i + 2], padded[i + 3 : i + 5]
                for before, token, after in triples:
                    out[row, i, token] += 0.05 * (before == left) + 0.05 * (after == right)
                    out[row, i, token] += 10 * (before == left and after == right)
        out[..., VOCAB.mask_id] = 0
        return out / out.sum(-1, keepdim=True)

    return FunctionNetwork(x_theta)


@pytest.fixture(scope="module")
def reader():
    session = Session(knows(TEXT), SCHEDULE)
    windows = WindowReader(session)
    scorer = CandidateScorer(windows, TOKENIZER)
    words = WordList(dict.fromkeys(TEXT.split(), 1000))
    return WordProofreader(PosteriorPass(windows), scorer, CHARACTERS, words, context=64)


def corrected(reader, text, error_rate=0.2, fixed=()):
    tokens = TOKENIZER.encode(text)
    is_fixed = [i in fixed for i in range(len(tokens))]
    costs = EditModel(error_rate)
    edits, forward_passes = run_job(lambda jobs: reader(jobs, text, tokens, is_fixed, costs))
    for edit in edits:
        assert text[edit.start : edit.stop] == edit.old
        assert math.fsum(a.probability for a in edit.alternatives) == pytest.approx(1)
    assert forward_passes == 1 + sum(len(edit.alternatives) for edit in edits)
    return apply_edits(text, edits)


@pytest.mark.parametrize(
    "wrong",
    [
        "the unian of the states",
        "the unoin of the states",
        "the uion of the states",
        "the unnion of the states",
        "the union of thestates",
        TEXT,
    ],
)
def test_replaced_dropped_added_and_exchanged_letters_are_corrected(reader, wrong):
    assert corrected(reader, wrong) == TEXT


def test_fixed_characters_are_not_changed(reader):
    assert corrected(reader, "the unoin of the states", fixed={5}) == "the unoin of the states"


def test_the_likelihood_of_a_crop_is_the_sum_of_its_counted_characters():
    def x_theta(z, t):
        ramp = torch.arange(1, VOCAB.size + 1, dtype=torch.float32).expand(*z.shape, -1).clone()
        ramp[..., VOCAB.mask_id] = 0
        return ramp / ramp.sum(-1, keepdim=True)

    scorer = CandidateScorer(WindowReader(Session(FunctionNetwork(x_theta), SCHEDULE)), TOKENIZER)
    total = sum(range(1, VOCAB.size + 1)) - (VOCAB.mask_id + 1)
    a, b, c = (math.log((v + 1) / total) for v in TOKENIZER.encode("abc"))
    expected = [b + c, a]
    crops = [Crop("abcd", 1, 3), Crop("ab", 0, 1)]
    found = run_job(lambda jobs: scorer(jobs, crops, 0.01))
    assert found == pytest.approx(expected, rel=1e-5)


def test_chunks_cover_a_text_and_are_cut_after_white_space():
    text = "word " * 30 + "x" * 100
    chunks = chunks_of(text, 40)
    assert [chunk.start for chunk in chunks[1:]] == [chunk.stop for chunk in chunks[:-1]]
    assert (chunks[0].start, chunks[-1].stop) == (0, len(text))
    assert all(chunk.stop - chunk.start <= 40 for chunk in chunks)
    assert all(text[chunk.stop - 1] == " " for chunk in chunks if chunk.stop <= 150)
    assert chunks_of("", 40) == []
    assert spread(chunks_of(text, 40), 100) == chunks
    assert spread(chunks, 2) == [chunks[1], chunks[5]]
