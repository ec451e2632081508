"""Evaluations: every sample once, on any number of ranks, deterministic."""

from dataclasses import replace

import pytest
import torch
from support.ranks import run_ranks
from support.training_runs import reported, speeches, tiny_run, train_here

import gidd.runs.fit
from gidd.data.loading.loader import open_split
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer
from gidd.runs.data import loader_config
from gidd.runs.evaluate import build_evaluation, validation_samples
from gidd.training.build import build_state
from gidd.training.parallel import FSDP
from gidd.training.watchdog import Watchdog
from gidd.training.world import open_world


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), vocab_size=300, documents=20)


def test_samples_are_the_first_of_the_split(data):
    run = tiny_run(data, global_batch=4)
    split, config = open_split(data), loader_config(run, Tokenizer.load(data))
    batch, documents = validation_samples(split, config, 40)
    assert batch.sample_index.tolist() == list(range(40))
    assert len(split) == 16 == len(documents[:16].unique()) == len(documents.unique())


@pytest.mark.slow
@pytest.mark.parametrize("global_batch", [2, 4])
def test_ranks_with_fewer_samples_than_others_do_not_hang(global_batch, data, tmp_path):
    run = tiny_run(data, steps=1, global_batch=global_batch, evaluate_samples=5, generate_samples=1)
    run_ranks(train_here, 1, run, tmp_path / "alone")
    run_ranks(train_here, 2, run, tmp_path / "sharded", FSDP())
    alone, sharded = (reported(tmp_path / name)[-1] for name in ("alone", "sharded"))
    assert alone["kind"] == sharded["kind"] == "evaluation"
    assert sharded["nelbo"] == pytest.approx(alone["nelbo"], rel=1e-4)
    assert sharded["nelbo_se"] == pytest.approx(alone["nelbo_se"], rel=1e-3)


@pytest.mark.slow
def test_dropout_is_off_in_an_evaluation(data):
    run = tiny_run(data, generate_samples=2)
    run = replace(run, backbone=run.backbone.changed(dropout=0.5))
    tokenizer = Tokenizer.load(data)
    with open_world("cpu") as world, Watchdog(world, 60).on() as watchdog:
        state = build_state(run, tokenizer.vocab, world)
        for parameter in state.model.parameters():  # the head of a new model is zero
            torch.nn.init.normal_(parameter, std=0.3)
        evaluate = build_evaluation(run, open_split(data, "validation"), tokenizer, world, watchdog)
        assert evaluate(state) == evaluate(state)
        assert state.model.training


@pytest.mark.slow
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
