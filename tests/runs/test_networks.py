"""Networks through real runs: train, shard, save, load, sample, correct; LoRA."""

import json
from dataclasses import replace

import pytest
import torch
from support.cases import few
from support.ranks import run_ranks
from support.training_runs import losses, speeches, tiny_run, train_here

import gidd
from gidd.common.config.components import Component
from gidd.data.tokenizers import Tokenizer
from gidd.errors import CheckpointError
from gidd.models.lora import LoraConfig
from gidd.models.networks import blocks_of
from gidd.runs.export import export
from gidd.runs.fit import fit
from gidd.training.build import GivenComponents, build_state
from gidd.training.parallel import DDP, FSDP
from gidd.training.world import open_world

pytest.importorskip("transformers")
NETWORKS = {
    "llama": gidd.component("backbone", "llama-bidirectional", width=32, num_layers=2, num_heads=2),
    "modernbert": gidd.component("backbone", "masked-lm", width=32, num_layers=2, num_heads=2),
    "scaled": gidd.component("backbone", "scaled", width=32, num_layers=2, num_heads=2),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), documents=20)


@pytest.fixture(params=[20, pytest.param(50, marks=pytest.mark.long)])
def steps(request):
    return request.param


def run_of(data, backbone, steps, **changes):
    run = tiny_run(data, steps=steps, global_batch=32, **changes)
    return replace(run, backbone=backbone, optim=replace(run.optim, learning_rate=1e-2))


def exported(out):
    with open_world("cpu", 600) as world:
        export(out, out / "model", world)
    return out / "model"


@pytest.mark.slow
@pytest.mark.parametrize("name", few(NETWORKS, every=2))
def test_a_network_trains_shards_saves_loads_samples_and_corrects(name, steps, data, tmp_path):
    time = {} if name == "scaled" else {"time_embedding": name == "llama"}
    run = run_of(data, NETWORKS[name].changed(**time), steps)
    run_ranks(train_here, 1, run, tmp_path / "alone")
    alone = losses(tmp_path / "alone")
    assert len(alone) == steps
    assert alone[-10:].mean() < alone[:10].mean()
    run_ranks(train_here, 2, run, tmp_path / "fsdp", FSDP())
    torch.testing.assert_close(losses(tmp_path / "fsdp"), alone, rtol=1e-4, atol=0)
    pipe = gidd.from_pretrained(exported(tmp_path / "fsdp"), device="cpu")
    assert type(pipe.denoiser.backbone.config).__name__ in (
        "BidirectionalLMConfig",
        "MaskedLMConfig",
        "GiddScalingConfig",
    )
    (sample,) = pipe.generate(length=12, steps=4)
    assert len(sample.tokens) <= 12
    assert pipe.self_correct("I embrace with great satisfaction", forward_passes=4).text
    assert pipe.score("I embrace with great satisfaction", nodes=4, repeats=2).nelbo > 0


@pytest.mark.slow
def test_lora_of_a_run_trains_few_parameters_and_is_merged_on_export(steps, data, tmp_path):
    wide = NETWORKS["llama"].changed(width=128, num_layers=3)
    start = run_of(data, wide, steps=5, save_every=5)
    train_here(start, tmp_path / "start")
    source = exported(tmp_path / "start")
    run = replace(run_of(data, wide, steps), lora=LoraConfig(rank=1), init_from=str(source))
    run = replace(run, optim=replace(run.optim, learning_rate=1e-3))
    run_ranks(train_here, 2, run, tmp_path / "tuned", FSDP())
    run_ranks(train_here, 1, run, tmp_path / "alone")
    torch.testing.assert_close(
        losses(tmp_path / "tuned"), losses(tmp_path / "alone"), rtol=1e-4, atol=0
    )
    with open_world("cpu", 600) as world:
        state = build_state(run, Tokenizer.load(data).vocab, world)
        trained = sum(p.numel() for p in state.model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in state.model.parameters())
        assert 0 < trained < 0.05 * total
        assert all(p.requires_grad is ("lora_" in n) for n, p in state.model.named_parameters())
    before, after = gidd.from_pretrained(source), gidd.from_pretrained(exported(tmp_path / "tuned"))
    ours, theirs = (dict(p.denoiser.backbone.named_parameters()) for p in (after, before))
    assert ours.keys() == theirs.keys()  # merged: no adapters are left
    inside = {id(p) for block in blocks_of(after.denoiser.backbone) for p in block.parameters()}
    changed = {name for name, value in ours.items() if not torch.equal(value, theirs[name])}
    assert changed
    assert all(id(ours[name]) in inside for name in changed)
    record = json.loads((tmp_path / "tuned" / "model" / "gidd.json").read_text())
    assert record["training"]["init_from"]["sha256"] == record_sha256(source)


def record_sha256(folder):
    return json.loads((folder / "gidd.json").read_text())["files"]["model.safetensors"]


class Plain(torch.nn.Module):
    """A network that declares nothing but what a denoiser needs."""

    def __init__(self, size, width=16):
        super().__init__()
        self.embedding = torch.nn.Embedding(size, width)
        self.mix = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, size)

    def hidden(self, z, t):
        x = self.embedding(z) + t[:, None, None]
        return x + self.mix(x.mean(1, keepdim=True))


def train_plain(data, out, steps, parallel):
    torch.set_num_threads(1)
    with open_world("cpu", 600) as world:
        torch.manual_seed(world.rank)  # ranks build other weights: those of rank 0 are used
        network = Plain(Tokenizer.load(data).vocab.size)
        unregistered = Component("backbone", "unregistered", {"class": "Plain"})
        run = replace(run_of(data, unregistered, steps), parallel=parallel)
        fit(run, out, world, quiet=True, components=GivenComponents(network=network))


@pytest.mark.slow
def test_any_module_trains_on_any_layout(steps, data, tmp_path):
    run_ranks(train_plain, 1, data, tmp_path / "alone", steps, DDP())
    for layout, parallel in (("ddp", DDP()), ("fsdp", FSDP())):
        run_ranks(train_plain, 2, data, tmp_path / layout, steps, parallel)
        torch.testing.assert_close(
            losses(tmp_path / layout), losses(tmp_path / "alone"), rtol=1e-4, atol=0
        )
    with pytest.raises(CheckpointError, match=r"(?s)'Plain'.*gidd.register"):
        exported(tmp_path / "alone")
