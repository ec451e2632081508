"""Texts in files of every format, and the documents of a prepared folder."""

import gzip
import json
import random
from pathlib import Path

import numpy as np

from gidd.data.manifest import DataManifest
from gidd.data.tokenizers import Tokenizer

WORDS = [
    "diffusion",
    "mask",
    " the",
    "\n",
    "é",
    "東京",
    "[MASK]",
    "<|endoftext|>",
    " a",
    "\r\n",
    "",
]


def texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(WORDS, k=rng.randrange(60))) for _ in range(count)]


def write_corpus(folder: Path, documents: list[str]) -> None:
    import pyarrow
    import pyarrow.parquet

    for i in range(4):
        (folder / f"a{i}.txt").write_bytes(documents[i].encode())
    parts = [documents[4 + 10 * i : 14 + 10 * i] for i in range(4)]
    (folder / "b.jsonl").write_bytes(lines(parts[0]) + b"\n  \n")
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines(parts[1])))
    frames = [zstd(lines(part)) for part in (parts[2][:4], parts[2][4:])]
    (folder / "d.jsonl.zst").write_bytes(b"".join(frames))
    table = pyarrow.table({"text": parts[3], "other": list(range(10))})
    pyarrow.parquet.write_table(table, folder / "e.parquet", row_group_size=3)


def zstd(data: bytes) -> bytes:
    """One Zstandard frame."""
    import pyarrow

    return pyarrow.compress(data, codec="zstd", asbytes=True)


def lines(documents: list[str]) -> bytes:
    return "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in documents).encode()


def read_back(folder: Path, tokenizer: Tokenizer) -> dict[str, list[str]]:
    """All documents by split, decoded; each must end with one end-of-text token."""
    manifest = DataManifest.read(folder)
    result: dict[str, list[str]] = {}
    for name, split in manifest.splits.items():
        for shard in split.shards:
            tokens = np.fromfile(folder / shard.file, dtype=manifest.dtype)
            ends = np.fromfile(folder / (shard.file + ".index"), dtype="<u8").tolist()
            assert len(tokens) == ends[-1] == shard.tokens
            for start, end in zip([0, *ends], ends, strict=False):
                *ids, last = tokens[start:end].tolist()
                assert last == tokenizer.end_id
                result.setdefault(name, []).append(tokenizer.decode(ids))
    return result


def joined(out: Path) -> dict[str, bytes]:
    """Tokens by split: the shards of all tasks one after the other."""
    splits = DataManifest.read(out).splits
    return {
        name: b"".join((out / shard.file).read_bytes() for shard in split.shards)
        for name, split in splits.items()
    }


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
