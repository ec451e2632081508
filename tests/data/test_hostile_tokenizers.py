"""Tokenizer files from outside: honest ones of all kinds load, hostile ones end in one error."""

import base64
import json
import os
from pathlib import Path

import pytest
from support.tokenizer_kinds import KINDS, TEXT, byte_level_bpe
from tokenizers import Tokenizer as Inner

from gidd.data.tokenizers import TOKENIZER_FILE, Tokenizer, gpt2
from gidd.data.tokenizers.files import SETTINGS_FILES
from gidd.errors import ConfigError, DataError, GiddError
from gidd.vocab import Vocab

BASE = json.loads(byte_level_bpe().to_str())
HUGE = 2**32 - 1


def write(folder: Path, definition: object) -> Path:
    folder.mkdir(exist_ok=True)
    text = definition if isinstance(definition, str) else json.dumps(definition)
    (folder / TOKENIZER_FILE).write_text(text)
    return folder


def base(**fields: object) -> dict[str, object]:
    return BASE | fields


def model(**fields: object) -> dict[str, object]:
    return BASE | {"model": BASE["model"] | fields}


def words(vocab: object, **fields: object) -> dict[str, object]:
    return base(model={"type": "WordLevel", "vocab": vocab, "unk_token": "a"} | fields)


def unigram(vocab: object) -> dict[str, object]:
    return base(model={"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False})


def added(content: object, number: object = 258) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, "special": True} | flags


def replace(content: object) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": "a"}, "content": content}


def nested(depth: int) -> dict[str, object]:
    part: dict[str, object] = replace("aa")
    for _ in range(depth):
        part = {"type": "Sequence", "normalizers": [part]}
    return part


def charsmap(data: bytes) -> dict[str, object]:
    text = base64.b64encode(data).decode()
    return base(normalizer={"type": "Precompiled", "precompiled_charsmap": text})


@pytest.mark.parametrize("kind", KINDS)
def test_honest_tokenizers_of_all_kinds_load_as_the_library_loads_them(kind, tmp_path):
    KINDS[kind]().save(str(tmp_path / TOKENIZER_FILE))
    tokenizer = Tokenizer.load(tmp_path)
    plain = Tokenizer(Inner.from_file(str(tmp_path / TOKENIZER_FILE)))
    assert tokenizer.vocab == plain.vocab
    assert tokenizer.fingerprint == plain.fingerprint
    text = "cat" if kind == "speech" else TEXT
    tokens = plain._inner.encode(text, add_special_tokens=False).ids
    assert tokens and tokenizer.encode(text) == tokens
    assert tokenizer.encode_batch([text, text]) == [tokens, tokens]
    assert tokenizer.decode(tokens) == plain.decode(tokens)
    if kind in ("gpt2", "llama3", "gpt4o", "llama2"):
        assert tokenizer.decode(tokens) == text
    assert len(tokenizer.num_bytes()) == tokenizer.vocab.size
    tokenizer.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.fingerprint == tokenizer.fingerprint and again.encode(text) == tokens


def test_files_of_old_versions_load(tmp_path):
    """Merges were strings, and the model was not named."""
    merges = [" ".join(pair) for pair in BASE["model"]["merges"]]
    old = {key: value for key, value in BASE["model"].items() if key != "type"} | {"merges": merges}
    tokenizer = Tokenizer.load(write(tmp_path, base(model=old)))
    assert tokenizer.encode("the") == Tokenizer(byte_level_bpe()).encode("the")


DAMAGED = {
    # ids and tokens
    "huge id": (words({"a": 0, "b": HUGE}), "ids.*4294967295"),
    "sparse ids": (words({"a": 0, "b": 1030}), "ids.*1030"),
    "shared id": (words({"a": 0, "b": 0}), "ids.*distinct"),
    "negative id": (words({"a": -1}), "ids.*-1"),
    "id over 32 bits": (words({"a": 2**70}), "ids"),
    "id that is a float": (words({"a": 0.5}), r"ids.*0\.5"),
    "huge added id": (base(added_tokens=[added("x", HUGE)]), "ids.*4294967295"),
    "added id of text": (base(added_tokens=[added("x", "7")]), "ids.*'7'"),
    "added number": (base(added_tokens=[added(5)]), "added_tokens.*int"),
    "added tokens of text": (base(added_tokens="x"), "added_tokens.*'x'"),
    "added token of text": (base(added_tokens=["x"]), "added_tokens.*'x'"),
    "long added token": (base(added_tokens=[added("x" * 4097)]), "added_tokens.*4,096.*4,097"),
    "long token": (words({"a": 0, "b" * 4097: 1}), "vocab.*4,096.*4,097"),
    "large trie": (
        unigram([[f"{i:04}" * 1000, -1.0] for i in range(1100)]),
        "4,194,304.*4,400,000",
    ),
    "unigram of numbers": (unigram([[5, -1.0]]), "vocab.*int"),
    "many long added": (
        base(added_tokens=[added(f"{i:04}" * 1000, 258 + i) for i in range(300)]),
        "added_tokens.*1,048,576.*1,200,000",
    ),
    # the layout of the file
    "no object": ([], "JSON object"),
    "no model": ({"version": "1.0"}, "model"),
    "vocabulary of text": (model(vocab="x"), "vocab.*'x'"),
    "unknown model": (model(type="Evil"), ""),
    "unknown part": (base(normalizer={"type": "Evil"}), ""),
    "too many parts": (
        base(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}] * 5000}),
        "4,096.*5,000",
    ),
    "long replacement": (base(normalizer=replace("a" * 5_000_000)), "4,194,304.*5,000,000"),
    "long unknown token": (words({"a": 0}, unk_token="x" * 5_000_000), "5,000,000"),
    "deep sequences": (base(normalizer=nested(40)), "nested deeper than 64"),
    # what the library cannot use: exceptions and panics
    "damaged map": (charsmap(b"\4\0\0\0abc"), ""),
    "map shorter than it claims": (charsmap(b"\xff\xff\xff\xff"), ""),
    "merges of nothing": (model(merges=[["no", "such"]]), "out of vocabulary"),
    "prefix longer than a token": (model(continuing_subword_prefix="x" * 5), "Panic"),
    "invalid expression": (
        base(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}),
        "",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_hostile_definitions_are_refused_with_the_name_of_the_file(case, tmp_path):
    definition, match = DAMAGED[case]
    write(tmp_path, definition)
    with pytest.raises(DataError, match=rf"(?s)tokenizer\.json.*({match})") as caught:
        Tokenizer.load(tmp_path)
    assert len(str(caught.value)) < 1000


