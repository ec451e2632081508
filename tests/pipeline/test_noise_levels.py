"""`pipe.noise_level`, and the times that a network was trained with."""

import json

import pytest
import torch
from support.small_model import CONTEXT, TEXT, write_model

import gidd
from gidd.diffusion.constants import TRAINING_EPS
from gidd.errors import ConfigError, DataError
from gidd.models.hub import MODEL_RECORD
from gidd.pipeline.noise_level import estimate_noise
from gidd.sampling import run_sync
from gidd.sampling.windows import TextWindows

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

DEFAULT = (TRAINING_EPS, 1 - TRAINING_EPS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pipe(folder):
    return gidd.from_pretrained(folder, device="cpu")


@pytest.mark.slow
def test_the_noise_level_of_a_text(pipe):
    given = pipe.decoder.encode_with_offsets(TEXT, "it")
    cut = TextWindows(given.tokens, given.fixed, CONTEXT)
    seen = []
    found = pipe.noise_level(TEXT, on_forward_passes=lambda *counts: seen.append(counts))
    assert found == run_sync(estimate_noise(pipe.window_reader(), cut))
    assert found == pipe.noise_level(TEXT)
    assert len(cut) > 1
    assert seen[-1] == (found.forward_passes, found.forward_passes)
    scores = pipe.score(TEXT, nodes=1, repeats=2)
    assert scores.noise_level == found
    assert pipe.score(TEXT, nodes=1, repeats=2, confidence=False).noise_level is None
    assert pipe.score("\n", nodes=1, repeats=2).noise_level is None


def test_how_often_a_token_occurs_is_the_prediction_from_noise_alone(pipe):
    frequencies, vocab = pipe.token_frequencies, pipe.schedule.vocab
    assert frequencies.shape == (vocab.size,)
    assert float(frequencies.sum()) == pytest.approx(1)
    assert not frequencies[[*pipe.decoder.never_written]].any()
    cut = TextWindows([vocab.mask_id] * 8, [False] * 8, CONTEXT)
    masks = pipe.token_probabilities(list(cut.tokens), vocab.size)
    expected = torch.zeros(vocab.size).double()
    for place in masks:
        for token, p in place.top:
            expected[token] += p
    letters = [v for v in range(vocab.size) if v not in pipe.decoder.never_written]
    order = frequencies[letters] / frequencies[letters].sum()
    torch.testing.assert_close(
        order, expected[letters] / expected[letters].sum(), atol=0.02, rtol=0
    )


@pytest.mark.slow
def test_protected_text_does_not_count(pipe):
    part = pipe.noise_level(TEXT, protected=[(0, 100)])
    assert part.forward_passes < pipe.noise_level(TEXT).forward_passes
    for text, spans in ((TEXT, [(0, len(TEXT))]), ("\n\n", [])):
        with pytest.raises(DataError, match="not protected"):
            pipe.noise_level(text, protected=spans)
    with pytest.raises(DataError, match="must not be empty"):
        pipe.noise_level("")


def test_masking_alone_has_no_noise_level(tmp_path):
    masked = gidd.from_pretrained(write_model(tmp_path, p_uniform=0), device="cpu")
    with pytest.raises(ConfigError, match="the noise level needs.*p_uniform > 0"):
        masked.noise_level(TEXT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("summary", "times"),
    [
        ({"run": {"objective": {"eps": 1e-6}}}, (1e-6, 1 - 1e-6)),
        ({"times": [0.001, 0.4]}, (0.001, 0.4)),
        ({}, DEFAULT),
        ({"run": {"objective": {"eps": "small"}}}, DEFAULT),
        ({"run": ["objective"], "times": [0.5, 0.1]}, DEFAULT),
        ({"times": [0.1]}, DEFAULT),
        ({"times": [0.1, 7.0]}, DEFAULT),
    ],
)
def test_the_times_of_training_are_recorded(folder, tmp_path, summary, times):
    """Also by `save`. A record that makes no sense counts as none."""
    pipe = gidd.from_pretrained(folder, device="cpu")
    pipe.save(tmp_path / "model")
    record = json.loads((tmp_path / "model" / MODEL_RECORD).read_text())
    assert record["training"]["times"] == list(DEFAULT)
    record["training"] = summary
    (tmp_path / "model" / MODEL_RECORD).write_text(json.dumps(record))
    changed = gidd.from_pretrained(tmp_path / "model", device="cpu")
    assert changed.times == pytest.approx(times, abs=1e-15)
    reader = changed.window_reader()
    assert (reader.min_time, reader.max_time) == changed.times
    changed.save(tmp_path / "again")
    assert gidd.from_pretrained(tmp_path / "again", device="cpu").times == changed.times
