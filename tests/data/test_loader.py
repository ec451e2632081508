"""Order, shards and batches: pure functions of an integer, for any number of readers."""

import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from gidd.data.loading.loader import BatchSource, Loader, LoaderConfig, open_split
from gidd.data.loading.order import shuffled
from gidd.data.loading.shards import ShardSet, TokenShard, open_shard
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import train_tokenizer
from gidd.errors import ConfigError, DataError

PAD, VOCAB_SIZE = 99, 101


def write_shard(folder: Path, name: str, documents: list[np.ndarray]) -> Path:
    """A datatrove shard of the given documents."""
    ends = np.cumsum([len(d) for d in documents]).astype(np.uint64)
    np.concatenate([*documents, []]).astype(np.uint16).tofile(folder / name)
    ends.tofile(folder / f"{name}.index")
    return folder / name


def documents_of(seed: int, num: int, longest: int = 40) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, PAD, rng.integers(0, longest)) for _ in range(num)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> tuple[ShardSet, list[np.ndarray]]:
    """Three shards of 53 documents in all, some of them empty."""
    folder = tmp_path_factory.mktemp("shards")
    parts = [documents_of(k, num) for k, num in enumerate((20, 1, 32))]
    shards = [open_shard(write_shard(folder, f"{k}.ds", part)) for k, part in enumerate(parts)]
    return ShardSet(shards), [document for part in parts for document in part]


def test_a_shard_that_replaces_another_is_read(tmp_path):
    """Of the same name and size, in one process, such as data that are prepared again."""
    for document in (np.arange(5), np.arange(5, 10)):
        (tmp_path / "new").mkdir()
        write_shard(tmp_path / "new", "a.ds", [document])
        for file in (tmp_path / "new").iterdir():
            file.replace(tmp_path / file.name)
        (tmp_path / "new").rmdir()
        assert open_shard(tmp_path / "a.ds").tokens[0:5].tolist() == document.tolist()


SHUFFLES = pytest.mark.parametrize("shuffle", ["full", "blocks"])


def config(**changes) -> LoaderConfig:
    settings = {"global_batch": 24, "length": 16, "pad_id": PAD, "vocab_size": VOCAB_SIZE}
    settings["block_bytes"] = 200  # of the corpus above: 12 blocks
    return LoaderConfig(**(settings | changes))


# ------------------------------------------------------------------------------------------- order


@pytest.mark.slow
@given(st.integers(1, 3000), st.integers(0, 2**62), st.integers(0, 2**40))
def test_an_order_is_a_permutation(size, seed, epoch):
    order = shuffled(np.arange(size), size, seed, epoch)
    assert np.array_equal(np.sort(order), np.arange(size))


@given(st.integers(2**33, 2**61), st.integers(0, 99))
def test_orders_of_more_than_2_to_the_32_samples(size, seed):
    """Any place can be asked for; different places give different samples inside the range."""
    place = np.unique(np.random.default_rng(seed).integers(0, size, 500))
    order = shuffled(place, size, seed, 0)
    assert len(np.unique(order)) == len(place)
    assert order.min() >= 0 and order.max() < size
    # spread over all of it: the mean of uniforms, to 5 standard errors
    assert abs(order.mean() / size - 0.5) < 5 / (12 * len(order)) ** 0.5


