"""Hostile folders of token shards, manifests, plans and records of tasks."""

import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.preparing import contents, texts

from gidd.data.loading.loader import open_split
from gidd.data.loading.shards import ShardSet, TokenShard, open_shard
from gidd.data.manifest import DataManifest, verify
from gidd.data.preparation.prepare import prepare
from gidd.data.preparation.work_plan import read_plan
from gidd.data.tokenizers import Tokenizer, train_tokenizer
from gidd.errors import ConfigError, DataError
from gidd.runs.evaluate import unigram_entropy


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(texts(100), 300)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("source") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(20)))
    return path


@pytest.fixture(scope="module")
def prepared(source, tokenizer, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("prepared")
    prepare([source], tokenizer, out, validation=4, tasks=2, quiet=True)
    return out


# ---- the manifest ----


def put(path: tuple[Any, ...], value: object) -> Callable[[Any], None]:
    def change(record: Any) -> None:
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = value

    return change


def double(record: Any) -> None:
    split = record["splits"]["train"]
    split["shards"] *= 2
    split["documents"], split["tokens"] = 2 * split["documents"], 2 * split["tokens"]


def shard_count(name: str, value: object) -> Callable[[Any], None]:
    """A count of a shard, with a total that agrees."""

    def change(record: Any) -> None:
        split = record["splits"]["validation"]
        split["shards"][0][name] = split[name] = value

    return change


SHARD = ("splits", "train", "shards", 0)
LONG = "x" * 10**6
MANIFESTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "format": (put(("format",), [LONG]), "format must be 1"),
    "a field more": (put(("more",), 1), "fields"),
    "tokenizer": (put(("tokenizer",), 5), "tokenizer must be a string, got 5"),
    "vocab": (put(("vocab",), [300]), "vocab must be an object"),
    "vocab fields": (put(("vocab",), {"size": 300}), "fields size, mask_id, pad_id"),
    "size, bool": (put(("vocab", "size"), True), "vocab.size must be an integer.*True"),
    "size, float": (put(("vocab", "size"), 300.0), "vocab.size must be an integer.*300.0"),
    "size, wide": (put(("vocab", "size"), 2**16 + 1), "vocab.size must be at most 65536"),
    "size, huge": (put(("vocab", "size"), 10**30), "vocab.size must be an integer"),
    "mask": (put(("vocab", "mask_id"), 300), r"vocab.mask_id must be in \[0, 300\), got 300"),
    "mask, float": (put(("vocab", "mask_id"), 5.0), "vocab.mask_id must be an integer"),
    "end": (put(("end_id",), 300), "end_id must be at most 299"),
    "end, null": (put(("end_id",), None), "end_id must be an integer"),
    "dtype": (put(("dtype",), "O"), "dtype must be one of uint16, uint32, got 'O'"),
    "dtype, list": (put(("dtype",), ["uint16"]), "dtype must be one of"),
    "no splits": (put(("splits",), {}), "at least one split"),
    "split's name": (put(("splits", "../x"), {}), "name of a split"),
    "split": (put(("splits", "train"), None), "splits.train must be an object"),
    "no shards": (put(("splits", "train", "shards"), []), "not the sum"),
    "shards": (put(("splits", "train", "shards"), {}), "shards must be a list"),
    "shard": (put(SHARD, LONG), r"splits.train.shards\[0\] must be an object"),
    "above": (put((*SHARD, "file"), "../train/00000.ds"), "file must be train/NAME.ds"),
    "inside": (put((*SHARD, "file"), "train/../../x.ds"), "file must be train/NAME.ds"),
    "absolute": (put((*SHARD, "file"), "/etc/passwd"), "file must be train/NAME.ds"),
    "url": (put((*SHARD, "file"), "http://host/x.ds"), "file must be train/NAME.ds"),
    "other split": (put((*SHARD, "file"), "validation/00000.ds"), "file must be train/NAME.ds"),
    "other format": (put((*SHARD, "file"), "train/00000.npy"), "file must be train/NAME.ds"),
    "long name": (put((*SHARD, "file"), f"train/{LONG}.ds"), "file must be train/NAME.ds"),
    "escape": (put((*SHARD, "file"), "train/\x1b.ds"), r"file must be .*\\x1b"),
    "file": (put((*SHARD, "file"), 5), "file must be a string, got 5"),
    "digest": (put((*SHARD, "tokens_sha256"), None), "tokens_sha256 must be a string"),
    "twice": (double, "each file once"),
    "sources": (put(("sources",), [None]), "sources must be a list of strings"),
    "command": (put(("command",), {}), "command must be a string"),
    "known": (put(("known",), {"a": "b"}), "known must be an object of finite numbers"),
    "known, infinite": (put(("known",), {"a": 1e999}), "known must be an object of finite"),
    **{
        f"{name} {value}": (shard_count(name, value), rf"{name} must be an integer.* got {value}")
        for name in ("documents", "tokens")
        for value in (-1, 0, 1.5, True, 2**63)
    },
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_hostile_manifest_is_refused(prepared, tmp_path, name):
    change, message = MANIFESTS[name]
    record = json.loads((prepared / "manifest.json").read_text())
    change(record)
    (tmp_path / "manifest.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match=message) as caught:
        DataManifest.read(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_claimed_counts_are_compared_with_the_files(prepared, tmp_path):
    """Before anything of that size is mapped or allocated."""
    for name in ("documents", "tokens"):
        folder = shutil.copytree(prepared, tmp_path / name)
        record = json.loads((folder / "manifest.json").read_text())
        shard_count(name, 2**62)(record)
        (folder / "manifest.json").write_text(json.dumps(record))
        with pytest.raises(DataError, match="4611686018427387904"):
            open_split(folder, "validation")
        with pytest.raises(DataError, match="must have .* bytes"):
            verify(folder)


def test_a_manifest_must_be_a_small_file(tmp_path, monkeypatch, prepared):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(DataError, match=r"manifest\.json .*named pipe"):
        DataManifest.read(tmp_path)
    monkeypatch.setenv("GIDD_MAX_MANIFEST_BYTES", "1000")
    with pytest.raises(DataError, match="1,000 bytes.*GIDD_MAX_MANIFEST_BYTES"):
        DataManifest.read(prepared)


# ---- the plan and the records of tasks ----


PLANS: dict[str, tuple[Callable[[Any], None], str]] = {
    "counts": (put(("counts",), 20), "counts must be a list"),
    "counts, negative": (put(("counts",), [-20]), "counts must be a list"),
    "counts, bool": (put(("counts",), [True]), "counts must be a list"),
    "counts, two": (put(("counts",), [10, 10]), "other counts"),
    "sources": (put(("sources",), "a"), "sources must be a list of strings"),
    "command": (put(("command",), None), "command must be a string"),
    "known": (put(("known",), [1]), "known must be an object"),
    "settings": (put(("documents",), [[LONG]]), "other documents"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_hostile_plan_is_refused(prepared, source, tokenizer, tmp_path, name):
    change, message = PLANS[name]
    folder = shutil.copytree(prepared, tmp_path / "copy")
    path = folder / "tasks" / "plan.json"
    plan = json.loads(path.read_text())
    change(plan)
    path.write_text(json.dumps(plan))
    with pytest.raises(DataError, match=rf"{message}|{message}.*plan\.json") as caught:
        prepare([source], tokenizer, folder, validation=4, tasks=2, quiet=True)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 10**5, '{"counts": []}'])
def test_a_damaged_plan_is_refused(prepared, source, tokenizer, tmp_path, text):
    folder = shutil.copytree(prepared, tmp_path / "copy")
    (folder / "tasks" / "plan.json").write_text(text)
    with pytest.raises(DataError, match=r"plan\.json.*prepare again"):
        prepare([source], tokenizer, folder, validation=4, tasks=2, quiet=True)


def test_a_plan_that_could_not_be_read_is_not_written(source, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("GIDD_MAX_MANIFEST_BYTES", "300")
    with pytest.raises(ConfigError, match=r"plan\.json.*300 bytes.*GIDD_MAX_MANIFEST_BYTES"):
        prepare([source], tokenizer, tmp_path, quiet=True)
    assert not (tmp_path / "tasks" / "plan.json").exists()
    monkeypatch.delenv("GIDD_MAX_MANIFEST_BYTES")
    prepare([source], tokenizer, tmp_path, quiet=True)
    assert read_plan(tmp_path)["counts"] == [20]


RECORDS: dict[str, Callable[[Any], None]] = {
    "shards": put(("shards",), []),
    "shard": put(("shards", "train"), LONG),
    "file": put(("shards", "train", "file"), "/etc/passwd"),
    "file of another task": put(("shards", "train", "file"), "train/00001.ds"),
    "file above": put(("shards", "train", "file"), "train/../train/00000.ds"),
    "tokens": put(("shards", "train", "tokens"), 1e999),
    "documents": put(("shards", "train", "documents"), "10"),
    "digest": put(("shards", "train", "tokens_sha256"), [5]),
    "plan": put(("plan",), LONG),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_task_with_a_hostile_record_is_done_again(prepared, source, tokenizer, tmp_path, name):
    folder = shutil.copytree(prepared, tmp_path / "copy")
    path = folder / "tasks" / "00000.json"
    record = json.loads(path.read_text())
    RECORDS[name](record)
    path.write_text(json.dumps(record))
    prepare([source], tokenizer, folder, validation=4, tasks=2, quiet=True)
    assert contents(folder) == contents(prepared)


# ---- shards ----


def megatron(folder: Path, sizes: list[int], count: int | None = None, code: int = 8) -> Path:
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sizes), len(sizes) + 1)
    if count is not None:
        header = header[:18] + struct.pack("<Q", count) + header[26:]
    offsets = np.zeros(len(sizes), "<i8").tobytes()
    (folder / "a.idx").write_bytes(header + np.array(sizes, "<i4").tobytes() + offsets)
    np.arange(6, dtype="<u2").tofile(folder / "a.bin")
    return folder / "a.bin"


@pytest.mark.parametrize(
    ("sizes", "count", "message"),
    [
        ([-1, 7], None, r"a\.idx: sizes .* negative"),
        ([2**31 - 1, -(2**31), 7], None, r"a\.idx: sizes .* negative"),
        ([2**31 - 1] * 3, None, r"a\.bin has 6 tokens, but its index ends at 6442450941"),
        ([6], 2**60, r"a\.idx has .* bytes"),
        ([6], 2**64 - 1, r"a\.idx has .* bytes"),
        ([6], 0, r"a\.bin has no documents"),
    ],
)
def test_a_hostile_megatron_index_is_refused(tmp_path, sizes, count, message):
    assert len(open_shard(megatron(tmp_path, [2, 4]))) == 2
    with pytest.raises(DataError, match=message):
        open_shard(megatron(tmp_path, sizes, count))


def npy(header: str, data: bytes = b"\x01\x00" * 8) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + data


def npy_shape(shape: str, descr: str = "'<u2'", order: str = "False") -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}")


ARRAYS = {
    "empty": b"",
    "shape of 10^12": npy_shape(f"({10**12},)"),
    "shape of 10^30": npy_shape(f"({10**30},)"),
    "negative shape": npy_shape("(-1,)"),
    "shape of words": npy_shape("('x',)"),
    "two dimensions": npy_shape("(2, 4)"),
    "Fortran order": npy_shape("(4, 2)", order="True"),
    "objects": npy_shape("(2,)", "'|O'"),
    "floats": npy_shape("(4,)", "'<f4'"),
    "records": npy_shape("(4,)", "[('a', '<u2')]"),
    "no type": npy_shape("(4,)", "None"),
    "unknown type": npy_shape("(4,)", "'x'"),
    "nested": npy("(" * 5000 + ")" * 5000),
    "long header": npy_shape("(4,)" + " " * 10**7),
    "code": npy("__import__('os').system('x')"),
    "not a dictionary": npy("5"),
    "header beyond the file": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_hostile_array_is_refused(tmp_path, name):
    path = tmp_path / "a.npy"
    path.write_bytes(npy_shape("(8,)"))
    assert len(open_shard(path).tokens) == 8
    path.write_bytes(ARRAYS[name])
    with pytest.raises(DataError, match=r"a\.npy") as caught:
        open_shard(path)
    assert len(str(caught.value)) < 1000


def test_an_archive_is_not_an_array(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npy", "w") as archive:
        archive.writestr("x.npy", npy_shape("(8,)"))
    with pytest.raises(DataError, match=r"a\.npy"):
        open_shard(tmp_path / "a.npy")


@pytest.mark.parametrize("ends", [[-5, 3, 6], [4, 3, 6], [2, 7, 6]])
def test_bounds_are_inside_the_tokens(ends):
    shard = TokenShard("a.ds", np.arange(6), np.array(ends))
    with pytest.raises(DataError, match=r"a\.ds: document \d.* index is damaged"):
        for document in range(3):
            shard.bounds(document)


@pytest.mark.parametrize("token", [300, 2**32 - 1, -1])
def test_tokens_outside_the_vocabulary_are_not_counted(token):
    """Counting id 2^32 - 1 would take 32 GB."""
    tokens = np.array([1, 2, token, 3], dtype=np.int64 if token < 0 else np.uint32)
    shards = ShardSet([TokenShard("a.ds", tokens, np.array([4]))])
    with pytest.raises(DataError, match=r"a\.ds has .*outside the vocabulary of size 300.*verify"):
        unigram_entropy(shards, 300)
    assert unigram_entropy(shards, 300, max_tokens=2) == pytest.approx(np.log(2))


def test_a_server_that_sends_fewer_bytes_is_an_error(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec", reason='needs `pip install "gidd[data]"`')
    memory = fsspec.filesystem("memory")
    memory.pipe("/hostile/a.ds", np.arange(6, dtype="<u2").tobytes())
    memory.pipe("/hostile/a.ds.index", np.array([2, 6], "<u8").tobytes())
    shard = open_shard("memory://hostile/a.ds")
    assert shard.tokens[2:5].tolist() == [2, 3, 4]
    assert shard.tokens[3:3].tolist() == []
    monkeypatch.setattr(type(memory), "cat_file", lambda self, path, start, end: b"\x01\x00")
    with pytest.raises(DataError, match=r"a\.ds cannot be read: .*2 bytes in place of 6"):
        _ = shard.tokens[2:5]
