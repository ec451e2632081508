"""`gidd sample --out`: the samples of the pipeline, resumed after any kill, each index once."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.small_model import write_model

from gidd.cli import main
from gidd.common.actors import ActorOptions
from gidd.common.files import file_lock
from gidd.errors import ConfigError, DataError
from gidd.pipeline.load import from_pretrained
from gidd.pipeline.options import SamplingOptions
from gidd.runs.bulk import BulkJob, iterate_samples, sample_to_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("bulk") / "model")


@pytest.fixture(scope="module")
def job(model) -> BulkJob:
    sampling = SamplingOptions(steps=2, temperature=0.9, sampler_options={})
    sizes = {"num_samples": 14, "length": 8, "batch_size": 4, "block_size": 4}
    return BulkJob(model=str(model), device="cpu", sampling=sampling, seed=3, **sizes)


@pytest.fixture(scope="module")
def finished(job, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("bulk") / "finished"
    sample_to_folder(job, out)
    return out


@pytest.fixture
def out(finished, tmp_path) -> Path:
    """A copy of a finished folder."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def block_files(folder: Path) -> list[Path]:
    return sorted((folder / "samples").iterdir())


def test_the_samples_are_those_of_the_pipeline(job, model, tmp_path):
    some = replace(job, start_index=5, num_samples=6, prompt="or", suffix="n", threads=2)
    counts = []
    sample_to_folder(some, tmp_path / "out", on_block=lambda *count: counts.append(count))
    pipe = from_pretrained(model, device="cpu", batch_size=4)
    expected = pipe.generate(n=11, prompt="or", suffix="n", length=8, seed=3, options=job.sampling)
    found = list(iterate_samples(tmp_path / "out"))
    assert [sample.id for sample in found] == list(range(5, 11))
    for sample in found:
        generation = expected[sample.id]
        assert sample[1:] == (generation.text, generation.tokens, generation.forward_passes)
    assert counts == [(0, 6), (4, 6), (6, 6)]
    names = [path.name for path in block_files(tmp_path / "out")]
    assert names == ["00000005-00000009.jsonl", "00000009-00000011.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.long)])
def test_killed_at_any_moment_and_resumed_it_is_the_undisturbed_set(kills):
    words = ["--samples", "80", "--kills", f"{kills}", "--json"]
    command = [sys.executable, "-m", "support.kill_bulk", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["each_index_once"] and result["same_bytes"]
    assert result["leftovers"] == []
    assert kills == 1 or 0 < result["blocks_at_kills"][-1] < 20


@pytest.mark.slow
def test_an_interruption_keeps_finished_blocks(job, finished, tmp_path):
    def interrupt(done, total):
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample_to_folder(job, tmp_path / "out", on_block=interrupt)
    assert len(block_files(tmp_path / "out")) == 2
    with pytest.raises(DataError, match="00000008-00000012.jsonl is missing"):
        next(iterate_samples(tmp_path / "out"))
    sample_to_folder(job, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(finished)


@pytest.mark.parametrize("kind", ["cut", "last line", "order", "no object"])
def test_a_damaged_shard_is_refused_and_sampled_again_if_deleted(job, finished, out, kind):
    path = block_files(out)[1]
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = {
        "cut": b"".join(lines)[:-20],
        "last line": b"".join(lines[:-1]),
        "order": b"".join([*lines[1:], lines[0]]),
        "no object": lines[0] + b"[]\n" + b"".join(lines[2:]),
    }
    path.write_bytes(damaged[kind])
    with pytest.raises(DataError, match="00000004-00000008.jsonl is damaged"):
        list(iterate_samples(out))
    path.unlink()
    sample_to_folder(job, out)
    assert contents(out) == contents(finished)


def test_tf32_is_for_the_actors_and_not_for_this_process(job, tmp_path, monkeypatch):
    """This process describes the model on its CPU, which has no tf32."""
    monkeypatch.setattr("gidd.runs.bulk.map_on_ray", lambda *arguments: [])
    on_ray = replace(job, device="cuda", precision="tf32")
    folder = sample_to_folder(on_ray, tmp_path / "out", actors=ActorOptions(num_gpus=1))
    assert folder.settings["precision"] == "tf32"


def test_other_settings_are_refused_by_name(job, out):
    before = contents(out)
    sampling = SamplingOptions(steps=3, temperature=0.9)
    for changes, message in [
        ({"seed": 7}, "seed: 3, now 7"),
        ({"sampling": sampling}, "sampling.steps: 2, now 3"),
        ({"batch_size": 1}, "batch_size: 4, now 1"),
        ({"precision": "bf16"}, "precision: 'float32', now 'bf16'"),
        ({"block_size": 5}, "block_size: 4, now 5"),
        ({"threads": 2}, "threads: 1, now 2"),
    ]:
        with pytest.raises(ConfigError, match=message):
            sample_to_folder(replace(job, **changes), out)
    with pytest.raises(ConfigError, match="num_samples must be at least 14"):
        sample_to_folder(replace(job, num_samples=13), out)
    assert contents(out) == before


def test_another_model_is_refused_by_its_sha256(job, out, tmp_path):
    other = write_model(tmp_path / "model", p_uniform=0.0)
    with pytest.raises(ConfigError, match="schedule.kind: 'hybrid', now 'masked'"):
        sample_to_folder(replace(job, model=str(other)), out)


@pytest.mark.slow
def test_more_samples_are_added(job, out, tmp_path):
    more = replace(job, num_samples=19)
    before = [(path, path.stat().st_mtime_ns) for path in block_files(out)[:3]]
    sample_to_folder(more, out)
    sample_to_folder(more, tmp_path / "at once")
    assert contents(out) == contents(tmp_path / "at once")
    assert [(path, path.stat().st_mtime_ns) for path in block_files(out)[:3]] == before
    assert [sample.id for sample in iterate_samples(out)] == list(range(19))


def test_an_incomplete_last_block_that_came_back_is_not_read(job, out, tmp_path):
    """As left by an actor of a killed command that ends late."""
    late = shutil.copy(block_files(out)[3], tmp_path)
    sample_to_folder(replace(job, num_samples=16), out)
    shutil.copy(late, out / "samples")
    assert [sample.id for sample in iterate_samples(out)] == list(range(16))


def test_a_mistake_before_the_first_block_can_be_corrected(job, finished, tmp_path):
    with pytest.raises(DataError, match="33"):
        sample_to_folder(replace(job, length=33), tmp_path / "out")
    sample_to_folder(job, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(finished)


def test_a_folder_of_something_else_is_refused_and_not_touched(job, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="must be a new or empty folder"):
        sample_to_folder(job, tmp_path)
    assert contents(tmp_path) == {"notes.txt": b"mine"}


def test_a_folder_that_is_being_written_is_refused(job, out):
    with (
        file_lock(out / ".lock", DataError("locked by the test")),
        pytest.raises(DataError, match="another process"),
    ):
        sample_to_folder(job, out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "gidd samples 9"}, "format"),
        ({"num_samples": 0}, "manifest.json"),
        ({"settings": []}, "manifest.json"),
        ({"settings": {"start_index": 0, "block_size": 0}}, "manifest.json"),
        ({"num_samples": 2**62}, "00000012-00000016.jsonl is missing"),
    ],
)
def test_an_invalid_manifest_is_refused(out, change, message):
    file = out / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match=message):
        list(iterate_samples(out))


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(DataError, match="manifest.json"):
        list(iterate_samples(tmp_path))


def run(*words: object) -> None:
    main(["sample", *map(str, words)])


@pytest.mark.slow
def test_the_command_writes_resumes_and_adds(job, finished, model, tmp_path, capfd):
    words = [model, "--out", tmp_path / "out", "--length", 8, "--steps", 2, "--seed", 3]
    words += ["--temperature", 0.9, "--batch-size", 4, "--samples-per-file", 4, "--device"]
    run(*words, "cpu", "--num-samples", 7)
    assert capfd.readouterr().out == f"{tmp_path / 'out'}: 7 samples in 2 files\n"
    run(*words, "cpu", "--num-samples", 14)
    captured = capfd.readouterr()
    assert captured.out == f"{tmp_path / 'out'}: 14 samples in 4 files\n"
    assert "4 of 14 samples are finished" in captured.err
    assert contents(tmp_path / "out") == contents(finished)
