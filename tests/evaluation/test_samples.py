"""Measurements of samples, from a model and from files."""

import json
import math
from pathlib import Path

import pytest
import torch
from support.small_grader import LETTERS, nll_by_hand, small_llama, small_tokenizer
from support.small_model import write_model

import gidd
from gidd.data.tokenizers import character_level
from gidd.errors import ConfigError, DataError
from gidd.evaluation.results import EvaluationResult
from gidd.evaluation.sample_files import TextSample, has_samples, read_text_samples
from gidd.pipeline.options import CLEAN_TIME
from gidd.sampling import Frame

pytest.importorskip("transformers", reason='needs `pip install "gidd[eval]"`')

from gidd.evaluation.graders import CausalScorer
from gidd.evaluation.samples import (
    evaluate_model_samples,
    evaluate_samples,
    generate_text_samples,
    self_accuracies,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "misc.json").read_text())
FEW = {"length": 12, "steps": 3}


@pytest.fixture(scope="module")
def grader() -> CausalScorer:
    return CausalScorer(small_llama(), small_tokenizer(), name="small", sha256="0" * 64)


def test_numbers_of_texts_by_hand(grader):
    texts = ["abab", "abcdefgh", "", "a"]
    result = evaluate_samples(texts, grader=grader)
    found = result.measurements
    ids = [[LETTERS.index(c) for c in text] for text in texts]
    total = nll_by_hand(grader.model, ids[0]) + nll_by_hand(grader.model, ids[1])
    assert found["gen_ppl"].value == pytest.approx(math.exp(total / (3 + 7)), rel=1e-5)
    assert found["gen_ppl"].num_samples == 2
    assert found["unscored"].value == 2
    assert found["empty"].value == 1
    # log 2, log 8 and 0: the empty text has no entropy
    assert found["entropy"].value == pytest.approx((math.log(2) + math.log(8)) / 3)
    assert found["entropy"].num_samples == 3
    assert found["tokens"].value == 13 / 4
    assert found["distinct_1"].value == 8 / 13
    assert found["distinct_2"].value == 8 / 10  # ab ba ab, and 7 of which ab is known
    assert found["repetition_4"].value == 0
    assert "self_accuracy" not in found
    assert [row["grader_tokens"] for row in result.rows] == [3, 7, 0, 0]
    assert result.rows[0]["gen_nll"] == pytest.approx(nll_by_hand(grader.model, ids[0]) / 3)
    assert result.rows[2]["gen_nll"] is None
    assert "grader's tokenizer" in result.manifest["metric_tokens"]


def test_tokens_are_those_of_the_tokenizer_then_the_samples_then_the_grader(grader):
    samples = [TextSample("abab", (5, 5, 5, 5)), TextSample("ab", (1, 2))]
    own = evaluate_samples(samples, grader=grader)
    assert own.measurements["entropy"].value == pytest.approx(math.log(2) / 2)
    assert own.manifest["metric_tokens"] == "the tokens that were sampled"
    encoded = evaluate_samples(samples, tokenizer=character_level("ab"))
    assert encoded.measurements["entropy"].value == pytest.approx(math.log(2))
    assert "gen_ppl" not in encoded.measurements
    with pytest.raises(ConfigError, match="tokenizer or a grader"):
        evaluate_samples(["abab"])
    with pytest.raises(DataError, match="at least one sample"):
        evaluate_samples([], grader=grader)


def test_self_accuracy_of_the_golden_examples():
    """A frame of x_theta without the mask token gives the golden fractions."""
    example = GOLDEN["self_accuracy"]
    logits, tokens = torch.tensor(example["logits"]), torch.tensor(example["tokens"])
    logits[..., example["mask_id"]] = -torch.inf
    x_theta = logits.softmax(-1)
    for p, row, expected in zip(x_theta, tokens, example["self_accuracy"], strict=True):
        own = p.gather(-1, row[:, None]).squeeze(-1)
        frame = Frame(0, "end", 0.0, row, own, own, p.argmax(-1), p.amax(-1))
        assert frame.self_accuracy(torch.ones(8, dtype=torch.bool)) == expected


def test_self_accuracy_of_a_model_by_hand(pipe):
    """The network on the complete final sequence; tokens after end-of-text are not counted."""
    samples = pipe.generate(n=3, **FEW, seed=3)
    for sample, found in zip(samples, self_accuracies(pipe, samples), strict=True):
        z, t = torch.tensor([sample.trace.tokens]), torch.tensor([CLEAN_TIME])
        with torch.no_grad():
            x_theta = pipe.denoiser.distribution(pipe.denoiser.hidden(z, t))[0]
        count = len(sample.tokens)
        is_top = x_theta.argmax(-1)[:count] == z[0, :count]
        assert found == pytest.approx(float(is_top.double().mean()))


