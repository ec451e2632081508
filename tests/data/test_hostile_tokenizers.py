"""Tokenizer files from outside: honest ones of all kinds load, hostile ones end in one error."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tokenizer_kinds import KINDS, TEXT, byte_level_bpe, charsmap
from tokenizers import Tokenizer as Inner

from gidd.common.files import parse_json
from gidd.data.tokenizer_checks import is_ordinary
from gidd.data.tokenizer_files import TOKENIZER_FILE, TOKENIZER_SETTINGS
from gidd.data.tokenizers import Tokenizer, gpt2
from gidd.errors import ConfigError, DataError, GiddError

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


def replace(content: object, **pattern: object) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern or {"String": "a"}, "content": content}


def sequence(field: str, *parts: object) -> dict[str, object]:
    return {"type": "Sequence", field: list(parts)}


def expression(pattern: str) -> dict[str, object]:
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    split |= {"pattern": {"Regex": pattern}}
    return base(pre_tokenizer=split)


def template(copies: int) -> dict[str, object]:
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    kind = {"type": "TemplateProcessing", "special_tokens": {}}
    return base(post_processor=kind | {"single": [a] * copies, "pair": [a, b]})


def precompiled(text: str) -> dict[str, object]:
    return {"type": "Precompiled", "precompiled_charsmap": text}


def nested(depth: int) -> dict[str, object]:
    part: dict[str, object] = replace("aa")
    for _ in range(depth):
        part = sequence("normalizers", part)
    return part


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


def test_sentencepiece_replacements_are_applied(tmp_path):
    """So that the character maps of these tests are what the library reads."""
    KINDS["t5"]().save(str(tmp_path / TOKENIZER_FILE))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.encode("ﬁsh… \t\n a")) == "fish... a"


def test_files_of_old_versions_load(tmp_path):
    """Merges were strings, and the model was not named."""
    merges = [" ".join(pair) for pair in BASE["model"]["merges"]]
    old = {key: value for key, value in BASE["model"].items() if key != "type"} | {"merges": merges}
    tokenizer = Tokenizer.load(write(tmp_path, base(model=old)))
    assert tokenizer.encode("the") == Tokenizer(byte_level_bpe()).encode("the")


def test_only_plain_byte_level_bpe_is_not_probed():
    ordinary = {kind for kind, build in KINDS.items() if is_ordinary(json.loads(build().to_str()))}
    assert ordinary == {"gpt2"}
    assert not is_ordinary(model(continuing_subword_prefix="##"))


DAMAGED = {
    # ids and tokens
    "huge id": (words({"a": 0, "b": HUGE}), "ids.*4294967295"),
    "sparse ids": (words({"a": 0, "b": 1030}), "ids.*1030"),
    "shared id": (words({"a": 0, "b": 0}), "ids.*distinct"),
    "negative id": (words({"a": -1}), "ids.*-1"),
    "id over 32 bits": (words({"a": 2**70}), "ids"),
    "id that is a float": (words({"a": 0.5}), "ids.*float"),
    "id that is a bool": (words({"a": True}), "ids.*bool"),
    "huge added id": (base(added_tokens=[added("x", HUGE)]), "ids.*4294967295"),
    "added id of text": (base(added_tokens=[added("x", "7")]), "ids.*str"),
    "added number": (base(added_tokens=[added(5)]), "added_tokens.*int"),
    "added list": (base(added_tokens=[added(["x"])]), "added_tokens.*list"),
    "added tokens of text": (base(added_tokens="x"), "added_tokens.*'x'"),
    "added token of text": (base(added_tokens=["x"]), "added_tokens.*'x'"),
    "long added token": (base(added_tokens=[added("x" * 4097)]), "added_tokens.*4,096.*4,097"),
    "long token": (words({"a": 0, "b" * 4097: 1}), "vocab.*4,096.*4,097"),
    "long unknown token": (words({"a": 0}, unk_token="x" * 5000), "unk_token.*5,000"),
    "unknown token of 5": (words({"a": 0}, unk_token=5), "unk_token.*int"),
    "large trie": (
        unigram([[f"{i:04}" * 1000, -1.0] for i in range(1100)]),
        "vocab.*4,194,304.*4,400,000.*GIDD_MAX_TOKENIZER_BYTES",
    ),
    "unigram of numbers": (unigram([[5, -1.0]]), "vocab.*int"),
    "unigram without entries": (unigram([[]]), "vocab.*NoneType"),
    "many long added": (
        base(added_tokens=[added(f"{i:04}" * 1000, 258 + i) for i in range(300)]),
        "added_tokens.*1,048,576.*1,200,000.*GIDD_MAX_TOKENIZER_BYTES",
    ),
    # the layout of the file
    "no object": ([], "JSON object"),
    "no model": ({"version": "1.0"}, "model"),
    "unknown model": (model(type="Evil"), "model.type.*Evil"),
    "vocabulary of text": (model(vocab="x"), "vocab.*'x'"),
    "no part": (base(normalizer=[replace("x")]), "normalizer"),
    "part without a type": (base(normalizer={"pattern": {"String": "a"}, "content": "x"}), "type"),
    "unknown part": (base(normalizer=replace("x") | {"type": "Evil"}), "normalizer.type.*Evil"),
    "type that is a list": (base(decoder={"type": ["Fuse"]}), "decoder.type"),
    "sequence of nothing": (base(decoder={"type": "Sequence"}), "decoder.decoders"),
    "too many parts": (
        base(pre_tokenizer=sequence("pretokenizers", *[{"type": "Whitespace"}] * 65)),
        "pre_tokenizer.*64 pretokenizers.*65",
    ),
    "content of 5": (base(normalizer=replace(5)), "content.*5"),
    "pattern of text": (base(normalizer=replace("x") | {"pattern": "a"}), "pattern.*'a'"),
    "long pattern": (expression("a" * 70_000), "65,536.*70,000"),
    "long words": (
        base(model={"type": "WordPiece", "vocab": {"a": 0}, "max_input_chars_per_word": 10**9}),
        "max_input_chars_per_word.*1000000000",
    ),
    "deep sequences": (base(normalizer=nested(40)), "nested deeper than 64"),
    "map that is not base64": (base(normalizer=precompiled("%%%")), "base64"),
    "large map": (base(normalizer=precompiled("A" * 5_000_000)), "4,194,304"),
    # what the library cannot use: exceptions and panics while it is built or probed
    "damaged map": (base(normalizer=precompiled(base64.b64encode(b"\4\0\0\0abc").decode())), ""),
    "map that points outside": (
        base(normalizer=precompiled(base64.b64encode(b"\4\0\0\0\xff\xff\xff\xffabc").decode())),
        "Panic",
    ),
    "map shorter than it claims": (base(normalizer=precompiled("/////w==")), "4,294,967,296 bytes"),
    "merges of nothing": (model(merges=[["no", "such"]]), "out of vocabulary"),
    "prefix longer than a token": (
        model(continuing_subword_prefix="x" * 5),
        "Panic",
    ),
    "pieces of length 0": (base(pre_tokenizer={"type": "FixedLength", "length": 0}), "Panic"),
    "decoder that cuts too much": (
        base(decoder={"type": "Strip", "content": "a", "start": 0, "stop": 10**9}),
        "stop.*1000000000",
    ),
    "invalid expression": (expression("("), ""),
    # expressions that take too long
    "exponential": (expression("(a+)+$"), "retry-limit"),
    "exponential, another letter": (expression("(?:q|q)*$"), "retry-limit"),
    "exponential, words": (expression("((?:ab)+)+$"), "retry-limit"),
    "exponential, class": (expression(r"(\p{N}+\d*)+$"), "retry-limit"),
    "exponential, needs a letter": (expression(r"(\w+\s*)+;"), "retry-limit"),
    "powers": (expression(r"(.*)(.*)(.*)(.*)\1\2\3\4z"), "retry-limit|too long"),
    "exponential, normalizer": (base(normalizer=replace("", Regex="(a+)+$")), "retry-limit"),
    "cubic": (expression("a*a*$"), "regular expression.*too long"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_hostile_definitions_are_refused_with_the_name_of_the_file(case, tmp_path, capfd):
    definition, match = DAMAGED[case]
    write(tmp_path, definition)
    with pytest.raises(DataError, match=rf"(?s)tokenizer\.json.*({match})") as caught:
        Tokenizer.load(tmp_path)
    assert len(str(caught.value)) < 1000
    assert "panicked" not in capfd.readouterr().err


GROWING = {
    "three times a thousand": base(
        normalizer=sequence("normalizers", *[replace("a" * 1000) for _ in range(3)])
    ),
    "nested": base(normalizer=sequence("normalizers", nested(3), nested(2), replace("a" * 17))),
    "decoder": base(decoder=sequence("decoders", *[replace("a" * 1000) for _ in range(3)])),
    "between characters": base(
        normalizer=sequence("normalizers", *[replace("xyzxyzxyz", Regex="") for _ in range(3)])
    ),
    "empty pattern": base(normalizer=replace("x" * 100, String="")),
    "prepended to each piece": base(
        normalizer={"type": "Prepend", "prepend": "a" * 1000},
        added_tokens=[added("a") | {"special": False}],
    ),
    "character map": base(
        normalizer=sequence("normalizers", *[precompiled(charsmap({"a": "a" * 60}))] * 4)
    ),
    "bytes of bytes": base(pre_tokenizer=sequence("pretokenizers", *[BASE["pre_tokenizer"]] * 30)),
    "template": template(10_000),
    "added tokens while it loads": base(
        normalizer=sequence("normalizers", *[replace("a" * 1000) for _ in range(3)]),
        added_tokens=[added("a" * 100) | {"normalized": True}],
    ),
}
LIMITED = """
import resource, sys
from pathlib import Path
from gidd.data.tokenizers import Tokenizer
from gidd.errors import DataError
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for name in sys.argv[1:]:
    try:
        tokenizer = Tokenizer.load(Path(name))
        tokenizer.decode(tokenizer.encode("aaaa"))
        print("used")
    except DataError as error:
        print(error)
