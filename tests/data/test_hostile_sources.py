"""Hostile documents: refused with one message, in little memory, before anything waits."""

import gzip
import json
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.preparing import texts

from gidd.data.corpora.documents import Documents
from gidd.data.corpora.formats import find_documents
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer, train_tokenizer
from gidd.errors import DataError

REASON = 'needs `pip install "gidd[data]"`'
pytest.importorskip("fsspec", reason=REASON)
pyarrow = pytest.importorskip("pyarrow", reason=REASON)
parquet = pytest.importorskip("pyarrow.parquet", reason=REASON)

MB = 1 << 20
LONGEST = "GIDD_MAX_DOCUMENT_BYTES"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(texts(100), 300)


def read(path: Path) -> list[str]:
    return [text for part in find_documents(path) for text in part.read(0, part.count())]


# ---- documents ----


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_a_document_has_a_longest_length_that_can_be_changed(tmp_path, monkeypatch, name):
    """The second document is one byte too long, counted in UTF-8."""
    monkeypatch.setenv(LONGEST, "100")
    fits, long = "é" * 40, "é" * 50 + "x"
    path, place = tmp_path / name, {"a.txt": "a.txt", "a.parquet": "row 2"}.get(name, "line 2")
    data = "".join(
        json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in (fits, long)
    ).encode()
    if name == "a.txt":
        path.write_text(long)
    elif name == "a.jsonl":
        path.write_bytes(data)
    elif name == "a.jsonl.gz":
        path.write_bytes(gzip.compress(data))
    elif name == "a.jsonl.zst":
        path.write_bytes(pyarrow.compress(data, codec="zstd", asbytes=True))
    else:
        parquet.write_table(pyarrow.table({"text": [fits, long]}), path)
    with pytest.raises(DataError, match=rf"{place}: .* at most 100 bytes.*Split.*{LONGEST}=N"):
        read(path)
    monkeypatch.setenv(LONGEST, "200")
    assert read(path)[-1] == long


def test_the_default_length_of_a_document(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"e" * (32 * MB + 1))
    with pytest.raises(DataError, match=r"a\.txt: .* 33,554,432 bytes"):
        prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out", quiet=True)
    (tmp_path / "a.txt").write_bytes(b"e" * (32 * MB))
    assert len(read(tmp_path / "a.txt")[0]) == 32 * MB


# ---- compressed files ----


def compress(path: Path, start: bytes, block: bytes) -> None:
    """Write 100 MB, compressed block by block."""
    codec = "gzip" if path.suffix == ".gz" else "zstd"
    with pyarrow.CompressedOutputStream(str(path), codec) as stream:
        stream.write(start)
        for _ in range(100):
            stream.write(block)


def repeated(value: str, rows: int) -> object:
    """A column of one string, stored once."""
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), [value])


def write_parquet(path: Path, column: object, **options: object) -> None:
    parquet.write_table(pyarrow.table({"text": column}), path, **options)


