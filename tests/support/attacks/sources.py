"""Hostile folders of documents."""

import gzip
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow
import pyarrow.parquet

from support.attacks.tools import ESCAPE, Attack, become_link, become_pipe, nested

MB = 1_000_000


def _write(name: str, data: bytes | str, folder: Path) -> None:
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def _compressed(name: str, start: bytes, block: bytes, blocks: int, folder: Path) -> None:
    """A compressed file: `start`, then a block of which a member (or frame) is made only once."""
    compress = (
        gzip.compress
        if name.endswith(".gz")
        else partial(pyarrow.compress, codec="zstd", asbytes=True)
    )
    (folder / name).write_bytes(compress(start) + compress(block) * blocks)


def _table(columns: dict[str, object], folder: Path, **options: object) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "b.parquet", **options)


def _parquet(make: Callable[[], dict[str, object]], folder: Path, **options: object) -> None:
    _table(make(), folder, **options)


def _broken_parquet(change: Callable[[bytes], bytes], folder: Path) -> None:
    _table({"text": ["one", "two"] * 50}, folder)
    path = folder / "b.parquet"
    path.write_bytes(change(path.read_bytes()))


def _named(name: bytes, folder: Path) -> None:
    with open(os.path.join(os.fsencode(folder), name), "wb") as file:
        file.write(b"some text")


def _socket(folder: Path) -> None:
    here = os.getcwd()
    os.chdir(folder)  # the name of a socket is limited to about 100 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("b.txt")
    os.chdir(here)


def _loop(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "b.txt").write_text("text")
    (folder / "inner" / "again").symlink_to(folder)


def _deep(folder: Path) -> None:
    """Folders in folders, beyond the longest path."""
    here = os.getcwd()
    os.chdir(folder)
    for _ in range(300):
        os.mkdir("d" * 50)
        os.chdir("d" * 50)
    os.chdir(here)


def _line(value: str) -> str:
    return '{"text": "fine"}\n' + value + "\n"


ATTACKS: dict[str, Attack] = {
    **{
        f"line: {name}": partial(_write, "b.jsonl", _line(text))
        for name, text in {
            "nested 10^6": nested(10**6, "{"),
            "not closed": '{"text": "x',
            "text is a list": '{"text": ["x"]}',
            "a lone surrogate": '{"text": "\\ud800"}',
            "an escape": '{"text": "'
            + ESCAPE.replace("\x1b", "\\u001b").replace("\x07", "")
            + '"}',
            "an escape in place of JSON": ESCAPE,
            "of 40 MB": '{"text": "' + "x" * (40 * MB) + '"}',
        }.items()
    },
    "line is not UTF-8": partial(_write, "b.jsonl", b'{"text": "\xff"}\n'),
    "text is not UTF-8": partial(_write, "b.txt", b"\xff\xfe\x00a"),
    "text of one word": partial(_write, "b.txt", b"e" * (15 * MB)),
    "text of escapes": partial(_write, "b.txt", ESCAPE * 1000),
    "text of special tokens": partial(_write, "b.txt", "[MASK]<|endoftext|>[PAD]" * 1000),
    "zst: one line of 6 GB": partial(_compressed, "b.jsonl.zst", b'{"text": "', b"x" * MB, 6000),
    "gz: one line of 3 GB": partial(_compressed, "b.jsonl.gz", b'{"text": "', b"x" * MB, 3000),
    "gz: not gzip": partial(_write, "b.jsonl.gz", b"not gzip"),
    "gz: cut": partial(_write, "b.jsonl.gz", gzip.compress(b'{"text": "x"}\n' * 1000)[:-20]),
    "zst: not zst": partial(_write, "b.jsonl.zst", b"not zst"),
    "zst: claims 2^60": partial(
        _write, "b.jsonl.zst", b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**60) + bytes(20)
    ),
    "parquet: a string of 100 MB": partial(
        _parquet, lambda: {"text": ["x" * (100 * MB)]}, compression="zstd"
    ),
    "parquet: 200 MB plain": partial(
        _parquet, lambda: {"text": ["x" * MB] * 200}, compression="gzip", use_dictionary=False
    ),
    "parquet: 10^7 rows": partial(_parquet, lambda: {"text": pyarrow.array(["x"] * 10**7)}),
    "parquet: numbers": partial(_parquet, lambda: {"text": [1, 2, 3]}),
    "parquet: nulls": partial(_parquet, lambda: {"text": ["x", None]}),
    "parquet: other column": partial(_parquet, lambda: {ESCAPE: ["x"]}),
    "parquet: no rows": partial(_parquet, lambda: {"text": pyarrow.array([], pyarrow.string())}),
    "parquet: no footer": partial(_broken_parquet, lambda data: data[:-8]),
    "parquet: footer of 2^31": partial(
        _broken_parquet, lambda data: data[:-8] + struct.pack("<I", 2**31) + b"PAR1"
    ),
    "parquet: not parquet": partial(_write, "b.parquet", b"PAR1" + b"x" * 100 + b"PAR1"),
    "pipe": lambda folder: become_pipe(folder / "b.txt"),
    "socket": _socket,
    "link to itself": lambda folder: become_link(folder / "b.txt", "b.txt"),
    "link to nothing": lambda folder: become_link(folder / "b.txt", "nothing"),
    "link to /dev/zero": lambda folder: become_link(folder / "b.txt", "/dev/zero"),
    "links in a circle": _loop,
    "name is not UTF-8": partial(_named, b"b\xff.txt"),
    "name is an escape": partial(_named, b"\x1b]0;PWNED\x07.txt"),
    "name is a line break": partial(_named, b"a\nb.jsonl"),
    "folders of folders": _deep,
    "no documents": lambda folder: (folder / "a.txt").unlink(),
}
