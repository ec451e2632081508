"""Tokenizers of bytes and of characters: any text, files, preparation, characters outside."""

import json
import logging

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer as Inner, decoders, models, normalizers, pre_tokenizers

from gidd.data import prepare
from gidd.data.tokenizers import (
    END,
    MASK,
    TOKENIZER_FILE,
    Tokenizer,
    byte_level,
    character_level,
    tokenizer_for,
    train_characters,
    train_tokenizer,
)
from gidd.data.tokenizers.encoding import cut
from gidd.errors import ConfigError, DataError
from tests.support.preparing import read_back, texts

TEXT = "The naïve “cat’s” hat — 東京 🙂🇨🇭 e\u0301\r\n\tend\u2028\0\ufffd [UNK][MASK]<|endoftext|>"
BYTES, CHARS = byte_level(), train_characters([TEXT])
PLAIN = train_characters(['the cat\'s "hat" - 1.\n'])

ANY = st.text(max_size=60) | st.text(st.sampled_from(TEXT + "\r\n\t\v\x85☃é–”"), max_size=60)


def library(tokenizer: Tokenizer) -> Inner:
    """The same file, read by the library itself."""
    inner = Inner.from_str(tokenizer.files()[TOKENIZER_FILE])
    inner.encode_special_tokens = True
    return inner


INNER = {id(tokenizer): library(tokenizer) for tokenizer in (BYTES, CHARS)}


@given(text=ANY)
def test_bytes_restore_every_text(text):
    tokens = BYTES.encode(text)
    assert len(tokens) == len(text.encode()) == sum(BYTES.num_bytes()[v] for v in tokens)
    assert BYTES.decode(tokens) == text
    assert tokens == INNER[id(BYTES)].encode(text, add_special_tokens=False).ids
    assert max(tokens, default=0) < 256


@given(text=st.text(st.sampled_from(TEXT), max_size=80))
def test_characters_restore_every_text_of_the_vocabulary(text):
    tokens = CHARS.encode(text)
    assert CHARS.encode_batch([text, ""]) == [tokens, []]
    assert len(tokens) == len(text)
    assert CHARS.decode(tokens) == text
    assert tokens == INNER[id(CHARS)].encode(text, add_special_tokens=False).ids
    sizes = CHARS.num_bytes()
    assert sum(sizes[v] for v in tokens) == len(text.encode())


@given(text=ANY.filter(bool))
@settings(max_examples=30)
def test_a_tokenizer_trained_on_a_text_restores_it(text):
    tokenizer = train_characters([text])
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab.size == len(set(text)) + 3


@given(text=ANY)
def test_every_character_is_one_token(text):
    known = set('the cat\'s "hat" - 1.\n')
    tokens, (unknown,) = PLAIN.encode(text), PLAIN.unknown_ids
    similar = PLAIN.with_similar_characters(text)
    assert len(tokens) == len(text) == len(similar)
    for token, character, other in zip(tokens, text, similar, strict=True):
        assert token == unknown or PLAIN.decode([token]) == other
        assert (token == unknown) == (other not in known)
        assert other == character or character not in known  # known ones are never replaced
    assert not {PLAIN.end_id, PLAIN.vocab.mask_id} & set(tokens)
    assert all(PLAIN.num_bytes()[v] for v in tokens if v != unknown)


def test_ids():
    tokenizer = train_characters(["cab\nab"])
    assert tokenizer.encode("\nabc") == [0, 1, 2, 3]
    assert tokenizer.unknown_ids == {4}
    assert tokenizer.end_id == tokenizer.vocab.pad_id == 5
    assert (tokenizer.vocab.mask_id, tokenizer.vocab.size) == (6, 7)
    assert tokenizer.encode("a☃☃b") == [1, 4, 4, 2]  # one each
    assert tokenizer.decode([1, 4, 4, 2]) == "a[UNK][UNK]b"
    assert tokenizer.num_bytes() == [1, 1, 1, 1, 0, 0, 0]
    assert train_characters(["é東🙂"]).num_bytes() == [2, 3, 4, 0, 0, 0]
    assert BYTES.vocab.size == 259
    assert (BYTES.end_id, BYTES.vocab.pad_id, BYTES.vocab.mask_id) == (256, 257, 258)
    assert BYTES.unknown_ids == character_level("ab").unknown_ids == frozenset()


def test_fingerprints_are_those_of_earlier_versions():
    """Data and models name their tokenizer by it."""
    assert byte_level().fingerprint == train_tokenizer(["any"], 259).fingerprint
    assert BYTES.fingerprint.startswith("985e68e12677")
    assert character_level("ab").fingerprint.startswith("0a36aaf21e74")
    assert character_level("ab", has_unknown=True).fingerprint.startswith("6a5024dcba6a")
    assert train_characters(["ba", "a"]).fingerprint == train_characters(["ab"]).fingerprint


def test_without_an_unknown_token_others_are_not_encoded():
    """The tokens of exact sources are written to shards as they were."""
    tokenizer = character_level("bạ")
    assert tokenizer.encode("aạxb☃") == [1, 0]
    assert tokenizer.encode("aạxb☃") == library(tokenizer).encode("aạxb☃").ids
    assert not tokenizer.is_character_level
    assert tokenizer.with_similar_characters("á") == "á"


