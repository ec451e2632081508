"""`gidd eval ppl`: windows, autoregressive likelihoods by a loop, the NELBO of `pipe.score`."""

import json
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from support.exact_denoiser import ExactDenoiser, markov_world
from support.small_grader import LETTERS, nll_by_hand, small_llama, small_tokenizer, write_grader
from support.small_model import TEXT

from gidd.common.config.allowed import problems_of
from gidd.data.preparation import prepare
from gidd.data.tokenizers import character_level
from gidd.diffusion.likelihood import NelboEstimator, ScoredText, estimate_nelbo
from gidd.errors import ConfigError, DataError
from gidd.evaluation.options import PerplexityOptions
from gidd.pipeline.score import scoring_windows
from gidd.pipeline.text import TokenDecoder

pytest.importorskip("transformers", reason='needs `pip install "gidd[eval]"`')

from gidd.evaluation.compare import compare_results
from gidd.evaluation.graders import CausalScorer
from gidd.evaluation.perplexity import evaluate_perplexity, window_length
from gidd.evaluation.texts import encode_corpus
from gidd.evaluation.window_scores import CausalModel, is_causal_model, load_causal_model

LETTER_TEXTS = ["abc dead beef. a bad cab", "h", "gegege gegege gegege"]


@pytest.fixture(scope="module")
def causal_folder(tmp_path_factory):
    return write_grader(tmp_path_factory.mktemp("causal"))


@pytest.fixture(scope="module")
def causal(causal_folder):
    return load_causal_model(str(causal_folder), device="cpu")


def write_texts(folder, texts):
    """One JSON line per document; a text file with several would be one document."""
    path = folder / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return [str(path)]


def ids_of(text: str) -> list[int]:
    return [LETTERS.index(c) for c in text]


@pytest.mark.parametrize("stride", [1, 3, 7, 8])
@pytest.mark.parametrize("num_tokens", [1, 7, 8, 9, 15, 16, 17, 40])
def test_windows_score_every_token_exactly_once(num_tokens, stride):
    scored = []
    for window in scoring_windows(num_tokens, 8, stride):
        assert 0 <= window.start < window.stop <= num_tokens
        assert window.stop - window.start <= 8
        assert window.num_given == (0 if window.start == 0 and not scored else 8 - stride)
        scored += range(window.start + window.num_given, window.stop)
    assert scored == list(range(num_tokens))


def test_windows_by_hand():
    found = [tuple(window) for window in scoring_windows(11, 6, 2)]
    assert found == [(0, 6, 0), (2, 8, 4), (4, 10, 4), (6, 11, 4)]
    assert window_length(None, None, 4096) == (2048, 2048)
    assert window_length(None, 5, 32) == (32, 5)
    with pytest.raises(ConfigError, match="context 32, got 33"):
        window_length(33, None, 32)
    with pytest.raises(ConfigError, match="stride must be at most the length 32, got 40"):
        window_length(None, 40, 32)


def test_options_name_every_problem():
    options = PerplexityOptions(repeats=1, max_se=0.0, max_forward_passes=5, length=4, stride=6)
    found = [problem.split()[0] for problem in problems_of(options)]
    assert found == ["repeats", "max_se", "stride"]
    assert "max_se" in next(iter(problems_of(PerplexityOptions(max_forward_passes=5)))).replace(
        "-", "_"
    )


