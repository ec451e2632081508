"""`gidd data` with tokenizers of characters and of bytes, and the same names in a training."""

import pytest

from gidd.cli import main
from gidd.data.tokenizers import Tokenizer, byte_level
from gidd.runs.data import ensure_prepared
from gidd.training.config import DataConfig
from gidd.training.world import open_world
from tests.support.preparing import read_back

TEXTS = ["peace, naïve\tpeace", "union\r\n— 東京", "a ‘union’ of peace"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    for i, text in enumerate(TEXTS):
        (tmp_path / "texts" / f"{i}.txt").write_bytes(text.encode())
    monkeypatch.chdir(tmp_path)


def run(words: str) -> None:
    main(["data", *words.split()])


@pytest.mark.parametrize("kind", ["chars", "bytes"])
def test_prepare_and_show(kind, tmp_path, capsys):
    run(f"prepare texts --tokenizer {kind} --out {kind} --validation 1")
    run(f"prepare texts --tokenizer {kind} --out {kind} --validation 1")  # resumes: same tokenizer
    tokenizer = Tokenizer.load(kind)
    assert tokenizer.kind == kind
    assert read_back(tmp_path / kind, tokenizer) == {"train": TEXTS[:2], "validation": TEXTS[2:]}
    run(f"show {kind}")
    size = len(set("".join(TEXTS))) + 3 if kind == "chars" else 259
    shown = " ".join(capsys.readouterr().out.split())
    assert f"vocabulary size {size}, stored" in shown
    assert f"tokenizer {kind}, fingerprint {tokenizer.fingerprint[:12]}" in shown
    with pytest.raises(SystemExit):
        run(f"prepare texts --tokenizer {kind} --mask [M] --out other")
    assert "must be left out" in capsys.readouterr().err


def test_prepare_trains_a_tokenizer_of_a_size(tmp_path, capsys):
    for _ in range(2):  # the second time resumes: same tokenizer
        run("prepare texts --tokenizer 264 --out shards --validation 1")
    tokenizer = Tokenizer.load("shards")
    assert tokenizer.vocab.size == 264
    assert read_back(tmp_path / "shards", tokenizer)["train"] == TEXTS[:2]
    with pytest.raises(SystemExit):
        run("prepare texts --tokenizer 264 --mask [M] --out other")
    assert "must be left out" in capsys.readouterr().err


def test_a_tokenizer_of_characters_by_itself(capsys):
    run("tokenizer texts --kind chars --out made")
    tokenizer = Tokenizer.load("made")
    assert tokenizer.vocab.size == len(set("".join(TEXTS))) + 3
    assert f"{tokenizer.vocab.size} tokens" in capsys.readouterr().out
    run("tokenizer texts --kind chars --vocab-size 8 --out few")
    assert Tokenizer.load("few").vocab.size == 8
    run("prepare texts --tokenizer few --out shards")
    assert Tokenizer.load("shards").fingerprint == Tokenizer.load("few").fingerprint
    for words, message in (
        ("tokenizer texts --out o", "--vocab-size must be given"),
        ("tokenizer texts --kind chars --vocab-size 2 --out o", "at least 4"),
        ("verify shards --tokenizer chars", "made from a corpus"),
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            run(words)
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("choice", ["chars", "bytes", 259])
def test_a_training_prepares_with_them(choice, tmp_path):
    data = DataConfig(sources=(str(tmp_path / "texts"),), tokenizer=choice, validation=1)
    with open_world("cpu") as world:
        folder = ensure_prepared(data, tmp_path / "run", world, quiet=True)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.kind == ("chars" if choice == "chars" else "bytes")
    assert read_back(folder, tokenizer) == {"train": TEXTS[:2], "validation": TEXTS[2:]}
    if choice != "chars":
        assert tokenizer.fingerprint == byte_level().fingerprint