def test_orders_differ_between_epochs_and_seeds():
    orders = {
        tuple(shuffled(np.arange(1000), 1000, seed, epoch).tolist())
        for seed in (0, 1, 2**40)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_a_shuffle_is_even():
    """Where sample pairs land: chi-square of (place mod 20, sample mod 20) and of neighbours."""
    size = 20_000
    order = shuffled(np.arange(size), size, 7, 0)
    for a, b in (
        (np.arange(size) % 20, order % 20),
        (order[:-1] * 20 // size, order[1:] * 20 // size),
    ):
        counts = np.bincount(a * 20 + b, minlength=400)
        chi_square = ((counts - len(a) / 400) ** 2 / (len(a) / 400)).sum()
        assert 250 < chi_square < 560  # 400 cells: mean 399, 5.7 standard deviations either way


# ------------------------------------------------------------------------------------ same samples


def samples_of_step(source_of, num_ranks: int, step: int) -> dict[str, np.ndarray]:
    parts = [source_of(rank, num_ranks)[step] for rank in range(num_ranks)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@SHUFFLES
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_global_steps_do_not_depend_on_the_number_of_ranks(corpus, num_ranks, shuffle):
    """Over two epochs: same samples in the same order; slices disjoint and complete."""
    shards, _ = corpus
    settings, steps = config(shuffle=shuffle), 2 * len(shards) // 24 + 1
    for step in range(steps):
        whole = BatchSource(shards, settings)[step]
        together = samples_of_step(
            lambda rank, ranks: BatchSource(shards, settings, rank, ranks), num_ranks, step
        )
        for name, array in whole.items():
            assert np.array_equal(together[name], array)
        assert np.array_equal(whole["sample_index"], np.arange(24) + 24 * step)


LOADERS = [("full", ranks, 0, range(ranks)) for ranks in (1, 3, 8)]
LOADERS += [("full", 3, 2, [2]), ("blocks", 4, 0, range(4)), ("blocks", 2, 2, [1])]
LOADERS += [
    pytest.param(shuffle, ranks, workers, range(ranks), marks=pytest.mark.long)
    for shuffle in ("full", "blocks")
    for ranks in (1, 2, 3, 4, 8)
    for workers in (0, 1, 2, 4)
    if workers or ranks in (2, 4)
]


@pytest.mark.slow
@pytest.mark.parametrize(("shuffle", "num_ranks", "num_workers", "ranks"), LOADERS)
def test_batches_do_not_depend_on_ranks_or_workers(corpus, shuffle, num_ranks, num_workers, ranks):
    """The real pipeline, its threads and processes, over two epochs."""
    shards, _ = corpus
    settings, steps = config(shuffle=shuffle), 2 * len(shards) // 24 + 1
    for rank in ranks:
        source = BatchSource(shards, settings, rank, num_ranks)
        loader = Loader(shards, settings, rank=rank, num_ranks=num_ranks, num_workers=num_workers)
        try:
            for step in range(steps):
                batch = next(loader)
                for name, array in source[step].items():
                    assert np.array_equal(getattr(batch, name).numpy(), array)
            assert loader.step == steps
        finally:
            loader.close()


@pytest.mark.slow
@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.integers(0, 12), st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 3, 5, 24]),
    st.integers(1, 24), st.integers(0, 2**40), st.sampled_from(["full", "blocks"]),
)  # fmt: skip
def test_resuming_on_another_number_of_ranks(corpus, stop, before, after, batch, seed, shuffle):
    """Stopped at a random step, resumed on other ranks: exactly the remaining samples."""
    shards, _ = corpus
    settings = config(global_batch=max(batch, before, after), seed=seed, shuffle=shuffle)
    steps = stop + 4
    seen = [
        samples_of_step(
            lambda rank, ranks: BatchSource(shards, settings, rank, ranks),
            before if step < stop else after,
            step,
        )
        for step in range(steps)
    ]
    for step in range(steps):
        whole = BatchSource(shards, settings)[step]
        assert all(np.array_equal(seen[step][name], whole[name]) for name in whole)
    index = np.concatenate([part["sample_index"] for part in seen])
    assert np.array_equal(index, np.arange(len(index)))


@SHUFFLES
def test_a_loader_resumes_at_its_step(corpus, shuffle):
    shards, settings = corpus[0], config(shuffle=shuffle)
    first = Loader(shards, settings)
    batches = [next(first) for _ in range(6)]
    again = Loader(shards, settings, start=3)
    assert again.step == 3
    for step in range(3, 6):
        for ours, expected in zip(next(again)[:3], batches[step][:3], strict=True):
            assert torch.equal(ours, expected)
    assert again.step == 6
    first.close()
    again.close()