def test_autoregressive_likelihood_equals_a_loop_over_tokens(causal, tmp_path):
    """The first token of each window is scored after end-of-text."""
    end = len(LETTERS)
    result = evaluate_perplexity(
        causal, write_texts(tmp_path, LETTER_TEXTS), PerplexityOptions(length=9)
    )
    total = 0.0
    for row, text in zip(result.rows, LETTER_TEXTS, strict=True):
        ids = ids_of(text)
        parts = [ids[i : i + 9] for i in range(0, len(ids), 9)]
        by_hand = sum(nll_by_hand(causal.scorer.model, [end, *part]) for part in parts)
        assert row["nelbo"] == pytest.approx(by_hand, rel=1e-5)
        assert (row["tokens"], row["bytes"], row["standard_error"]) == (len(ids), len(text), None)
        total += by_hand
    tokens = sum(map(len, LETTER_TEXTS))
    values = {name: number.value for name, number in result.measurements.items()}
    assert values["nelbo"] == pytest.approx(total / tokens, rel=1e-5)
    assert values["ppl"] == pytest.approx(math.exp(total / tokens), rel=1e-4)
    assert values["bits_per_byte"] == pytest.approx(total / tokens / math.log(2), rel=1e-5)
    assert result.measurements["nelbo"].standard_error is None
    assert "end-of-text is the context" in result.manifest["first_token"]
    assert "reconstruction" not in values


def test_a_causal_model_gets_no_notes_on_special_tokens(causal_folder, caplog):
    """Its tokenizer has no mask token, which only a diffusion model needs."""
    load_causal_model(str(causal_folder), device="cpu")
    assert caplog.text == ""


def test_autoregressive_stride_gives_context(causal, tmp_path):
    text = LETTER_TEXTS[0]
    result = evaluate_perplexity(
        causal, write_texts(tmp_path, [text]), PerplexityOptions(length=8, stride=3)
    )
    ids, model = ids_of(text), causal.scorer.model
    total = nll_by_hand(model, [len(LETTERS), *ids[:8]])
    for first in range(8, len(ids), 3):
        given, scored = ids[first - 5 : first], ids[first : first + 3]
        total += nll_by_hand(model, given + scored) - nll_by_hand(model, given)
    assert result.rows[0]["nelbo"] == pytest.approx(total, rel=1e-5)
    assert result.rows[0]["tokens"] == len(ids)
    assert "given the 5 before" in result.manifest["windows"]


def test_autoregressive_windows_are_shared_by_ranks(causal, monkeypatch):
    """Each rank scores other windows; added up, they are those of one process, exactly."""

    class OneOfTwo(NamedTuple):
        rank: int
        size: int = 2

        def sum(self, values: Sequence[float]) -> list[float]:
            return list(values)

    monkeypatch.setattr(causal, "tokens_per_batch", 16)
    tokens = torch.tensor(ids_of(LETTER_TEXTS[0] * 3))[:50]
    texts = [window.text(tokens, i) for i, window in enumerate(scoring_windows(50, 8, 4))]
    alone, *parts = (causal.score(texts, ranks) for ranks in (None, OneOfTwo(0), OneOfTwo(1)))
    assert torch.equal(parts[0].nelbo + parts[1].nelbo, alone.nelbo)
    assert not ((parts[0].nelbo > 0) & (parts[1].nelbo > 0)).any()
    assert all((part.nelbo > 0).any() for part in parts)
    assert all(torch.equal(part.num_scored, alone.num_scored) for part in parts)


def test_every_answer_of_a_chat_is_scored_and_no_question(causal):
    """Of several turns: tokens that are given are also between those that are scored."""
    ids, answers = ids_of("abc dead"), [0, 3, 4, 7]
    given = torch.tensor([i not in answers for i in range(len(ids))])
    scores = causal.score([ScoredText(torch.tensor(ids), 0, given)])
    model, all_before = causal.scorer.model, [len(LETTERS), *ids]
    losses = [nll_by_hand(model, all_before[: n + 1]) for n in range(1, len(all_before))]
    each = [after - before for before, after in zip([0.0, *losses], losses, strict=False)]
    assert scores.nelbo.tolist() == pytest.approx([sum(each[i] for i in answers)], rel=1e-5)
    assert scores.num_scored.tolist() == [len(answers)]