def test_a_vocabulary_larger_than_the_models_is_refused_before_it_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(Inner, "from_buffer", None)
    write(tmp_path, words({str(k): k for k in range(100)}))
    with pytest.raises(DataError, match="at most 51 tokens, got 100"):
        Tokenizer.load(tmp_path, model=Vocab(50))


def test_padding_and_truncation_of_the_file_are_not_used(tmp_path):
    tokenizer = byte_level_bpe(r"\w+")
    tokenizer.enable_padding(length=10**9)
    tokenizer.enable_truncation(1)
    tokenizer.save(str(tmp_path / TOKENIZER_FILE))
    assert "1000000000" in (tmp_path / TOKENIZER_FILE).read_text()
    assert len(Tokenizer.load(tmp_path).encode("cats")) == 4


def test_large_deep_and_special_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="nested deeper than 64"):
        Tokenizer.load(write(tmp_path / "deep", '{"normalizer": ' + "[" * 100_000))
    with pytest.raises(DataError, match="more than once"):
        Tokenizer.load(write(tmp_path / "twice", '{"model": {}, "model": {}}'))
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / TOKENIZER_FILE)
    with pytest.raises(DataError, match="regular file, got a named pipe"):
        Tokenizer.load(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty/tokenizer\.json"):
        Tokenizer.load(tmp_path / "empty")
    os.truncate(write(tmp_path / "large", BASE) / TOKENIZER_FILE, 1 << 30)
    with pytest.raises(DataError, match="at most 67,108,864 bytes"):
        Tokenizer.load(tmp_path / "large")


@pytest.mark.parametrize("value", [5, ["</s>"], {}, {"content": {"content": "</s>"}}])
@pytest.mark.parametrize("key", ["eos_token", "pad_token", "mask_token"])
def test_special_tokens_that_are_no_strings_are_refused(key, value, tmp_path):
    write(tmp_path, BASE)
    (tmp_path / SETTINGS_FILES[0]).write_text(json.dumps({key: value}))
    with pytest.raises(DataError, match=rf"tokenizer_config\.json: {key} must be a string"):
        Tokenizer.load(tmp_path)


def test_hostile_settings_are_refused(tmp_path):
    write(tmp_path, BASE)
    settings = tmp_path / SETTINGS_FILES[0]
    settings.write_text('{"eos_token": ' + '{"content": ' * 100_000)
    with pytest.raises(DataError, match="nested deeper than 64"):
        Tokenizer.load(tmp_path)
    settings.write_text(json.dumps({"eos_token": "x" * 10**6}))
    with pytest.raises(ConfigError, match="eos_token must be a token") as caught:
        Tokenizer.load(tmp_path)
    assert len(str(caught.value)) < 500
    settings.write_text(json.dumps({"eos_token": None, "pad_token": None}))
    assert Tokenizer.load(tmp_path).end == "<|endoftext|>"


def test_a_text_that_the_tokenizer_cannot_encode_is_one_error(tmp_path):
    wordpiece = {"type": "WordPiece", "unk_token": "[UNK]", "max_input_chars_per_word": 100}
    wordpiece |= {"continuing_subword_prefix": "##", "vocab": {"a": 0, "b": 1}}
    plain = base(model=wordpiece, pre_tokenizer=None, post_processor=None, decoder=None)
    tokenizer = Tokenizer.load(write(tmp_path, plain))
    assert tokenizer.encode("a") == [0]
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch(["a", text])):
        with pytest.raises(DataError, match=r"Missing \[UNK\] token"):
            encode("x")
    for tokens in ([-1], [2**32], [2**70]):
        with pytest.raises(DataError, match="tokenizer or the text"):
            tokenizer.decode(tokens)