@pytest.mark.parametrize("tokenizer", [BYTES, CHARS, PLAIN], ids=["bytes", "chars", "plain"])
def test_saved_and_loaded(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.vocab == tokenizer.vocab
    assert again.unknown_ids == tokenizer.unknown_ids
    assert again.kind == tokenizer.kind == ("bytes" if tokenizer is BYTES else "chars")
    assert again.is_character_level == (tokenizer is not BYTES)
    assert again.encode(TEXT + "☃é–") == tokenizer.encode(TEXT + "☃é–")
    assert again.num_bytes() == tokenizer.num_bytes()
    assert again.notes == ()


SIMILAR = [
    ("“naïve”", '"naive"'),
    ("it’s ‘so’", "it's 'so'"),
    ("a – b — c ‑ d − e", "a - b - c - d - e"),
    ("no\u00a0break\u202f1\u3000", "no break 1 "),
    ("Łódź Ærø ßüß", "Lodz Aro sus"),
    ("wait… ①Ａﬁ ½", "wait. 1Af 1"),
    ("€5 £7", "$5 $7"),
    ("a\tb\r\nc\u2028", "a b \nc\n"),
    ("z̈☃🙂東", "z̈☃🙂東"),  # nothing is similar: the unknown token
]


@pytest.mark.parametrize(("text", "expected"), SIMILAR)
def test_characters_outside_are_encoded_as_similar_ones(text, expected):
    ascii_text = "".join(map(chr, range(32, 127))) + "\n"
    tokenizer = train_characters([ascii_text])
    assert tokenizer.with_similar_characters(text) == expected
    decoded = tokenizer.decode(tokenizer.encode(text))
    assert decoded == "".join(c if c in ascii_text else "[UNK]" for c in expected)


def test_similar_characters_prefer_those_of_the_vocabulary():
    known = train_characters(["“q” — é"])
    assert known.with_similar_characters("“q” — é") == "“q” — é"
    assert known.with_similar_characters('"Q" - É') == "“q“ — é"
    assert BYTES.with_similar_characters("“É”") == "“É”"


def changed(change) -> Tokenizer:
    """A tokenizer of characters, but for one field of its file."""
    definition = json.loads(train_characters(["ab "]).files()[TOKENIZER_FILE])
    change(definition)
    return Tokenizer(Inner.from_str(json.dumps(definition)))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["model"].update(ignore_merges=True),
        lambda d: d["model"].update(fuse_unk=True),
        lambda d: d["model"].update(merges=[["a", "b"]], vocab={**d["model"]["vocab"], "ab": 9}),
        lambda d: d["model"].update(byte_fallback=True),
        lambda d: d.update(normalizer={"type": "Lowercase"}),
        lambda d: d.update(pre_tokenizer={"type": "Whitespace"}),
        lambda d: d.update(decoder=None),
        lambda d: d["model"].update(end_of_word_suffix="b"),
    ],
)
def test_other_tokenizers_are_encoded_by_the_library(change):
    tokenizer = changed(change)
    assert not tokenizer.is_character_level
    for text in ("ab a", "abé☃☃ A", "[UNK]", "b"):
        assert tokenizer.encode(text) == library(tokenizer).encode(text).ids
        assert tokenizer.encode_batch([text]) == [tokenizer.encode(text)]


def test_an_ordinary_token_may_be_written_although_it_stands_for_unknown_text():
    inner = Inner(models.WordLevel({"the": 0, "cat": 1}, unk_token="the"))
    inner.add_special_tokens([END, MASK])
    assert Tokenizer(inner).unknown_ids == frozenset()
    inner = Inner(models.WordLevel({"[UNK]": 0, "cat": 1}, unk_token="[UNK]"))
    inner.add_special_tokens(["[UNK]", END, MASK])
    assert Tokenizer(inner).unknown_ids == {0}
    assert not Tokenizer(inner).is_character_level
    assert Tokenizer(inner).kind == "WordLevel"


@pytest.mark.parametrize(
    ("model", "name", "is_special"),
    [
        (models.WordLevel({"a": 0, "</s>": 1, "?": 2}, unk_token="?"), "</s>", True),
        (models.BPE({"a": 0, "▒": 1}, []), "▒", True),
        (models.WordLevel({"a": 0, "?": 1}, unk_token="?"), "</s>", False),
    ],
    ids=["in the vocabulary", "a character", "an ordinary added token"],
)
def test_text_that_becomes_a_special_token_is_refused(model, name, is_special):
    inner = Inner(model)
    (inner.add_special_tokens if is_special else inner.add_tokens)([name])
    inner.decoder = decoders.Fuse()
    for tokenizer in (Tokenizer(inner, end=name), Tokenizer(inner, mask=name)):
        assert tokenizer.encode("a") == [0]
        for encode in (tokenizer.encode, lambda text, t=tokenizer: t.encode_batch(["a", text])):
            with pytest.raises(DataError, match=f"must not contain {name}"):
                encode(name)