@pytest.mark.slow
def test_samples_of_a_model_are_those_of_the_pipeline(pipe, grader):
    progress = []
    result = evaluate_model_samples(
        pipe, 5, grader=grader, seed=1, on_progress=lambda *seen: progress.append(seen), **FEW
    )
    expected = pipe.generate(n=5, seed=1, **FEW)
    assert [row["text"] for row in result.rows] == [sample.text for sample in expected]
    assert [row["tokens"] for row in result.rows] == [len(sample.tokens) for sample in expected]
    assert result.measurements["nfe"].value == 3
    assert 0 <= result.measurements["self_accuracy"].value <= 1
    assert progress[-1][0] == "scoring"
    assert ("sampling", 5 * 3, 5 * 3) in progress
    manifest = result.manifest
    assert manifest["model"]["sha256"] == pipe.source["sha256"]
    assert (manifest["seed"], manifest["length"], manifest["num_samples"]) == (1, 12, 5)
    assert manifest["plan"][0]["steps"] == 3
    assert manifest["grader"]["sha256"] == "0" * 64
    assert {"tokenizer", "schedule", "device", "precision", "gidd", "torch"} <= manifest.keys()
    again = evaluate_model_samples(pipe, 5, grader=grader, seed=1, **FEW)
    assert again.to_dict() == result.to_dict()


def test_a_model_of_masking_alone_has_no_self_accuracy(tmp_path, grader):
    masked = gidd.from_pretrained(write_model(tmp_path, p_uniform=0.0), device="cpu")
    result = evaluate_model_samples(masked, 2, grader=grader, **FEW)
    assert "self_accuracy" not in result.measurements
    assert any("masking alone" in note for note in result.manifest["notes"])
    assert result.rows[0]["self_accuracy"] is None
    result.save(tmp_path / "result.json")
    assert EvaluationResult.read(tmp_path / "result.json").rows == list(result.rows)


def test_samples_are_read_from_json_lines_and_text_files(tmp_path, pipe):
    file = tmp_path / "samples.jsonl"
    file.write_text('{"text": "a b", "tokens": [1, 2], "forward_passes": 7}\n\n{"text": ""}\n')
    assert read_text_samples(file) == [TextSample("a b", (1, 2), None, 7), TextSample("")]
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "b.txt").write_text("second")
    (folder / "a.txt").write_text("first\n")
    assert [s.text for s in read_text_samples(folder)] == ["first\n", "second"]
    assert read_text_samples(folder / "b.txt") == [TextSample("second")]
    assert has_samples(file)
    assert has_samples(folder)
    assert not has_samples(Path(pipe.source["name"]))
    assert not has_samples(tmp_path / "missing")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]\n", "line 1 must be a JSON object"),
        (b'{"txt": "a"}\n', "`text` must be a string"),
        (b'{"text": "a", "tokens": "ab"}\n', "`tokens` must be a list"),
        (b'{"text": "a", "tokens": [1.5]}\n', "`tokens` must be a list"),
        (b'{"text": "\\ud800"}\n', "surrogate"),
        (b'{"text": "a"}\n{"text\n', "line 2 is not JSON"),
        (b"\n", "no samples"),
    ],
)
def test_invalid_files_are_explained(tmp_path, content, message):
    file = tmp_path / "samples.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_text_samples(file)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "samples.csv").write_text("text\n")
    with pytest.raises(DataError, match=r"\.jsonl or \.txt"):
        read_text_samples(tmp_path / "samples.csv")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match="UTF-8"):
        read_text_samples(tmp_path / "latin.txt")
    with pytest.raises(DataError, match="nothing of that name"):
        read_text_samples(tmp_path / "missing")


@pytest.mark.parametrize("block_length", [None, 4])
def test_progress_ends_with_all_steps_of_all_blocks(pipe, monkeypatch, block_length):
    monkeypatch.setattr("gidd.evaluation.samples._CHUNK", 2)
    options, reports = gidd.pipeline.SamplingOptions(steps=3, block_length=block_length), []

    def report(what: str, done: int, total: int) -> None:
        reports.append((done, total))

    # samples do not end early: the end-of-text token is banned
    processors = [gidd.sampling.ban(pipe.schedule.vocab, pipe.tokenizer.terminator_ids)]
    settings = {"length": 12, "options": options, "processors": processors}
    generate_text_samples(pipe, 3, on_progress=report, **settings)
    total = 3 * 3 * (3 if block_length else 1)
    assert reports == sorted(reports) and reports[-1] == (total, total)
    assert all(expected == total for _, expected in reports)


def test_samples_per_chunk_do_not_matter(pipe, monkeypatch):
    options = gidd.pipeline.SamplingOptions(steps=3)
    whole, _ = generate_text_samples(pipe, 5, length=12, options=options)
    monkeypatch.setattr("gidd.evaluation.samples._CHUNK", 2)
    assert generate_text_samples(pipe, 5, length=12, options=options)[0] == whole


@pytest.mark.slow
def test_mauve_separates_equal_from_different_texts(grader):
    pytest.importorskip("mauve", reason='needs `pip install "gidd[mauve]"`')
    texts = [a + b + c for a in "abcd" for b in "abcd" for c in "ab"]
    others = [f"{a}{b}. {c}{a}{b}. gh" for a in "efgh" for b in "efgh" for c in "ef"]
    same = evaluate_samples(texts, grader=grader, reference=texts)
    other = evaluate_samples(others, grader=grader, reference=texts)
    assert same.measurements["mauve"].value > 0.9
    assert other.measurements["mauve"].value < 0.5 * same.measurements["mauve"].value
    again = evaluate_samples(others, grader=grader, reference=texts)
    assert again.measurements["mauve"] == other.measurements["mauve"]
    assert other.manifest["mauve"]["num_reference"] == 32
    with pytest.raises(ConfigError, match="needs a grader"):
        evaluate_samples(texts, tokenizer=character_level("abcd"), reference=texts)
    with pytest.raises(DataError, match="at least 4 reference texts"):
        evaluate_samples(texts, grader=grader, reference=["", "a"])