def test_an_error_while_reading_ahead_is_raised(tmp_path):
    documents = [np.full(3, 7)] * 40 + [np.full(3, VOCAB_SIZE)]
    shards = ShardSet([open_shard(write_shard(tmp_path, "a.ds", documents))])
    loader = Loader(shards, config(global_batch=20, shuffle="none"))
    assert [next(loader).tokens[0, 0].item() for _ in range(2)] == [7, 7]
    with pytest.raises(DataError, match=r"a\.ds: document 40"):
        next(loader)
    loader.close()


def test_closing_a_loader_ends_its_thread(corpus):
    loader = Loader(corpus[0], config())
    next(loader)
    assert any(thread.name.startswith("gidd-loader") for thread in threading.enumerate())
    loader.close()
    assert not any(thread.name.startswith("gidd-loader") for thread in threading.enumerate())


WITHOUT_OPTIONAL_PACKAGES = """
import sys, dataclasses
for name in ("aiohttp", "datasets", "fsspec", "grain", "huggingface_hub", "pyarrow", "zstandard",
             "datatrove", "ray", "transformers", "tensorboard", "matplotlib"):
    sys.modules[name] = None
from gidd.data import CORPORA, prepare
from gidd.data.loading import Loader, LoaderConfig, open_split
from gidd.errors import ConfigError
corpus = dataclasses.replace(CORPORA["markov"], num_documents=20, length=16, held_out=2)
CORPORA["markov"] = corpus
made = prepare("markov", corpus.tokenizer(), sys.argv[1], quiet=True)
config = LoaderConfig(global_batch=4, length=16, pad_id=made.vocab.pad_id, vocab_size=66)
loader = Loader(open_split(sys.argv[1]), config)
assert next(loader).tokens.shape == (4, 16)
loader.close()
try:
    Loader(open_split(sys.argv[1]), config, num_workers=1)
except ConfigError as error:
    assert "gidd[data]" in str(error)
else:
    raise AssertionError
"""
IMPORT_GRAIN = """
import logging, sys
from gidd.data.loading import loader
loader.import_grain()
assert "grain" in sys.modules
logging.getLogger("absl").warning("another warning")
"""


def run_script(script: str, *arguments: Path) -> str:
    """Run in a new process and return standard error."""
    words = [sys.executable, "-c", script, *map(str, arguments)]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stderr


@pytest.mark.slow
def test_exact_sources_need_no_optional_package(tmp_path):
    run_script(WITHOUT_OPTIONAL_PACKAGES, tmp_path)


@pytest.mark.slow
def test_the_warning_about_jax_is_silenced_and_no_other():
    pytest.importorskip("grain", reason="part of gidd[data]")
    errors = run_script(IMPORT_GRAIN)
    assert "jax" not in errors
    assert "another warning" in errors


# --------------------------------------------------------------------------------------- crop, pad


@SHUFFLES
def test_every_epoch_has_every_document_once(corpus, shuffle):
    shards, documents = corpus
    source = BatchSource(shards, config(global_batch=1, length=64, shuffle=shuffle))
    for epoch in range(3):
        found = []
        for k in range(len(documents)):
            batch = source[epoch * len(documents) + k]
            found.append(batch["tokens"][0, batch["valid"][0]].tolist())
        assert sorted(found) == sorted(d.tolist() for d in documents)