def test_first_token_without_end_of_text_is_left_out_and_short_documents_are_counted(tmp_path):
    tokenizer = small_tokenizer()
    tokenizer.eos_token = None
    grader = CausalScorer(small_llama(), tokenizer, name="small", max_length=64)
    model = CausalModel(grader, character_level(LETTERS))
    sources = write_texts(tmp_path, LETTER_TEXTS)
    result = evaluate_perplexity(model, sources)
    assert [row["tokens"] for row in result.rows] == [len(LETTER_TEXTS[i]) - 1 for i in (0, 2)]
    assert [row["bytes"] for row in result.rows] == [len(LETTER_TEXTS[i]) - 1 for i in (0, 2)]
    assert result.manifest["skipped_documents"] == 1
    by_hand = nll_by_hand(grader.model, ids_of(LETTER_TEXTS[0]))
    assert result.rows[0]["nelbo"] == pytest.approx(by_hand, rel=1e-5)
    assert "is not scored" in result.manifest["first_token"]
    with pytest.raises(ConfigError, match="end_of_text"):
        evaluate_perplexity(model, sources, PerplexityOptions(end_of_text=True))
    with pytest.raises(DataError, match="no token can be scored"):
        evaluate_perplexity(model, write_texts(tmp_path, ["a", "b"]))


def test_bos_is_the_context_if_the_tokenizer_prepends_it(tmp_path):
    folder = write_grader(tmp_path / "model", prepends_bos=True)
    model = load_causal_model(str(folder), device="cpu")
    result = evaluate_perplexity(model, write_texts(tmp_path, ["abc"]))
    by_hand = nll_by_hand(model.scorer.model, [len(LETTERS) + 1, *ids_of("abc")])
    assert result.rows[0]["nelbo"] == pytest.approx(by_hand, rel=1e-5)
    assert "BOS" in result.manifest["first_token"]


def test_end_of_text_is_scored_if_asked(causal, tmp_path):
    sources, end = write_texts(tmp_path, ["abc"]), len(LETTERS)
    result = evaluate_perplexity(causal, sources, PerplexityOptions(end_of_text=True))
    by_hand = nll_by_hand(causal.scorer.model, [end, *ids_of("abc"), end])
    assert result.rows[0]["nelbo"] == pytest.approx(by_hand, rel=1e-5)
    assert (result.rows[0]["tokens"], result.rows[0]["bytes"]) == (4, 3)


