"""The data of a run: what was prepared for checkpoints is never replaced."""

import sys
from dataclasses import replace

import pytest
from support.tokenizer_kinds import KINDS
from support.training_runs import tiny_run, train_here

from gidd.cli import main
from gidd.data.loading.loader import open_split
from gidd.data.manifest import DataManifest
from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError, DataError
from gidd.training.config import DataConfig


@pytest.fixture
def run(tmp_path):
    """A configuration that prepares its data from a file of its own."""
    for name in ("old.txt", "new.txt"):
        (tmp_path / name).write_text("".join(f"{name} line {i}\n\n" for i in range(10)))
    data = DataConfig(sources=(str(tmp_path / "old.txt"),), tokenizer=260, validation=0, length=16)
    return replace(tiny_run(tmp_path, steps=1), data=data)


def with_new_source(run, tmp_path):
    return replace(run, data=replace(run.data, sources=(str(tmp_path / "new.txt"),)))


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_other_sources_are_refused_before_anything_is_prepared(run, tmp_path):
    out = tmp_path / "run"
    assert train_here(run, out)
    before = contents(out)
    with pytest.raises(ConfigError, match=r"(?s)data.sources: .*old.txt.*new.txt.*--out") as error:
        train_here(with_new_source(run, tmp_path), out)
    assert "delete" not in str(error.value)
    assert contents(out) == before

    (out / "data").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"data.sources: "):
        train_here(with_new_source(run, tmp_path), out)
    assert not (out / "data").exists()


@pytest.mark.slow
def test_deletion_is_recommended_only_without_checkpoints(run, tmp_path):
    out = tmp_path / "run"
    assert train_here(run, out)
    (newest,) = (out / "checkpoints").glob("step-*")
    (newest / "record.json").write_text("{")  # the settings of the run cannot be read
    with pytest.raises(DataError, match=r"(?s)data.sources: .*new.txt.*--out") as error:
        train_here(with_new_source(run, tmp_path), out)
    assert "delete" not in str(error.value)

    (out / "checkpoints").rename(tmp_path / "moved")
    with pytest.raises(DataError, match=r"(?s)data.sources: .*delete .*run/data .*--out"):
        train_here(with_new_source(run, tmp_path), out)


def test_a_folder_that_cannot_be_written_is_named(run, tmp_path, monkeypatch):
    def read_only(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("gidd.runs.data.prepare_data", read_only)
    with pytest.raises(DataError, match=r"run/data .*Read-only file system.*--out"):
        train_here(run, tmp_path / "run")


def test_a_missing_grain_is_reported_before_anything_is_prepared(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "grain", None)
    with pytest.raises(ConfigError, match=r"grain.*gidd\[data\]"):
        train_here(replace(run, data=replace(run.data, workers=1)), tmp_path / "run")
    assert not (tmp_path / "run" / "data").exists()


def test_gidd_train_reports_a_lossy_tokenizer_before_training(tmp_path, capsys, monkeypatch):
    def stop(*args):
        raise ConfigError("training would start")

    monkeypatch.setattr("gidd.runs.fit.build_state", stop)
    KINDS["bert"]().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("The cat sat on 東京.")
    words = ["train", "nano", "--out", str(tmp_path / "run"), "--device", "cpu", "--quiet"]
    words += ["--data.sources", str(tmp_path / "a.txt"), "--data.tokenizer", str(tmp_path)]
    with pytest.raises(SystemExit):
        main([*words, "--data.validation", "0"])
    warning, error = capsys.readouterr().err.splitlines()
    assert "the tokenizer is lossy: 'The cat sat on 東京.'" in warning
    assert "becomes 'the cat sat on [UNK]" in warning
    assert "training would start" in error


@pytest.mark.slow
@pytest.mark.parametrize(("count", "held_out"), [(2, 1), (15, 1), (24, 2), (100, 10)])
def test_a_tenth_of_the_users_documents_is_held_out_by_default(count, held_out, tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(count):
        (tmp_path / "texts" / f"{number:03}.txt").write_text(f"text {number} of {count}\n" * 3)
    data = DataConfig(sources=(str(tmp_path / "texts"),), tokenizer="bytes", length=16)
    out = tmp_path / "run"
    assert train_here(replace(tiny_run(tmp_path, steps=1), data=data), out)
    splits = DataManifest.read(out / "data").splits
    assert (splits["train"].documents, splits["validation"].documents) == (
        count - held_out,
        held_out,
    )
    texts = held_out_texts(out / "data")
    numbers = [int(text.split()[1]) for text in texts]
    assert max(numbers) - min(numbers) >= (held_out - 1) * count // 20  # not the last ones


def held_out_texts(folder):
    split, tokenizer = open_split(folder, "validation"), Tokenizer.load(folder)
    found = []
    for number in range(len(split)):
        shard, index = split.locate(number)
        start, stop = shard.bounds(index)
        found.append(tokenizer.decode(shard.tokens[start:stop].tolist()))
    return found


def test_too_large_a_validation_split_names_the_option(run, tmp_path):
    with pytest.raises(DataError, match=r"24 of 1 documents.*--data\.validation"):
        train_here(replace(run, data=replace(run.data, validation=24)), tmp_path / "run")


@pytest.mark.slow
def test_a_run_prepared_with_a_number_is_resumed_without_it(run, tmp_path):
    """Presets of older versions held out a number of documents."""
    (tmp_path / "more.txt").write_text("another document")
    sources = (*run.data.sources, str(tmp_path / "more.txt"))
    old = replace(run, data=replace(run.data, sources=sources, validation=1))
    out = tmp_path / "run"
    assert train_here(old, out)
    new = replace(old, data=replace(old.data, validation=None), train=replace(old.train, steps=2))
    assert train_here(new, out)
    with pytest.raises(ConfigError, match=r"data\.validation: .* -> 0"):
        train_here(replace(old, data=replace(old.data, validation=0)), out)