BOMBS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a.jsonl.zst": (
        lambda path: compress(path, b'{"text": "', b"x" * MB),
        rf"line 1: .*33,554,432 bytes.*{LONGEST}=N",
    ),
    "a.jsonl.gz": (
        lambda path: compress(path, b'{"text": "', b"x" * MB),
        rf"line 1: .*33,554,432 bytes.*{LONGEST}=N",
    ),
    "long.parquet": (
        lambda path: write_parquet(path, pyarrow.array(["x" * 60 * MB]), compression="zstd"),
        r"long\.parquet: .*must expand to at most",
    ),
    "page.parquet": (
        lambda path: write_parquet(
            path,
            pyarrow.array(["x" * MB] * 60),
            compression="gzip",
            use_dictionary=False,
            data_page_size=1 << 30,
        ),
        r"page\.parquet: .*must expand to at most",
    ),
}
READ_ALL = """
import json, sys
from gidd.data.corpora.formats import find_documents
from gidd.errors import DataError
messages = {}
for name in sys.argv[1:]:
    try:
        for documents in find_documents(name):
            for _ in documents.read(0, documents.count()):
                pass
    except DataError as error:
        messages[name] = str(error)
print(json.dumps(messages))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")
def test_small_files_of_much_text_are_refused_in_little_memory(tmp_path):
    for name, (write, _) in BOMBS.items():
        write(tmp_path / name)
        assert (tmp_path / name).stat().st_size < MB
    child = subprocess.run(
        [sys.executable, "-c", READ_ALL, *(str(tmp_path / name) for name in BOMBS)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30)),
    )
    messages = json.loads(child.stdout)
    for name, (_, message) in BOMBS.items():
        assert re.search(message, messages[str(tmp_path / name)])


def test_one_long_string_for_many_rows_is_read_a_few_rows_at_a_time(tmp_path):
    write_parquet(tmp_path / "a.parquet", repeated("x" * 3 * MB, 1000), compression="zstd")
    (part,) = find_documents(tmp_path / "a.parquet")
    assert [len(text) for text in part.read(998, 1000)] == [3 * MB] * 2


def test_more_rows_than_a_file_can_hold_are_refused_when_they_are_counted(tokenizer, tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, repeated("x", 2_000_000), compression="zstd")
    assert path.stat().st_size < 50_000
    with pytest.raises(DataError, match=r"a\.parquet, 2,000,000 rows: .*must expand"):
        prepare(path, tokenizer, tmp_path / "out", quiet=True)


KINDS = {
    "dictionary": {},
    "plain": {"use_dictionary": False},
    "delta": {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
    "brotli": {"compression": "brotli"},
    "small groups": {"row_group_size": 7},
}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (kind, values)
        for kind in KINDS
        for values in ("string", "large_string", "dictionary")
        if "delta" not in kind or values != "dictionary"  # which Arrow cannot read
    ],
)
def test_every_kind_of_parquet_is_read_by_ranges(tmp_path, kind, values):
    documents = [*texts(40), *["the same text"] * 20]
    array = pyarrow.array(documents, pyarrow.large_string() if "large" in values else None)
    if values == "dictionary":
        array = array.dictionary_encode()
    write_parquet(tmp_path / "a.parquet", array, **KINDS[kind])
    (part,) = find_documents(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == documents
    for start, stop in ((0, 0), (3, 4), (5, 41), (59, 60), (40, 99)):
        assert list(part.read(start, stop)) == documents[start:stop]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1, 2], 'a string in "text", got a column of int64'),
        ([["x"]], 'a string in "text", got a column of list<'),
        ([{"a": 1}], 'a string in "text", got a column of struct<'),
        (["x", None], r"row 2: .*a string in \"text\", got {'text': None}"),
    ],
)
def test_a_column_of_other_values_is_refused(tmp_path, column, message):
    write_parquet(tmp_path / "a.parquet", pyarrow.array(column))
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.parquet")


# ---- what is not a file ----


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has at most about 100 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(here)


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "named pipe"),
    "socket": (make_socket, "socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "character device"),
    "itself": (lambda path: path.symlink_to(path.name), "broken symbolic link"),
    "nothing": (lambda path: path.symlink_to("nothing"), "broken symbolic link"),
    "folder": (lambda path: path.symlink_to(path.parent), "folder"),
}


@pytest.mark.parametrize("ending", [".txt", ".parquet"])
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_not_a_file_is_named_and_not_opened(tokenizer, tmp_path, kind, ending):
    make, word = SPECIAL[kind]
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "a.txt").write_text("text")
    path = folder / f"b{ending}"
    make(path)
    expected = rf"b{re.escape(ending)} is a {word}, not a file"
    for source in (folder, f"file://{folder}"):
        with pytest.raises(DataError, match=expected):
            prepare([source], tokenizer, tmp_path / "out", quiet=True)
    if kind != "folder":
        for source in (path, f"file://{path}"):
            with pytest.raises(DataError, match=expected):
                prepare([source], tokenizer, tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_a_pipe_in_place_of_a_file_that_was_found(tmp_path):
    """A task may open a file hours after it was found."""
    path = tmp_path / "a.txt"
    path.write_text("text")
    (part,) = find_documents(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"a\.txt is a named pipe"):
        list(part.read(0, 1))


def test_a_substituted_process_is_a_pipe(tmp_path):
    """`gidd data prepare <(command)`"""
    reading, writing = os.pipe()
    try:
        with pytest.raises(DataError, match="is a named pipe, not a file"):
            find_documents(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names are bytes on Linux")
def test_a_name_that_is_not_utf8_is_refused_before_anything_is_written(tokenizer, tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    path = os.path.join(os.fsencode(folder), b"b\xff.txt")
    Path(os.fsdecode(path)).write_text("text")
    for source in (folder, Path(os.fsdecode(path)), f"file://{folder}"):
        with pytest.raises(DataError, match=r"b\\xff\.txt: .*UTF-8.*Rename"):
            prepare([source], tokenizer, tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names are bytes on Linux")
def test_the_output_folder_may_have_any_name(tokenizer, tmp_path, monkeypatch):
    from gidd.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    tokenizer.save("tokenizer")
    out = os.fsdecode(b"out\xff")
    words = ["data", "prepare", "a.txt", "--tokenizer", "tokenizer", "--out", out]
    monkeypatch.setattr(sys, "argv", ["gidd", *words])
    main(words)
    assert "out\\" in json.loads((tmp_path / out / "manifest.json").read_text())["command"]


def names(parts: list[Documents]) -> list[str]:
    return [Path(part.name).name for part in parts]


def test_links_to_files_are_followed_and_links_to_folders_are_not(tmp_path):
    """So that folders that contain each other do not loop."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "sources"
    elsewhere.mkdir()
    (folder / "inner.txt").mkdir(parents=True)  # a folder with the name of a text
    (elsewhere / "x.txt").write_text("linked")
    (folder / "a.txt").symlink_to(elsewhere / "x.txt")
    (folder / "inner.txt" / "b.txt").write_text("inner")
    (folder / "inner.txt" / "again").symlink_to(folder)
    (folder / "other").symlink_to(elsewhere)
    assert names(find_documents(folder)) == ["a.txt", "b.txt"]
    assert read(folder) == ["linked", "inner"]