"""


def test_definitions_that_make_texts_far_longer_are_refused(tmp_path):
    """In a process of limited memory, so that a failure does not exhaust the machine's."""
    folders = [write(tmp_path / str(i), value) for i, value in enumerate(GROWING.values())]
    command = [sys.executable, "-c", LIMITED, *map(str, folders)]
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    for case, folder, line in zip(GROWING, folders, child.stdout.splitlines(), strict=True):
        assert f"{folder / TOKENIZER_FILE} is not a valid tokenizer" in line, case
        assert "times longer" in line, case


def test_a_growth_that_only_a_text_shows_is_found_by_probes(tmp_path):
    """Each part is within its limit, all parts together are not."""
    hostile = base(normalizer=replace("中" * 63))
    with pytest.raises(DataError, match="at most 64 tokens or characters of each character"):
        Tokenizer.load(write(tmp_path, hostile))


@pytest.mark.parametrize(
    "key", ['"version": "1.0"', '"normalizer": null', '"type": "BPE"', '"th": 256', '"id": 258']
)
def test_repeated_keys_are_refused(key, tmp_path):
    """The library may read another one of them than the checks."""
    text = json.dumps(BASE)
    assert key in text
    with pytest.raises(DataError, match="more than once"):
        Tokenizer.load(write(tmp_path, text.replace(key, f"{key}, {key}")))


