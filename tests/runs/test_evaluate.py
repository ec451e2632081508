"""Evaluations: every sample once, on any number of ranks, deterministic."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.ranks import run_ranks
from support.training_runs import reported, speeches, tiny_run, train_here

import gidd.runs.fit
from gidd.data.loading.loader import open_split
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer
from gidd.runs.data import loader_config
from gidd.runs.evaluate import build_evaluation, validation_batches
from gidd.training.build import build_state
from gidd.training.parallel import FSDP
from gidd.training.watchdog import Watchdog
from gidd.training.world import open_world


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), vocab_size=300, documents=20)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("num_samples", [5, 7, 16])
@pytest.mark.parametrize(("global_batch", "accumulate"), [(5, 1), (16, 1), (16, 3), (64, 2)])
def test_ranks_have_equally_many_batches_and_every_sample_occurs_once(
    num_ranks, num_samples, global_batch, accumulate, data
):
    """Ranks of a sharded model wait for each other in every forward pass."""
    run = tiny_run(data, global_batch=global_batch)
    shards, config = open_split(data), loader_config(run, Tokenizer.load(data))
    worlds = [SimpleNamespace(rank=rank, size=num_ranks) for rank in range(num_ranks)]
    parts = [
        list(validation_batches(shards, config, num_samples, accumulate, world)) for world in worlds
    ]
    assert len({len(part) for part in parts}) == 1
    seen = [batch.sample_index.tolist() for part in parts for batch in part]
    assert [index for batch in seen for index in batch] == list(range(num_samples))
    micro_batch = global_batch // num_ranks // accumulate
    # a rank that trains on single samples may evaluate two: no activations are kept here
    assert all(0 < len(batch) <= max(2, micro_batch) for batch in seen)


@pytest.mark.parametrize("global_batch", [2, 4])
def test_ranks_with_fewer_samples_than_others_do_not_hang(global_batch, data, tmp_path):
    run = tiny_run(data, steps=1, global_batch=global_batch, evaluate_samples=5, generate_samples=1)
    run_ranks(train_here, 1, run, tmp_path / "alone")
    run_ranks(train_here, 2, run, tmp_path / "sharded", FSDP())
    alone, sharded = (reported(tmp_path / name)[-1] for name in ("alone", "sharded"))
    assert alone["kind"] == sharded["kind"] == "evaluation"
    assert sharded["nelbo"] == pytest.approx(alone["nelbo"], rel=1e-4)
    assert sharded["share_masked"] == alone["share_masked"]


def test_dropout_is_off_in_an_evaluation(data):
    run = tiny_run(data, generate_samples=2)
    run = replace(run, backbone=run.backbone.changed(dropout=0.5))
    tokenizer = Tokenizer.load(data)
    with open_world("cpu") as world, Watchdog(world, 60).on() as watchdog:
        state = build_state(run, tokenizer.vocab, world)
        for parameter in state.objective.parameters():  # the head of a new model is zero
            torch.nn.init.normal_(parameter, std=0.3)
        evaluate = build_evaluation(run, open_split(data, "validation"), tokenizer, world, watchdog)
        assert evaluate(state) == evaluate(state)
        assert state.objective.training


@pytest.mark.parametrize("validation", [0, 1])
def test_a_missing_validation_split_is_reported(validation, data, tmp_path, monkeypatch):
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    for file in files:
        file.write_text("We the people. " * 20)
    prepare(files, Tokenizer.load(data), tmp_path / "data", validation=validation, quiet=True)
    notes = []
    monkeypatch.setattr(gidd.runs.fit.Report, "note", lambda self, text: notes.append(text))
    train_here(tiny_run(tmp_path / "data", steps=1), tmp_path / "run")
    warnings = [note for note in notes if "--data.validation" in note]
    assert len(warnings) == (validation == 0)