def test_bytes_with_merges_a_prefix_or_a_normalizer_are_encoded_by_the_library():
    def make(normalizer=None, **options) -> Tokenizer:
        vocab = json.loads(BYTES.files()[TOKENIZER_FILE])["model"]["vocab"]
        inner = Inner(models.BPE(vocab=vocab, merges=[]))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(**{"add_prefix_space": False} | options)
        inner.decoder = decoders.ByteLevel()
        if normalizer:
            inner.normalizer = normalizer
        inner.add_special_tokens([END, MASK])
        return Tokenizer(inner)

    assert make().kind == make(use_regex=False).kind == "bytes"
    for tokenizer in (make(), make(use_regex=False), make(add_prefix_space=True)):
        assert tokenizer.encode(TEXT) == library(tokenizer).encode(TEXT).ids
    assert make(normalizers.Lowercase()).encode("A") == BYTES.encode("a")
    assert train_tokenizer(["aaaa"], 260).kind == "BPE"
    assert len(train_tokenizer(["aaaa"], 260).encode("aa")) == 1


def test_an_unknown_token_without_an_id_is_an_error():
    tokenizer = changed(lambda d: d["model"].update(unk_token="[NONE]"))
    assert tokenizer.encode("ab") == [1, 2]
    with pytest.raises(DataError, match="damaged or invalid"):
        tokenizer.encode("a☃")


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["bytes", "chars"])
def test_prepared_documents_are_restored(choice, tmp_path):
    documents = texts(40)
    for i, text in enumerate(documents):
        (tmp_path / f"{i:03d}.txt").write_bytes(text.encode())
    tokenizer = tokenizer_for(documents, choice)
    for workers, out in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        prepare([tmp_path], tokenizer, out, validation=5, tasks=3, workers=workers, quiet=True)
        loaded = Tokenizer.load(out)
        assert loaded.fingerprint == tokenizer.fingerprint
        assert read_back(out, loaded) == {"train": documents[:35], "validation": documents[35:]}


@pytest.mark.parametrize("tokenizer", [BYTES, CHARS], ids=["bytes", "chars"])
def test_a_text_can_be_encoded_in_pieces(tokenizer):
    assert tokenizer.encodes_pieces
    pieces = list(cut(TEXT * 3, 20))
    assert len(pieces) > 5
    assert sum(tokenizer.encode_batch(pieces), []) == tokenizer.encode(TEXT * 3)


def test_the_most_frequent_characters_are_kept(caplog):
    with caplog.at_level(logging.WARNING):
        tokenizer = train_characters(["zzzyyyxx", "wwv"], 6)
    assert tokenizer.encode("zywxv") == [2, 1, 0, 3, 3]  # w before x, which is as frequent
    assert "5 different characters" in caplog.text
    assert "72.73%" in caplog.text  # 8 of 11
    caplog.clear()
    every = "".join(chr(c) for c in range(0x4E00, 0x4E00 + 5000)) + "a" * 9
    assert train_characters([every]).vocab.size == 4096 + 3
    assert "5,001 different characters" in caplog.text


@pytest.mark.slow
def test_a_large_vocabulary(tmp_path):
    every = "".join(chr(c) for c in range(0x20000) if not 0xD800 <= c < 0xE000)
    tokenizer = train_characters([every[:70_000]], 70_003)
    assert tokenizer.encode(every[69_990:70_010]) == [*range(69_990, 70_000), *[70_000] * 10]
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).encode(every[:1000]) == list(range(1000))


def test_names_and_choices(tmp_path, monkeypatch):
    assert Tokenizer.load("bytes").fingerprint == BYTES.fingerprint
    assert tokenizer_for(iter(["ab"]), "chars").vocab.size == 5
    assert tokenizer_for(iter(["ab"]), 259).fingerprint == BYTES.fingerprint

    def unread():
        raise AssertionError
        yield ""

    assert tokenizer_for(unread(), "bytes").vocab.size == 259
    # a folder of that name does not change what the name means
    monkeypatch.chdir(tmp_path)
    CHARS.save("bytes")
    assert Tokenizer.load("bytes").kind == "bytes"
    assert Tokenizer.load("./bytes").fingerprint == CHARS.fingerprint


def test_mistakes():
    with pytest.raises(ConfigError, match="made from a corpus"):
        Tokenizer.load("chars")
    with pytest.raises(ConfigError, match=r"mask.*left out.*bytes"):
        Tokenizer.load("bytes", mask="[M]")
    with pytest.raises(ConfigError, match=r"at least 4.*got 3"):
        train_characters(["ab"], 3)
    with pytest.raises(DataError, match="no text"):
        train_characters([])
    with pytest.raises(DataError, match="empty"):
        train_characters([""])
    for train in (train_characters, lambda text: train_tokenizer(text, 259)):
        with pytest.raises(DataError, match="surrogates"):
            train(["a" * 1000 + "\ud800"])
    for tokenizer in (BYTES, CHARS):
        for encode in (tokenizer.encode, lambda text, t=tokenizer: t.encode_batch([text])):
            with pytest.raises(DataError, match="surrogates"):
                encode("a\ud800")