def test_diffusion_equals_pipe_score(pipe, tmp_path):
    texts = [TEXT, "Peace – and “plenty”"]
    options = PerplexityOptions(nodes=3, repeats=3, seed=5)
    result = evaluate_perplexity(pipe, write_texts(tmp_path, texts), options)
    expected = pipe.score(texts, nodes=3, repeats=3, seed=5, confidence=False)
    for row, score, text in zip(result.rows, expected, texts, strict=True):
        assert row["nelbo"] == pytest.approx(score.nelbo, rel=1e-12)
        assert row["standard_error"] == pytest.approx(score.standard_error, rel=1e-12)
        assert (row["tokens"], row["bytes"]) == (len(score.tokens), len(text.encode()))
    numbers, tokens = result.measurements, sum(len(score.tokens) for score in expected)
    assert numbers["nelbo"].value * tokens == pytest.approx(sum(s.nelbo for s in expected))
    error = math.hypot(*(score.standard_error for score in expected))
    assert numbers["nelbo"].standard_error == pytest.approx(error / tokens)
    assert numbers["ppl"].standard_error == pytest.approx(numbers["ppl"].value * error / tokens)
    for name in ("reconstruction", "prior"):
        total = sum(getattr(score, name) for score in expected)
        assert numbers[name].value == pytest.approx(total / tokens)
    assert result.manifest["num_windows"] == sum(-(-len(s.tokens) // 32) for s in expected)
    assert result.manifest["forward_passes"] == sum(score.forward_passes for score in expected)


def test_errors_over_documents_and_windows(causal, tmp_path):
    many = evaluate_perplexity(causal, write_texts(tmp_path, LETTER_TEXTS))
    nelbo = many.measurements["nelbo"].value
    moved = [row["nelbo"] - nelbo * row["tokens"] for row in many.rows]
    tokens = statistics.fmean(row["tokens"] for row in many.rows)
    error = statistics.stdev(moved) / math.sqrt(3) / tokens
    assert many.measurements["nelbo_corpus"].standard_error == pytest.approx(error)
    assert many.measurements["nelbo_corpus"].num_samples == 3
    one = write_texts(tmp_path, LETTER_TEXTS[:1])
    windows = evaluate_perplexity(causal, one, PerplexityOptions(length=8))
    assert windows.measurements["nelbo_corpus"].num_samples == 3
    assert windows.measurements["nelbo_corpus"].standard_error > 0
    single = evaluate_perplexity(causal, one)
    assert single.measurements["nelbo_corpus"].standard_error is None


def test_the_error_over_documents_is_at_least_the_monte_carlo_error(pipe, tmp_path):
    """One of two documents has most tokens: residuals of a ratio are then small by necessity."""
    sources = write_texts(tmp_path, [TEXT * 3, "a"])
    numbers = evaluate_perplexity(pipe, sources, PerplexityOptions(nodes=1)).measurements
    for name in ("nelbo", "ppl", "bits_per_byte"):
        assert numbers[f"{name}_corpus"].standard_error >= numbers[name].standard_error > 0


@pytest.mark.slow
def test_stride_conditions_an_exact_denoiser():
    """With the exact denoiser the bound is tight: windows add up to the likelihood of the chain."""
    source, schedule = markov_world(0.0, 6)
    tokens = source.sample(1, torch.tensor([0]), 9).squeeze(0)
    windows = list(scoring_windows(len(tokens), 6, 3))
    texts = [window.text(tokens, i) for i, window in enumerate(windows)]
    total, error = 0.0, 0.0
    for text in texts:
        denoiser = ExactDenoiser(source, schedule, text.given)
        estimator = NelboEstimator(denoiser, schedule, nodes=16, seed=0)
        found = estimate_nelbo(estimator, [text], repeats=60)
        total, error = total + found.total, math.hypot(error, found.total_error)
    # given 3 tokens, a Markov chain depends on the last one alone
    exact = -float(source.initial[tokens[0]].log())
    exact -= float(source.transition[tokens[:-1], tokens[1:]].log().sum())
    assert abs(total - exact) < 4 * error
    unconditional = -sum(
        float(source.initial[tokens[window.start + window.num_given]].log())
        - float(source.transition[*tokens[window.start + window.num_given - 1 :][:2]].log())
        for window in windows[1:]
    )
    assert unconditional > 8 * error  # what the condition is worth


@pytest.mark.slow
def test_max_se_adds_repeats_until_the_error_is_small(pipe, tmp_path):
    sources = write_texts(tmp_path, [TEXT])

    def run(**changes):
        return evaluate_perplexity(pipe, sources, PerplexityOptions(nodes=2, **changes))

    first = run()
    error = first.measurements["nelbo"].standard_error
    assert run(max_se=2 * error).manifest["repeats"] == 2
    later = run(max_se=error / 2)
    assert later.manifest["repeats"] > 2
    assert later.measurements["nelbo"].standard_error <= error / 2
    windows = first.manifest["num_windows"]
    stopped = run(max_se=1e-9, max_forward_passes=windows * (1 + 4 * 3))
    assert stopped.manifest["repeats"] == 4
    assert stopped.manifest["forward_passes"] == windows * (1 + 4 * 3)


def test_the_papers_grid_has_no_ends(pipe, tmp_path):
    options = PerplexityOptions(grid="paper", nodes=4)
    numbers = evaluate_perplexity(pipe, write_texts(tmp_path, [TEXT]), options).measurements
    assert "reconstruction" not in numbers
    assert numbers["nelbo"].value > 0


def test_prepared_folders_give_their_tokens(pipe, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(f"{TEXT}{number}")
    data = tmp_path / "data"
    prepare([folder], pipe.tokenizer, data, validation=2, tasks=1, quiet=True)
    options = PerplexityOptions(nodes=1)
    stored = evaluate_perplexity(pipe, [str(data)], options)
    texts = encode_corpus([str(data)], pipe.decoder)
    assert [row["tokens"] for row in stored.rows] == [len(d.tokens) for d in texts.documents]
    assert stored.manifest["num_documents"] == 2
    encoded = write_texts(tmp_path, [pipe.tokenizer.decode(d.tokens) for d in texts.documents])
    again = evaluate_perplexity(pipe, encoded, options)
    assert [r["nelbo"] for r in again.rows] == [r["nelbo"] for r in stored.rows]
    assert again.manifest["texts_sha256"] == stored.manifest["texts_sha256"]


def test_a_llama_is_scored_on_the_tokens_of_a_diffusion_model(pipe, tmp_path):
    """A Llama beside the tokenizer of a run, with its mask token."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `hf`")
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=pipe.tokenizer.vocab.size,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=24,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).save_pretrained(tmp_path / "baseline")
    pipe.tokenizer.save(tmp_path / "baseline")
    assert is_causal_model(str(tmp_path / "baseline"))
    model = load_causal_model(str(tmp_path / "baseline"), device="cpu")
    sources = write_texts(tmp_path, [TEXT, "Peace – and “plenty”"])
    options = PerplexityOptions(nodes=1, length=24, stride=16)
    results = [evaluate_perplexity(each, sources, options) for each in (model, pipe)]
    for name in ("id", "tokens", "bytes"):
        assert len({tuple(row[name] for row in result.rows) for result in results}) == 1
    for name in ("tokenizer", "texts_sha256", "windows", "tokens", "length", "stride"):
        assert results[0].manifest[name] == results[1].manifest[name]
    tokens = pipe.tokenizer.encode("Peace – and “plenty”")
    by_hand = nll_by_hand(model.scorer.model, [pipe.tokenizer.end_id, *tokens])
    assert len(tokens) <= 24
    assert results[0].rows[1]["nelbo"] == pytest.approx(by_hand, rel=1e-5)


def test_documents_are_compared_in_pairs(pipe, tmp_path):
    sources = write_texts(tmp_path, [TEXT, TEXT[:50], TEXT[30:]])
    results = [
        evaluate_perplexity(pipe, sources, PerplexityOptions(nodes=1, seed=seed)) for seed in (0, 1)
    ]
    numbers = {number.name: number for number in compare_results(*results).numbers}
    for name in ("nelbo", "ppl", "bits_per_token", "bits_per_byte"):
        assert numbers[name].difference.is_paired
        assert numbers[name].difference.num_pairs == 3


def test_a_text_that_the_tokenizer_does_not_restore_is_named(causal, tmp_path):
    with pytest.raises(DataError, match=r"texts.jsonl#1 must be restored exactly"):
        evaluate_perplexity(causal, write_texts(tmp_path, ["abc", "xyz"]))


def test_documents_without_tokens_are_skipped_and_counted(tmp_path):
    class Forgetful(TokenDecoder):
        def encode(self, text, what):
            return [] if text == "b" else super().encode(text, what)

    texts = Forgetful(character_level(LETTERS))
    corpus = encode_corpus(write_texts(tmp_path, ["a", "", "b", "cc"]), texts)
    assert [document.id[-2:] for document in corpus.documents] == ["#0", "#3"]
    assert corpus.num_skipped == 1


def test_kinds_of_models_are_told_apart(model_folder, causal_folder, tmp_path):
    assert not is_causal_model(str(model_folder))
    assert is_causal_model(str(causal_folder))
    assert is_causal_model("smollm2")
    assert is_causal_model("some/model.Q4.gguf")
    assert not is_causal_model(str(tmp_path / "missing"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llada"}))
    assert not is_causal_model(str(tmp_path))