def test_padding_and_truncation_of_the_file_are_not_used(tmp_path):
    tokenizer = byte_level_bpe(r"\w+")
    tokenizer.enable_padding(length=10**9)
    tokenizer.enable_truncation(1)
    tokenizer.save(str(tmp_path / TOKENIZER_FILE))
    assert "1000000000" in (tmp_path / TOKENIZER_FILE).read_text()
    assert len(Tokenizer.load(tmp_path).encode("cats")) == 4


def test_large_deep_and_special_files_are_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="nested deeper than 64"):
        Tokenizer.load(write(tmp_path / "deep", '{"normalizer": ' + "[" * 100_000))
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        Tokenizer.load(write(tmp_path / "text", "\ud800".encode("utf-8", "replace").decode()))
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / TOKENIZER_FILE)
    with pytest.raises(DataError, match="regular file, got a named pipe"):
        Tokenizer.load(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty/tokenizer\.json"):
        Tokenizer.load(tmp_path / "empty")
    monkeypatch.setenv("GIDD_MAX_TOKENIZER_BYTES", "1000")
    with pytest.raises(DataError, match="at most 1,000 bytes.*GIDD_MAX_TOKENIZER_BYTES"):
        Tokenizer.load(write(tmp_path / "large", BASE))


@pytest.mark.parametrize(
    "value", [5, 0, False, ["</s>"], [[]], {}, {"content": 5}, {"content": {"content": "</s>"}}]
)
@pytest.mark.parametrize("key", ["eos_token", "pad_token", "mask_token"])
def test_special_tokens_that_are_no_strings_are_refused(key, value, tmp_path):
    write(tmp_path, BASE)
    (tmp_path / TOKENIZER_SETTINGS).write_text(json.dumps({key: value}))
    with pytest.raises(DataError, match=rf"tokenizer_config\.json: {key} must be a string"):
        Tokenizer.load(tmp_path)


def test_hostile_settings_are_refused(tmp_path):
    write(tmp_path, BASE)
    settings = tmp_path / TOKENIZER_SETTINGS
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
        with pytest.raises(DataError, match="token ids"):
            tokenizer.decode(tokens)


def test_a_panic_after_the_probes_is_one_error(tmp_path):
    """An expression that is slow only on a text that the probes do not have."""
    tokenizer = Tokenizer.load(write(tmp_path, expression(r"(?<=\x{7a}\x{79})(a+)+$")))
    assert len(tokenizer.encode("zya")) == 3
    text = "zy" + "a" * 64 + "!"
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(DataError, match="retry-limit"):
            encode(text)


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
        (json.dumps({"t": 0, "h": 0}), b"", r"vocab\.json.*distinct"),
        (json.dumps({"t": "0"}), b"", r"vocab\.json.*str"),
        (json.dumps({"t" * 5000: 0}), b"", r"vocab\.json.*5,000"),
        (json.dumps([1]), b"", r"vocab\.json"),
        ("[" * 100_000, b"", r"vocab\.json.*nested"),
        (VOCAB, b"\xff", r"merges\.txt.*UnicodeDecodeError"),
        (VOCAB, b"no such\n", r"merges\.txt"),
        (VOCAB, b"t\n", r"merges\.txt"),
    ],
)
def test_hostile_files_of_gpt2_are_refused(vocab, merges, match, tmp_path):
    (tmp_path / "vocab.json").write_text(vocab)
    (tmp_path / "merges.txt").write_bytes(merges)
    with pytest.raises(DataError, match=match):
        gpt2(tmp_path)


