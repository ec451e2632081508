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


def _gzip_members(folder: Path) -> None:
    """Many members, each of which is small."""
    member = gzip.compress(b"\n" * MB)
    (folder / "b.jsonl.gz").write_bytes(member * 2000)


def _table(columns: dict[str, object], folder: Path, **options: object) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "b.parquet", **options)


def _parquet(make: Callable[[], dict[str, object]], folder: Path, **options: object) -> None:
    _table(make(), folder, **options)


def _repeated(length: int, rows: int) -> dict[str, object]:
    """A column of one long string, stored once."""
    indices = pyarrow.array([0] * rows, pyarrow.int32())
    return {"text": pyarrow.DictionaryArray.from_arrays(indices, ["x" * length])}


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
            "nested 10^5": '{"text": ' + nested(10**5) + "}",
            "nested 10^6": nested(10**6, "{"),
            "a list": "[]",
            "a number": "5",
            "a long number": '{"text": "x", "n": ' + "9" * 10**5 + "}",
            "not closed": '{"text": "x',
            "no text": '{"txt": "x"}',
            "text is null": '{"text": null}',
            "text is a list": '{"text": ["x"]}',
            "text is a number": '{"text": 1e999}',
            "a lone surrogate": '{"text": "\\ud800"}',
            "an escape": '{"text": "'
            + ESCAPE.replace("\x1b", "\\u001b").replace("\x07", "")
            + '"}',
            "an escape in place of JSON": ESCAPE,
            "an escape as a key": '{"'
            + ESCAPE.replace("\x1b", "\\u001b").replace("\x07", "")
            + '": 1}',
            "NaN": "NaN",
            "of 40 MB": '{"text": "' + "x" * (40 * MB) + '"}',
            "of 40 MB of spaces": " " * (40 * MB),
            "many keys": "{" + ",".join(f'"k{n}":0' for n in range(10**6)) + ',"text":"x"}',
            "a NUL": '{"text": "a\\u0000b"}',
            "BOM": "\ufeff{}",
        }.items()
    },
    "line is not UTF-8": partial(_write, "b.jsonl", b'{"text": "\xff"}\n'),
    "lines are empty": partial(_write, "b.jsonl", b"\n" * MB),
    "lines have no end": partial(_write, "b.jsonl", b"x" * (20 * MB)),
    "text is not UTF-8": partial(_write, "b.txt", b"\xff\xfe\x00a"),
    "text is empty": partial(_write, "b.txt", b""),
    "text of 100 MB": partial(_write, "b.txt", b"word " * (20 * MB)),
    "text of one word": partial(_write, "b.txt", b"e" * (15 * MB)),
    "text of escapes": partial(_write, "b.txt", ESCAPE * 1000),
    "text of zeros": partial(_write, "b.txt", bytes(MB)),
    "text of special tokens": partial(_write, "b.txt", "[MASK]<|endoftext|>[PAD]" * 1000),
    "text of combining marks": partial(_write, "b.txt", "e" + "\u0301" * MB),
    "zst: one line of 6 GB": partial(_compressed, "b.jsonl.zst", b'{"text": "', b"x" * MB, 6000),
    "zst: 4 GB of line feeds": partial(_compressed, "b.jsonl.zst", b"", b"\n" * MB, 4000),
    "zst: 4 GB of lines": partial(
        _compressed, "b.jsonl.zst", b"", b'{"text": "x"}\n' * 70_000, 4000
    ),
    "gz: one line of 3 GB": partial(_compressed, "b.jsonl.gz", b'{"text": "', b"x" * MB, 3000),
    "gz: 1 GB of line feeds": partial(_compressed, "b.jsonl.gz", b"", b"\n" * MB, 1000),
    "gz: 2 GB in members": _gzip_members,
    "gz: not gzip": partial(_write, "b.jsonl.gz", b"not gzip"),
    "gz: cut": partial(_write, "b.jsonl.gz", gzip.compress(b'{"text": "x"}\n' * 1000)[:-20]),
    "gz: wrong sum": partial(
        _write, "b.jsonl.gz", gzip.compress(b'{"text": "x"}\n')[:-8] + bytes(8)
    ),
    "gz: empty": partial(_write, "b.jsonl.gz", b""),
    "zst: not zst": partial(_write, "b.jsonl.zst", b"not zst"),
    "zst: window of 2^41": partial(_write, "b.jsonl.zst", b"\x28\xb5\x2f\xfd\x00\xff" + bytes(20)),
    "zst: claims 2^60": partial(
        _write, "b.jsonl.zst", b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**60) + bytes(20)
    ),
    "zst: skippable": partial(
        _write, "b.jsonl.zst", b"\x50\x2a\x4d\x18\xff\xff\xff\xff" + bytes(9)
    ),
    "parquet: 3 GB of one string": partial(_parquet, partial(_repeated, 3 * MB, 1000)),
    "parquet: 3 GB of one string, zstd": partial(
        _parquet, partial(_repeated, 3 * MB, 1000), compression="zstd"
    ),
    "parquet: a string of 100 MB": partial(
        _parquet, lambda: {"text": ["x" * (100 * MB)]}, compression="zstd"
    ),
    "parquet: 200 MB plain": partial(
        _parquet, lambda: {"text": ["x" * MB] * 200}, compression="gzip", use_dictionary=False
    ),
    "parquet: 10^7 rows": partial(_parquet, lambda: {"text": pyarrow.array(["x"] * 10**7)}),
    "parquet: numbers": partial(_parquet, lambda: {"text": [1, 2, 3]}),
    "parquet: lists": partial(_parquet, lambda: {"text": [["x"], ["y"]]}),
    "parquet: nulls": partial(_parquet, lambda: {"text": ["x", None]}),
    "parquet: bytes": partial(_parquet, lambda: {"text": [b"\xff", b"x"]}),
    "parquet: other column": partial(_parquet, lambda: {ESCAPE: ["x"]}),
    "parquet: 10^4 columns": partial(_parquet, lambda: {f"c{k}": [1] for k in range(10**4)}),
    "parquet: no rows": partial(_parquet, lambda: {"text": pyarrow.array([], pyarrow.string())}),
    "parquet: no footer": partial(_broken_parquet, lambda data: data[:-8]),
    "parquet: cut": partial(_broken_parquet, lambda data: data[: len(data) // 2]),
    "parquet: footer of 2^31": partial(
        _broken_parquet, lambda data: data[:-8] + struct.pack("<I", 2**31) + b"PAR1"
    ),
    "parquet: pages of zeros": partial(
        _broken_parquet, lambda data: data[:4] + bytes(100) + data[104:]
    ),
    "parquet: not parquet": partial(_write, "b.parquet", b"PAR1" + b"x" * 100 + b"PAR1"),
    "pipe": lambda folder: become_pipe(folder / "b.txt"),
    "pipe of lines": lambda folder: become_pipe(folder / "b.jsonl"),
    "socket": _socket,
    "link to itself": lambda folder: become_link(folder / "b.txt", "b.txt"),
    "link to nothing": lambda folder: become_link(folder / "b.txt", "nothing"),
    "link to /dev/zero": lambda folder: become_link(folder / "b.txt", "/dev/zero"),
    "link to a terminal": lambda folder: become_link(folder / "b.txt", "/dev/tty"),
    "link to /proc": lambda folder: become_link(folder / "b.txt", "/proc/self/mem"),
    "link to a folder": lambda folder: become_link(folder / "b.txt", folder),
    "links in a circle": _loop,
    "folder of that name": lambda folder: (folder / "b.txt").mkdir(),
    "name is not UTF-8": partial(_named, b"b\xff.txt"),
    "name is an escape": partial(_named, b"\x1b]0;PWNED\x07.txt"),
    "name is an escape of bad JSON": partial(_named, b"\x1b[2J\xc2\x9b31m.jsonl"),
    "name is a line break": partial(_named, b"a\nb.jsonl"),
    "name is an option": partial(_named, b"--out.txt"),
    "name is a URL": lambda folder: ((folder / "http:").mkdir(), _named(b"http:/x.txt", folder)),
    "folders of folders": _deep,
    "no documents": lambda folder: (folder / "a.txt").unlink(),
}
