"""Hostile folders of token shards, manifests, plans and records of tasks."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.preparing import contents, texts

from gidd.data.loading.loader import open_split
from gidd.data.loading.shards import ShardSet, TokenShard
from gidd.data.manifest import DataManifest, verify
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer, train_tokenizer
from gidd.errors import DataError
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
    "format": (put(("format",), [LONG]), "format"),
    "a field more": (put(("more",), 1), "fields"),
    "tokenizer": (put(("tokenizer",), 5), "tokenizer"),
    "vocab": (put(("vocab",), [300]), "vocab"),
    "vocab fields": (put(("vocab",), {"size": 300}), "lacks.*mask_id.*pad_id"),
    "size, bool": (put(("vocab", "size"), True), "size"),
    "size, wide": (put(("vocab", "size"), 2**16 + 1), "size"),
    "mask": (put(("vocab", "mask_id"), 300), r"mask_id"),
    "end": (put(("end_id",), 300), "end_id"),
    "dtype": (put(("dtype",), "O"), "dtype"),
    "no splits": (put(("splits",), {}), "at least one split"),
    "split's name": (put(("splits", "../x"), {}), "splits"),
    "split": (put(("splits", "train"), None), "train"),
    "no shards": (put(("splits", "train", "shards"), []), "not the sum"),
    "shards": (put(("splits", "train", "shards"), {}), "shards"),
    "shard": (put(SHARD, LONG), r"shards\[0\] must be an object"),
    "above": (put((*SHARD, "file"), "../train/00000.ds"), "file"),
    "absolute": (put((*SHARD, "file"), "/etc/passwd"), "file"),
    "url": (put((*SHARD, "file"), "http://host/x.ds"), "file"),
    "other split": (put((*SHARD, "file"), "validation/00000.ds"), "file"),
    "long name": (put((*SHARD, "file"), f"train/{LONG}.ds"), "file"),
    "file": (put((*SHARD, "file"), 5), "file"),
    "digest": (put((*SHARD, "tokens_sha256"), None), "tokens_sha256"),
    "twice": (double, "each file .* once"),
    "sources": (put(("sources",), [None]), "sources"),
    "command": (put(("command",), {}), "command"),
    "known": (put(("known",), {"a": "b"}), "known"),
    **{
        f"{name} {value}": (shard_count(name, value), name)
        for name in ("documents", "tokens")
        for value in (0, True, 2**63)
    },
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_hostile_manifest_is_refused(prepared, tmp_path, name):
    change, message = MANIFESTS[name]
    record = json.loads((prepared / "manifest.json").read_text())
    change(record)
    (tmp_path / "manifest.json").write_text(json.dumps(record))
    with pytest.raises(
        DataError, match=rf"not a valid manifest: .*{message}|format must"
    ) as caught:
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


def test_a_manifest_must_be_a_small_file(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(DataError, match=r"manifest\.json .*named pipe"):
        DataManifest.read(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").touch()
    os.truncate(tmp_path / "manifest.json", 1 << 29)
    with pytest.raises(DataError, match="at most 268,435,456 bytes"):
        DataManifest.read(tmp_path)


# ---- the plan and the records of tasks ----


PLANS: dict[str, tuple[Callable[[Any], None], str]] = {
    "extents": (put(("extents",), 20), "extents"),
    "extents, negative": (put(("extents",), [-20]), "extents"),
    "extents, two": (put(("extents",), [10, 10]), "other extents"),
    "sources": (put(("sources",), "a"), "sources"),
    "command": (put(("command",), None), "command"),
    "known": (put(("known",), [1]), "known"),
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
    with pytest.raises(DataError, match=rf"(?s){message}.*prepare again|{message}; see") as caught:
        prepare([source], tokenizer, folder, validation=4, tasks=2, quiet=True)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 10**5, '{"extents": []}'])
def test_a_damaged_plan_is_refused(prepared, source, tokenizer, tmp_path, text):
    folder = shutil.copytree(prepared, tmp_path / "copy")
    (folder / "tasks" / "plan.json").write_text(text)
    with pytest.raises(DataError, match=r"plan\.json.*prepare again"):
        prepare([source], tokenizer, folder, validation=4, tasks=2, quiet=True)


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
