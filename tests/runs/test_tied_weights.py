"""A head that is the embedding stays so: on leaving the meta device, sharded, saved and loaded."""

from dataclasses import replace

import pytest
import torch
from support.ranks import run_ranks
from support.training_runs import losses, speeches, tiny_run, train_here

from gidd.common.config.components import component
from gidd.models import load, save
from gidd.runs.export import export
from gidd.training.parallel import FSDP
from gidd.training.world import open_world

TIED = component(
    "backbone",
    "bidirectional",
    width=32,
    mlp_width=64,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    rotary_base=1e4,
    norm_eps=1e-5,
    tied_head=True,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = speeches(tmp_path_factory.mktemp("data"), vocab_size=300, documents=20)
    return replace(tiny_run(data, steps=10), backbone=TIED)


@pytest.fixture(scope="module")
def trained(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    assert train_here(run, out)
    return out


@pytest.mark.slow
def test_a_tied_head_is_trained_saved_and_loaded(trained, tmp_path):
    with open_world("cpu") as world:
        export(trained, tmp_path / "model", world)
    loaded = load(tmp_path / "model")
    network = loaded.denoiser.backbone
    assert network.head.weight is network.embed_tokens.weight
    save(tmp_path / "again", loaded.denoiser, loaded.schedule)
    first, second = (tmp_path / name / "model.safetensors" for name in ("model", "again"))
    assert first.read_bytes() == second.read_bytes()
    assert losses(trained)[-1] < losses(trained)[0]


@pytest.mark.slow
def test_a_tied_head_stays_tied_when_it_is_sharded(run, trained, tmp_path):
    run_ranks(train_here, 2, run, tmp_path, FSDP())
    torch.testing.assert_close(losses(tmp_path), losses(trained), rtol=1e-4, atol=0)
