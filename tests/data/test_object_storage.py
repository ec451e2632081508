"""A real S3 server on loopback, and faults in between: the same batches as from local files."""

import json
import subprocess
import sys
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.object_storage import (
    Proxy,
    environment,
    forget_connections,
    s3_server,
    synthetic_folder,
    upload,
)
from support.training_runs import final_tensors, reported, tiny_run, train_here

from gidd.cli import main
from gidd.data import store
from gidd.data.loading.loader import BatchSource, LoaderConfig, open_split
from gidd.data.preparation.prepare import prepare
from gidd.data.store import RemoteFile
from gidd.data.tokenizers import byte_level
from gidd.errors import ConfigError, DataError

pytest.importorskip("s3fs", reason="part of gidd[s3]")
pytest.importorskip("moto.server", reason="a development requirement")

CONFIG = LoaderConfig(
    global_batch=32, length=128, pad_id=257, vocab_size=259, shuffle="blocks", block_bytes=1 << 20
)
FAULTS = ("503", "cut", "", "slow", "")


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """A prepared folder, its URL and the port of the server."""
    folder = synthetic_folder(tmp_path_factory.mktemp("prepared") / "data", 2, 2500)
    with s3_server() as port:
        yield folder, upload(folder, port, "data"), port


@pytest.fixture
def proxy(storage, tmp_path, monkeypatch):
    proxy = Proxy(storage[2])
    for name, value in environment(proxy.port, tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(store, "_SECONDS", 0.01)
    forget_connections()
    yield proxy
    proxy.close()


def require_equal_epoch(folder, url: str, **changes) -> BatchSource:
    config = replace(CONFIG, **changes)
    local, remote = (BatchSource(open_split(where), config) for where in (folder, url))
    for step in range(remote.orders[0].size // 32 + 2):  # into the next epoch
        expected = local[step]
        for name, array in remote[step].items():
            assert np.array_equal(array, expected[name])
    remote.close()
    return remote


@pytest.mark.slow
def test_batches_are_those_of_local_files_at_two_requests_a_block(storage, proxy):
    """500 documents a block: 4 requests for 1,000 documents, and none for those in the cache."""
    folder, url, _ = storage
    source = require_equal_epoch(folder, url)
    reads = [line for line in proxy.requests if ".ds" in line]
    assert len(reads) == 2 * source.orders[0].num_blocks
    assert len(reads) * 100 <= len(open_split(folder))
    proxy.requests.clear()
    require_equal_epoch(folder, url)
    assert not [line for line in proxy.requests if ".ds" in line]


@pytest.mark.slow
@pytest.mark.parametrize("packing", [pytest.param(False, marks=pytest.mark.long), True])
def test_batches_with_faults(storage, proxy, packing):
    """Slow answers, 503, cut connections; listings are old, and never asked for."""
    folder, url, _ = storage
    proxy.fault = lambda count, path: FAULTS[count % len(FAULTS)]
    proxy.listing = {"/corpus": b"<ListBucketResult></ListBucketResult>"}
    require_equal_epoch(folder, url, packing=packing)
    assert not [line for line in proxy.requests if "list-type" in line]


def test_a_store_that_does_not_answer_ends_with_its_name(storage, proxy, monkeypatch):
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    forget_connections()
    proxy.fault = lambda count, path: "503"
    with pytest.raises(DataError, match=r"s3://corpus/data/manifest\.json.*attempt 6 of 6"):
        open_split(storage[1])
    proxy.fault = lambda count, path: ""
    proxy.requests.clear()
    with pytest.raises(DataError, match=r"s3://corpus/nothing/manifest\.json"):
        open_split("s3://corpus/nothing")
    assert len(proxy.requests) < 6  # what does not exist is not tried again


def test_an_object_of_another_size_is_refused_by_name(storage, proxy):
    file = RemoteFile(f"{storage[1]}/train/00000.ds", "0" * 64, np.dtype(np.uint16), 1 << 40)
    with pytest.raises(DataError, match=r"train/00000\.ds.*got \d+ bytes"):
        file.read(2_000_000, 3_000_000)


def read_blocks(url: str, start: int) -> bytes:
    file = RemoteFile(f"{url}/train/00000.ds", "a" * 64, np.dtype(np.uint16), 2_000_000)
    parts = [file.read(at, at + 2500)[:] for at in range(start, start + 100_000, 2500)]
    return np.concatenate(parts).tobytes()


def test_the_cache_is_checked_bounded_and_shared(storage, proxy, tmp_path, monkeypatch):
    folder, url, _ = storage
    expected = np.fromfile(folder / "train/00000.ds", np.uint16)
    with get_context("fork").Pool(3) as pool:  # the same ranges at the same time
        results = pool.starmap(read_blocks, [(url, 0)] * 3)
    assert results == [expected[:100_000].tobytes()] * 3
    assert len(proxy.requests) == 40
    cache = tmp_path / "cache"
    for damaged in list(cache.glob("?" * 64))[:7]:
        damaged.write_bytes(damaged.read_bytes()[:-40] + bytes(40))
    store._valid.clear()
    assert read_blocks(url, 0) == results[0]
    assert len(proxy.requests) == 47
    monkeypatch.setenv("GIDD_MAX_CACHE_BYTES", str(100_000))
    store._left.clear()
    for start in range(0, 500_000, 100_000):
        assert read_blocks(url, start) == expected[start : start + 100_000].tobytes()
        sizes = [file.stat().st_size for file in cache.iterdir() if file.is_file()]
        assert not start or sum(sizes) <= 100_000


def test_settings_of_a_url_are_refused_by_name(storage):
    words = ["train", "nano", "--dry-run", "--data.folder"]
    with pytest.raises(SystemExit):
        main([*words, "s3://corpus/data"])
    for url, field in ((storage[1], "shuffle"), ("s3://me:secret@corpus/data", "folder")):
        run = tiny_run(url)
        with pytest.raises(ConfigError, match=rf"data\.{field}") as caught:
            run.check()
        assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_documents_are_prepared_from_a_bucket(storage, proxy, tmp_path):
    """With faults: the shards of local files."""
    (tmp_path / "texts").mkdir()
    for name in ("a", "b"):
        lines = [json.dumps({"text": f"document {k} of {name}. " * 20}) for k in range(300)]
        (tmp_path / "texts" / f"{name}.jsonl").write_text("\n".join(lines))
    url = upload(tmp_path / "texts", storage[2], "texts")
    forget_connections()
    proxy.fault = lambda count, path: FAULTS[count % len(FAULTS)]
    for source, out in ((url, "remote"), (tmp_path / "texts", "local")):
        prepare([source], byte_level(), tmp_path / out, quiet=True)
    files = sorted((tmp_path / "local").glob("*/*.ds*"))
    assert len(files) > 2
    for file in files:
        copy = tmp_path / "remote" / file.relative_to(tmp_path / "local")
        assert copy.read_bytes() == file.read_bytes()


def test_a_cache_that_is_too_small_is_refused(storage, proxy, monkeypatch):
    monkeypatch.setenv("GIDD_MAX_CACHE_BYTES", "1000000")
    with pytest.raises(
        ConfigError, match=r"GIDD_MAX_CACHE_BYTES must be at least [\d,]+ .* got 1,"
    ):
        BatchSource(open_split(storage[1]), CONFIG)


@pytest.mark.slow
def test_weights_are_those_of_a_training_from_local_files(storage, proxy, tmp_path):
    folder, url, _ = storage
    proxy.fault = lambda count, path: FAULTS[count % len(FAULTS)]
    runs = [tiny_run(where, steps=6) for where in (folder, url)]
    runs = [replace(run, data=replace(run.data, shuffle="blocks")) for run in runs]
    for name, run in zip(("local", "remote"), runs, strict=True):
        assert train_here(run, tmp_path / name)
    assert reported(tmp_path / "remote") == reported(tmp_path / "local")
    ours, theirs = (final_tensors(runs[0], tmp_path / name) for name in ("remote", "local"))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.long
def test_two_ranks_under_torchrun(storage, proxy, tmp_path):
    """The real command, gloo, 2 ranks, with faults: metrics and weights of local files."""
    folder, url, _ = storage
    proxy.fault = lambda count, path: FAULTS[count % len(FAULTS)]
    sizes = "--data.length 32 --train.global-batch 8 --train.generate-samples 0 --train.no-autocast"
    sizes += " --train.evaluate-samples 8 --train.save-every 5 --device cpu --data.shuffle blocks"
    sizes += " --backbone.width 32 --backbone.num-layers 1 --backbone.num-heads 2"

    def train(out: str, where: str, steps: int = 10) -> None:
        words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        words += ["-m", "gidd.cli", "train", "nano", "--data.folder", where, *sizes.split()]
        words += ["--out", str(tmp_path / out), "--train.steps", str(steps), "--quiet"]
        subprocess.run([sys.executable, *words], check=True)

    train("remote", url)
    train("local", str(folder))
    assert reported(tmp_path / "remote") == reported(tmp_path / "local")
    names = ("remote", "local")
    ours, theirs = ((tmp_path / name / "checkpoints/step-000000010") for name in names)
    files = list(theirs.glob("*.safetensors"))
    assert files
    for file in files:
        ours_of, theirs_of = load_file(ours / file.name), load_file(file)
        assert all(torch.equal(ours_of[name], tensor) for name, tensor in theirs_of.items())
