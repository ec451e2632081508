"""FSDP2 gathers the head while the last block computes; gradients are those of one process."""

from dataclasses import replace

import pytest
import torch
from support.ranks import run_ranks
from support.training_runs import tiny_run
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor

from gidd.common.config.components import component
from gidd.data.batch import Batch
from gidd.models.lora import LoraConfig
from gidd.models.networks import Initializer
from gidd.training import loop
from gidd.training.build import build_state
from gidd.training.parallel import DDP, FSDP, unsharded
from gidd.training.world import open_world
from gidd.vocab import Vocab

VOCAB = Vocab(40, mask_id=39)
SIZE = {"width": 32, "num_heads": 2}
DIT = component("backbone", "dit", num_layers=3, time_width=16, **SIZE)
BIDIRECTIONAL = component(
    "backbone",
    "bidirectional",
    num_layers=3,
    mlp_width=64,
    num_kv_heads=1,
    rotary_base=1e4,
    norm_eps=1e-5,
    tied_head=False,
    **SIZE,
)
CAUSAL = component(
    "backbone", "llama-bidirectional", num_layers=2, hf='{"intermediate_size": 64}', **SIZE
)
TIED = '{"intermediate_size": 64, "tie_word_embeddings": true}'
ENCODER = component("backbone", "masked-lm", num_layers=2, hf=TIED, **SIZE)
RUN = tiny_run(None, steps=10, accumulate=2)
RUNS = {
    "dit": replace(RUN, backbone=DIT),
    "recomputed": replace(RUN, backbone=DIT.changed(checkpoint_activations=True)),
    "one block": replace(RUN, backbone=DIT.changed(num_layers=1)),
    "bidirectional": replace(RUN, backbone=BIDIRECTIONAL),
    "tied": replace(RUN, backbone=BIDIRECTIONAL.changed(tied_head=True)),
    "llama": replace(RUN, backbone=CAUSAL),
    "tied encoder": replace(RUN, backbone=ENCODER),
    "lora": replace(RUN, backbone=CAUSAL, lora=LoraConfig(rank=2)),
}


def batch_of(world):
    own = 8 // world.size
    numbers = torch.arange(own) + own * world.rank
    tokens = torch.arange(16).expand(own, 16) + numbers[:, None]
    return Batch(tokens, tokens >= 0, numbers)


def build(run, world):
    """A state whose predictions are not constant: all parameters are random."""
    state = build_state(run, VOCAB, world)
    initial = Initializer(1)
    with torch.no_grad():
        for parameter in state.model.parameters():
            initial.normal(parameter, 0.2)
    return state


def gradients_of(parallel):
    """Loss and gradients of all runs, after an evaluation of their networks."""
    torch.set_num_threads(1)
    found, is_sharded = {}, parallel == FSDP()
    with open_world("cpu", 600) as world:
        for name, run in RUNS.items():
            state, batch = build(replace(run, parallel=parallel), world), batch_of(world)
            head = state.model.network.head
            assert isinstance(head, FSDPModule) == (is_sharded and "tied" not in name)
            with torch.no_grad():
                state.model(state.objective, state.corrupt(batch, 0, 8, 1.0))
                with unsharded(state.model):
                    assert not isinstance(head.weight, DTensor)
            assert isinstance(head.weight, DTensor) == is_sharded
            loss = loop.gradients(run, world, state, batch).read()[0]["loss"]
            assert isinstance(head.weight, DTensor) == is_sharded
            found[name] = {"loss": torch.tensor(loss)} | {
                name: gradient.full_tensor() if is_sharded else gradient.clone()
                for name, parameter in state.model.named_parameters()
                if (gradient := parameter.grad) is not None
            }
    return found


@pytest.mark.slow
def test_gradients_are_those_of_one_process():
    """Of every backbone, with tied and untied heads, accumulated over micro-batches."""
    expected = gradients_of(DDP())
    for found in run_ranks(gradients_of, 2, FSDP()):
        for name, values in expected.items():
            assert values.keys() == found[name].keys()
            torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-6)


def order_of_gathers():
    """Parameter groups in the order in which they are gathered, and blocks when they compute."""
    torch.set_num_threads(1)
    events, unshard = [], FSDPParamGroup.unshard

    def noted(self, async_op=False):
        before = self._all_gather_result
        unshard(self, async_op)
        if self._all_gather_result is not before:
            events.append(f"gather {self._module_fqn}")

    run = replace(RUNS["dit"], parallel=FSDP(), train=replace(RUN.train, accumulate=1))
    with open_world("cpu", 600) as world:
        state, batch = build(run, world), batch_of(world)
        for number, block in enumerate(state.model.network.blocks):
            block.register_forward_pre_hook(lambda *_, n=number: events.append(f"run {n}"))
        loop.gradients(run, world, state, batch)  # names the groups
        FSDPParamGroup.unshard, events = noted, []
        try:
            outcome = state.module(state.objective, state.corrupt(batch, 1, 8, 1.0))
        finally:
            FSDPParamGroup.unshard = unshard
        outcome.loss.backward()
    return events


@pytest.mark.slow
def test_the_head_is_gathered_after_the_last_block():
    prefix = "gather denoiser.backbone."
    expected = ["gather ", f"{prefix}blocks.0", "run 0", f"{prefix}blocks.1", "run 1"]
    expected += [f"{prefix}blocks.2", f"{prefix}head", "run 2"]
    assert run_ranks(order_of_gathers, 2) == [expected] * 2