def test_windows_and_padding(corpus):
    """Long documents: a window of the right text. Short ones: all of it, then padding."""
    shards, documents = corpus
    source = BatchSource(shards, config(global_batch=53))
    for step in range(20):
        batch = source[step]
        epoch, place = np.divmod(batch["sample_index"], 53)
        order = shuffled(place, 53, 0, int(epoch[0]))
        for row, number in enumerate(order):
            text, valid = batch["tokens"][row], batch["valid"][row]
            document = documents[number]
            assert valid.sum() == min(len(document), 16)
            assert (text[~valid] == PAD).all()
            starts = range(max(1, len(document) - 15))
            assert any(np.array_equal(text[valid], document[s : s + 16]) for s in starts)


@pytest.mark.slow
def test_every_window_is_seen_the_last_one_too(tmp_path):
    """A document of 20 tokens and windows of 16 have 5 beginnings, all equally likely."""
    shards = ShardSet([open_shard(write_shard(tmp_path, "a.ds", [np.arange(20)]))])
    source = BatchSource(shards, config(global_batch=100))
    begins = np.concatenate([source[step]["tokens"][:, 0] for step in range(50)])
    counts = np.bincount(begins, minlength=5)
    assert len(counts) == 5
    assert (abs(counts - 1000) < 5 * 800**0.5).all()


def test_a_prepared_folder_comes_back_as_batches(tmp_path):
    """From text files to batches and back: every document once, closed by end-of-text."""
    texts = [f"text number {k}: " + "ein Wort und noch eins, " * k for k in range(12)]
    for k, text in enumerate(texts):
        (tmp_path / f"{k:02}.txt").write_text(text)
    tokenizer = train_tokenizer(texts, 300)
    manifest = prepare([tmp_path], tokenizer, tmp_path / "out", validation=2, quiet=True)
    found = {}
    for split, expected in (("train", texts[:-2]), ("validation", texts[-2:])):
        shards = open_split(tmp_path / "out", split)
        settings = LoaderConfig(
            global_batch=len(shards),
            length=1000,
            pad_id=manifest.vocab.pad_id,
            vocab_size=manifest.vocab.size,
        )
        batch = BatchSource(shards, settings)[0]
        rows = [t[v].tolist() for t, v in zip(batch["tokens"], batch["valid"], strict=True)]
        assert all(row[-1] == tokenizer.end_id for row in rows)
        found[split] = sorted(tokenizer.decode(row[:-1]) for row in rows)
        assert found[split] == sorted(expected)
    with pytest.raises(DataError, match="has the splits train, validation, not test"):
        open_split(tmp_path / "out", "test")
    shard = tmp_path / "out" / manifest.splits["train"].shards[0].file
    write_shard(shard.parent, shard.name, [np.arange(3)])
    with pytest.raises(DataError, match="of another preparation"):
        open_split(tmp_path / "out")


# ------------------------------------------------------------------------------------------ shards


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.perf
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="resident memory is read from /proc"
)
def test_ten_million_documents_open_at_once(tmp_path):
    """In less than a second of CPU time, with less than one byte of memory a document."""
    num = 10**7
    (np.arange(1, num + 1, dtype=np.uint64) * 3).tofile(tmp_path / "a.ds.index")
    with (tmp_path / "a.ds").open("wb") as file:
        file.truncate(2 * 3 * num)  # a sparse file of zeros
    before, start = resident_bytes(), time.process_time()
    shards = ShardSet([open_shard(tmp_path / "a.ds")])
    seconds, grown = time.process_time() - start, resident_bytes() - before
    assert len(shards) == num
    assert seconds < 1
    assert grown < num
    assert BatchSource(shards, config())[10**6]["valid"].sum() == 3 * 24