class Interrupted:
    """A tokenizer of the library during which Ctrl-C is pressed."""

    def __getattr__(self, name: str) -> object:
        if name in ("encode", "encode_batch_fast", "decode"):
            raise KeyboardInterrupt
        return lambda *_: 0


def test_an_interruption_is_not_taken_for_damage():
    tokenizer = Tokenizer(byte_level_bpe())
    tokenizer._inner = Interrupted()
    for function in (tokenizer.encode, tokenizer.encode_batch, tokenizer.decode):
        with pytest.raises(KeyboardInterrupt):
            function("")


def test_a_special_token_with_the_id_of_another_token_is_refused(tmp_path):
    """The library adds tokens at the number of tokens, which sparse ids may contain."""
    tokenizer = Tokenizer.load(write(tmp_path, words({"a": 0, "b": 2}) | {"added_tokens": []}))
    with pytest.raises(DataError, match="an id of its own"):
        _ = tokenizer.vocab


VOCAB = json.dumps({"t": 0, "h": 1, "th": 2})


@pytest.mark.parametrize(
    ("vocab", "merges", "match"),
    [
        (json.dumps({"t": 0, "h": HUGE}), b"", r"vocab\.json.*4294967295"),
        (json.dumps({"t": "0"}), b"", r"vocab\.json.*'0'"),
        ("[" * 100_000, b"", r"vocab\.json.*nested"),
        (VOCAB, b"\xff", r"merges\.txt.*UnicodeDecodeError"),
        (VOCAB, b"no such\n", r"merges\.txt"),
    ],
)
def test_hostile_files_of_gpt2_are_refused(vocab, merges, match, tmp_path):
    (tmp_path / "vocab.json").write_text(vocab)
    (tmp_path / "merges.txt").write_bytes(merges)
    with pytest.raises(DataError, match=match):
        gpt2(tmp_path)


@pytest.mark.long
def test_random_damage_ends_in_one_error_or_in_a_tokenizer(tmp_path):
    """Every value of a file is replaced by others, one at a time."""
    others = (None, True, -1, 1.5, 2**70, "", "x", [], {}, [[]], {"type": "Sequence"})
    definition = json.loads(KINDS["bert"]().to_str())
    parts = [definition["normalizer"], replace("b")]
    definition["normalizer"] = {"type": "Sequence", "normalizers": parts}
    for parent, key in list(places(definition)):
        honest = parent[key]
        for other in others:
            parent[key] = other
            try:
                tokenizer = Tokenizer.load(write(tmp_path, definition))
                tokenizer.decode(tokenizer.encode(TEXT))
                _ = tokenizer.vocab, tokenizer.num_bytes(), tokenizer.fingerprint
            except GiddError as error:
                assert len(str(error)) < 1000
        parent[key] = honest
    assert Tokenizer.load(write(tmp_path, definition)).encode("the")


def places(value: object):
    """Yield all pairs of a list or an object and one of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in items:
        yield value, key
        if isinstance(child, dict | list):
            yield from places(child)