def test_files_of_gpt2_are_limited(tmp_path, monkeypatch):
    (tmp_path / "vocab.json").write_text(VOCAB)
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\n")
    assert gpt2(tmp_path).encode("th") == [2]
    monkeypatch.setenv("GIDD_MAX_TOKENIZER_BYTES", "10")
    with pytest.raises(DataError, match=r"merges\.txt must have at most 10 bytes"):
        gpt2(tmp_path)


def test_random_damage_ends_in_one_error_or_in_a_tokenizer(tmp_path):
    """Every value of a file is replaced by others, one at a time."""
    others = (None, True, -1, 1.5, 2**70, "", "x", [], {}, [[]], {"type": "Sequence"})
    definition = json.loads(KINDS["bert"]().to_str())
    definition["normalizer"] = sequence("normalizers", definition["normalizer"], replace("b"))
    count = 0
    for parent, key in list(places(definition)):
        honest = parent[key]
        for other in others:
            parent[key] = other
            count += 1
            try:
                tokenizer = Tokenizer.load(write(tmp_path, definition))
                tokenizer.decode(tokenizer.encode(TEXT))
                _ = tokenizer.vocab, tokenizer.num_bytes(), tokenizer.fingerprint
            except GiddError as error:
                assert len(str(error)) < 1000
        parent[key] = honest
    assert count > 300
    assert Tokenizer.load(write(tmp_path, definition)).encode("the")


def places(value: object):
    """Yield all pairs of a list or an object and one of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in items:
        yield value, key
        if isinstance(child, dict | list):
            yield from places(child)


def test_a_repeated_key_is_named():
    with pytest.raises(ValueError, match="'b' more than once"):
        parse_json(b'{"a": [{"b": 1, "c": 2, "b": 3}]}', "data")