@pytest.mark.slow
def test_more_shards_than_open_files(tmp_path):
    """Maps come and go: a thousand shards need no thousand open files, here with a limit of 700."""
    resource = pytest.importorskip("resource", reason="limits of open files are a Unix matter")
    files = [write_shard(tmp_path, f"{k}.ds", [np.full(3, k % 90)]) for k in range(1000)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (700, limits[1]))
    try:
        shards = ShardSet([open_shard(file) for file in files])
        batch = BatchSource(shards, config(global_batch=1000, shuffle="none"))[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert np.array_equal(batch["tokens"][:, 0], np.arange(1000) % 90)


@SHUFFLES
def test_workers_are_sent_names_not_tokens(tmp_path, shuffle):
    file = write_shard(tmp_path, "a.ds", [np.zeros(100_000)])
    source = BatchSource(ShardSet([open_shard(file)]), config(shuffle=shuffle))
    source[0]
    assert len(pickle.dumps(source)) < 3000


DAMAGE = {
    "missing tokens": lambda f: f.unlink(),
    "missing index": lambda f: f.with_name(f.name + ".index").unlink(),
    "half a token": lambda f: f.write_bytes(f.read_bytes()[:-1]),
    "truncated tokens": lambda f: f.write_bytes(f.read_bytes()[:-10]),
    "empty tokens": lambda f: f.write_bytes(b""),
    "empty index": lambda f: f.with_name(f.name + ".index").write_bytes(b""),
    "truncated index": lambda f: cut(f.with_name(f.name + ".index"), 8),
    "half an index entry": lambda f: cut(f.with_name(f.name + ".index"), 3),
    "index of another shard": lambda f: np.array([5, 9], np.uint64).tofile(f"{f}.index"),
    "more tokens than documents": lambda f: f.write_bytes(f.read_bytes() + b"\x01\x00"),
}


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-num_bytes])


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("seed", range(2))
def test_damaged_shards_are_refused_when_opened(tmp_path, kind, seed):
    file = write_shard(tmp_path, "a.ds", [np.arange(3), *documents_of(seed, 20), np.arange(4)])
    DAMAGE[kind](file)
    with pytest.raises(DataError, match=r"a\.ds") as caught:
        open_shard(file)
    assert "gidd data prepare" in str(caught.value)


@SHUFFLES
@pytest.mark.parametrize("entry", range(3))
def test_a_damaged_index_is_refused_when_read(tmp_path, entry, shuffle):
    """Document ends that go back or beyond the tokens."""
    file = write_shard(tmp_path, "a.ds", [np.arange(5)] * 6)
    for value in (0, 2**40):
        ends = np.fromfile(f"{file}.index", np.uint64)
        ends[entry + 1] = value
        ends.tofile(tmp_path / "a.ds.index")
        source = BatchSource(ShardSet([open_shard(file)]), config(global_batch=6, shuffle=shuffle))
        with pytest.raises(DataError, match=r"a\.ds.*index is damaged"):
            source[0]


def test_ids_outside_the_vocabulary_are_refused(tmp_path):
    file = write_shard(tmp_path, "a.ds", [np.array([1, 2, 30_000])])
    with pytest.raises(DataError, match=r"a\.ds: document 0 .* outside the vocabulary of size 101"):
        BatchSource(ShardSet([open_shard(file)]), config())[0]


def test_foreign_files_are_refused(tmp_path):
    for name in ("a.txt", "b.bin", "c.npy"):
        (tmp_path / name).write_bytes(b"no shard")
        with pytest.raises(DataError, match=rf"{name}\.index does not exist"):
            open_shard(tmp_path / name)


def test_wrong_settings_are_refused_all_at_once(corpus):
    with pytest.raises(ConfigError) as caught:
        config(global_batch=0, length=0, pad_id=500)
    for field in ("global_batch", "length", "pad_id"):
        assert field in str(caught.value)
    for rank, num_ranks in ((0, 25), (2, 2), (-1, 2)):
        with pytest.raises(ConfigError, match="rank"):
            BatchSource(corpus[0], config(), rank, num_ranks)
    with pytest.raises(DataError, match="no document in the 0 shards"):
        ShardSet([])
    empty = np.zeros(0, np.uint64)
    with pytest.raises(DataError, match="no document"):
        ShardSet([TokenShard("a.ds", empty, empty)])
