"""Runs on a mixture of prepared folders: exact resume, and other weights from a step on."""

from dataclasses import replace

import pytest
import torch
from runs.test_resume import kill_after
from support.ranks import run_ranks
from support.training_runs import final_tensors, reported, tiny_run, train_here

from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import byte_level, train_characters
from gidd.errors import ConfigError, DataError
from gidd.training.recorded import newest_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two prepared folders, of 30 and 11 documents."""
    folder = tmp_path_factory.mktemp("sources")
    for name, count in (("wiki", 30), ("code", 11)):
        (folder / f"{name}.txts").mkdir()
        for k in range(count):
            (folder / f"{name}.txts" / f"{k:02}.txt").write_text(f"{name} {k} " * (1 + k % 4))
        prepare([folder / f"{name}.txts"], byte_level(), folder / name, validation=1, quiet=True)
    return folder


def mixed(folders, *weights: str, **changes):
    run = tiny_run(folders / "wiki", save_every=10, **changes)
    sources = tuple(
        f"{folders / name}*{w}" for name, w in zip(("wiki", "code"), weights, strict=True)
    )
    return replace(run, data=replace(run.data, folder=None, sources=sources))


def require_equal(run, ours, theirs) -> None:
    assert reported(ours) == reported(theirs)
    expected = final_tensors(
        replace(run, data=replace(run.data, folder=run.data.prepared[0])), theirs
    )
    found = final_tensors(replace(run, data=replace(run.data, folder=run.data.prepared[0])), ours)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.slow
def test_weights_change_when_a_run_is_resumed(folders, tmp_path):
    """Killed and resumed with other weights: as if they had been given from the start."""
    later = mixed(folders, "3,10:1", "1", steps=20)
    run_ranks(train_here, 1, later, tmp_path / "whole")
    kill_after(mixed(folders, "3", "1", steps=20), tmp_path / "killed", 10)
    for weights in (("1", "1"), ("3,9:1", "1")):
        with pytest.raises(ConfigError, match=r"data\.sources: weights may change from step 10 on"):
            train_here(mixed(folders, *weights, steps=20), tmp_path / "killed")
    run_ranks(train_here, 1, later, tmp_path / "killed")
    require_equal(later, tmp_path / "killed", tmp_path / "whole")
    assert newest_run(tmp_path / "killed" / "checkpoints").data.sources == later.data.sources
    last = [line for line in reported(tmp_path / "killed") if line["kind"] == "training"][-1]
    assert last["epochs/0"] == (6 * 10 + 4 * 10) / 29
    assert last["epochs/1"] == (2 * 10 + 4 * 10) / 10


def test_folders_of_another_tokenizer_are_refused(folders, tmp_path):
    prepare(
        [folders / "code.txts"],
        train_characters(["code 0123456789 "]),
        tmp_path / "chars",
        quiet=True,
    )
    run = mixed(folders, "3", "1")
    sources = (run.data.sources[0], f"{tmp_path / 'chars'}*1")
    with pytest.raises(DataError, match="chars: the tokenizer of"):
        train_here(replace(run, data=replace(run.data, sources=sources)), tmp_path / "out")
    missing = (run.data.sources[0], f"{tmp_path / 'nothing'}*1")
    with pytest.raises(DataError, match="nothing does not exist"):
        train_here(replace(run, data=replace(run.data, sources=missing)), tmp_path / "out")
