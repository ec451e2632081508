"""The plan of a run, against what runs of that size really need.

Run as a script, this file is one rank of a measured run.
"""

import json
import os
import resource
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import gidd.cli.plan
from gidd.cli import main
from gidd.data.batch import Batch
from gidd.data.corpora import CORPORA
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import character_level
from gidd.errors import ConfigError
from gidd.models import DiT
from gidd.planning.cuda_rules import behave_as_on_cuda
from gidd.planning.failures import CheckpointCost, failures, saving
from gidd.planning.hardware import DEVICES, Device
from gidd.planning.memory import Collective
from gidd.planning.run_plan import Assumptions, plan
from gidd.planning.step_trace import StepTrace, trace_in_child
from gidd.planning.traffic import ClusterNetwork, traffic
from gidd.planning.vocab_size import vocab_size_of
from gidd.runs.presets import PRESETS
from gidd.training.build import build_state
from gidd.training.config import (
    Autoregressive,
    DataConfig,
    Diffusion,
    HybridNoise,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from gidd.training.parallel import DDP, FSDP, sync_gradients_if_last
from gidd.training.world import open_world
from gidd.vocab import Vocab

HERE = Device(name="here", memory=1e9, flops=1e11, float32_flops=2e10, link=1e10, kind="cpu")
VOCAB_SIZE = 8192


def run_of(
    parallel=None, *, width=512, layers=6, batch=8, length=128, ema_decay=None, **train
) -> RunConfig:
    recompute = train.pop("recompute", False)
    return RunConfig(
        model=ModelConfig(
            width=width, num_layers=layers, num_heads=4, checkpoint_activations=recompute
        ),
        objective=Diffusion(noise=HybridNoise(p_uniform=0.1)),
        data=DataConfig(sources=("sotu",), tokenizer=VOCAB_SIZE, length=length),
        train=TrainConfig(steps=100, global_batch=batch, ema_decay=ema_decay, **train),
        parallel=parallel or DDP(),
    )


SMALL = run_of(FSDP(shard_size=2), width=32, layers=2, batch=16, length=16, accumulate=2)
SMALL_ONE = replace(SMALL, train=replace(SMALL.train, accumulate=1))


@pytest.fixture(scope="module")
def small():
    """Two machines of two ranks; a copy of the model in each."""
    return plan(SMALL, 4, HERE, Assumptions(ranks_per_machine=2))


def test_every_parameter_is_somewhere(small):
    """A rank has half the parameters, and as many gradients; Adam has twice that."""
    update, whole = small.memory.phases["update"], 4 * small.num_parameters
    assert update["parameters"] == pytest.approx(whole / 2, rel=0.01)
    assert update["gradients"] == pytest.approx(update["parameters"], rel=0.01)
    assert update["optimiser"] == pytest.approx(2 * update["parameters"], rel=0.01)


def test_collectives_are_those_of_the_fsdp_plan(small):
    """Blocks are gathered twice a micro-batch and the rest once, in bf16; sums are float32.

    Those over copies of the model wait for the last of the two micro-batches.
    """
    sizes = SMALL.model.build(VOCAB_SIZE, 16)
    blocks, whole = sizes.num_block_parameters, small.num_parameters
    flows = {flow.collective.kind: flow.collective for flow in small.traffic.flows}
    unsharded, divided, summed = (flows[k] for k in ("all-gather", "reduce-scatter", "all-reduce"))
    assert unsharded.bytes == pytest.approx(2 * 2 * (whole + blocks), rel=0.01)
    assert divided.bytes == pytest.approx(2 * 4 * whole, rel=0.01)
    assert summed.bytes == pytest.approx(divided.bytes / 2 / 2, rel=0.01)
    assert (unsharded.ranks, divided.ranks, summed.ranks) == (2, 2, 2)
    assert (unsharded.calls, divided.calls, summed.calls) == (2 * 5, 2 * 3, 3)


def test_gradients_are_there_when_a_later_micro_batch_begins(small):
    phases = small.memory.phases
    assert phases["forward"]["gradients"] == phases["update"]["gradients"]


def test_logits_are_counted(small):
    """16 tokens of 16 samples over 4 ranks and 2 micro-batches: all in one chunk."""
    assert small.memory.logits == 2 * 16 * VOCAB_SIZE * 2
    assert small.memory.phases["forward"]["head and loss"] > small.memory.logits


def test_time_is_operations_over_speed(small):
    pace = small.pace
    assert pace.step_seconds * 4 * 1e11 * 0.35 == pytest.approx(
        pace.flops_per_token * pace.tokens_per_step
    )
    assert pace.tokens == 100 * 16 * 16


def test_float32_takes_its_own_peak(small):
    slow = plan(replace(SMALL, train=replace(SMALL.train, autocast=False)), 4, HERE)
    assert (small.pace.precision, slow.pace.precision) == ("bf16", "float32")
    assert slow.pace.days == pytest.approx(5 * small.pace.days)
    assert slow.pace.flops_per_token == small.pace.flops_per_token


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_float32_is_slower_on_every_device(device):
    assert device.float32_flops < device.flops / 1.9


def test_checkpoint_holds_weights_and_moments_once(small):
    assert small.saving.bytes == 12 * small.num_parameters
    assert small.saving.bytes_per_rank == pytest.approx(small.saving.bytes / 2, rel=0.01)
    tensors = 2 * 10 + 1 + 4 + 1 + 2 + 2  # two blocks, embedding, time, last norm, modulation, head
    assert small.saving.pieces == 3 * tensors * 2


def test_command_prints_every_assumption(small, monkeypatch, capsys):
    monkeypatch.setattr(gidd.cli.plan, "plan", lambda *args, **kwargs: small)
    main(["plan", "nano", "--ranks", "4", "--device", "h100", "--mfu", "0.4"])
    text = capsys.readouterr().out
    for name in asdict(Assumptions()):
        assert f"--{name.replace('_', '-')}" in text
    for word in ("head and loss", "goodput", "all-gather", "pieces", "fits"):
        assert word in text
    main(["plan", "nano", "--json"])
    assert json.loads(capsys.readouterr().out)["num_parameters"] == small.num_parameters


def test_attention_is_followed_in_bfloat16_and_norms_in_float32(monkeypatch):
    """As on CUDA: float32 attention of the CPU would be half as much again to keep."""
    seen = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def spy(q, k, v):
        seen.append((q.dtype, v.dtype))
        return attend(q, k, v)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", spy)
    model = DiT(SMALL.model.build(64, 16))
    behave_as_on_cuda(model)
    norm = model.blocks[0].attention_norm
    norm.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.zeros(1, 16, dtype=torch.int64), torch.zeros(1)).sum().backward()
    assert seen == [torch.float32, *[(torch.bfloat16, torch.bfloat16)] * 2]
    assert torch.ones(1, dtype=torch.bfloat16).float().dtype == torch.float32  # elsewhere as ever


def test_activations_of_the_baseline_can_be_recomputed():
    """Of 4 layers only what goes into them is kept."""
    pytest.importorskip("transformers", reason="the baseline needs the extra `hf`")
    kept = replace(run_of(width=64, layers=4), objective=Autoregressive())
    again = replace(kept, model=replace(kept.model, checkpoint_activations=True))
    before, after = (
        trace_in_child(run, Vocab(64), 1, "cpu").phases["forward"]["activations"]
        for run in (kept, again)
    )
    assert after < before / 3


def test_young_daly_is_the_best_interval():
    saved = CheckpointCost(
        bytes=1, bytes_per_rank=1.0, pause_seconds=20.0, write_seconds=60.0, pieces=1
    )
    rate, seconds = 1 / (8 * 3600), 5 * 86_400.0
    best = failures(seconds, saved, rate, 300.0)
    assert best.interval_seconds == pytest.approx((2 * 20 * 8 * 3600) ** 0.5)
    for factor in (0.3, 0.9, 1.1, 3.0):
        other = failures(seconds, saved, rate, 300.0, factor * best.interval_seconds)
        assert other.goodput < best.goodput and other.days > best.days


def test_training_waits_for_the_part_of_writing_that_it_does_not_hide():
    held = {"parameters": 100, "optimiser": 200}
    traced = StepTrace(phases={"update": held}, num_parameters=25, num_tensors=5, collectives=())
    waits = [saving(traced, 1, 100.0, 10.0, hidden).pause_seconds for hidden in (0, 20, 30, 40)]
    assert waits == pytest.approx([33.0, 13.0, 3.0, 3.0])  # 3 s to copy, 30 s to write


def test_a_run_that_fails_all_the_time_never_ends():
    saved = CheckpointCost(
        bytes=1, bytes_per_rank=1.0, pause_seconds=1.0, write_seconds=60.0, pieces=1
    )
    assert failures(1e6, saved, 1 / 100, 300.0).days == float("inf")
    assert failures(1e6, saved, 0.0, 300.0).goodput == pytest.approx(1.0, abs=1e-3)


def network(ranks, per_machine=8):
    return ClusterNetwork(
        ranks=ranks, ranks_per_machine=per_machine, between=40e9, within=450e9, hop_seconds=0.0
    )


def test_bytes_between_machines_do_not_depend_on_how_a_model_is_divided():
    """Gathering twice in bf16 and dividing in float32 is 8 bytes a parameter for every machine.

    So is summing float32 over machines that hold a copy each: once to add, once to tell.
    """
    whole = (Collective("all-gather", 1024, 1, 4), Collective("reduce-scatter", 1024, 1, 4))
    within = (
        Collective("all-gather", 8, 1, 4),
        Collective("reduce-scatter", 8, 1, 4),
        Collective("all-reduce", 128, 1, 4 / 8),
    )
    ddp = (Collective("all-reduce", 1024, 1, 4),)
    entering = [
        sum(flow.between_bytes for flow in traffic(SMALL_ONE, parts, network(1024)).flows)
        for parts in (whole, within, ddp)
    ]
    assert entering == pytest.approx([127 / 128] * 3)


def test_micro_batches_are_gathered_each_and_summed_over_copies_once():
    parts = (Collective("all-gather", 8, 5, 4.0), Collective("all-reduce", 128, 3, 0.5))
    run = replace(SMALL, train=replace(SMALL.train, accumulate=4))
    flows = traffic(run, parts, network(1024)).flows
    assert [flow.collective for flow in flows] == [
        Collective("all-gather", 8, 20, 16.0),
        Collective("all-reduce", 128, 3, 0.5),
    ]


def test_within_a_machine_nothing_comes_from_others():
    parts = (Collective("all-gather", 8, 1, 450e9),)
    (flow,) = traffic(SMALL_ONE, parts, network(8)).flows
    assert flow.between_bytes == 0 and flow.seconds == pytest.approx(7 / 8)


def test_ids_are_counted_before_there_are_tokens(tmp_path):
    """A folder says how many; so do exact sources, whatever the tokenizer was to be."""
    tokenizer = character_level("abc")
    (tmp_path / "text.txt").write_text("abc cab")
    prepare(tmp_path / "text.txt", tokenizer, tmp_path / "data", validation=0, quiet=True)
    markov = replace(SMALL, data=replace(SMALL.data, sources=("markov",)))
    folder = replace(SMALL, data=replace(SMALL.data, folder=tmp_path / "data"))
    assert vocab_size_of(SMALL) == VOCAB_SIZE
    assert vocab_size_of(replace(SMALL, data=replace(SMALL.data, tokenizer="gpt2"))) == 50_258
    assert vocab_size_of(markov) == CORPORA["markov"].tokenizer().vocab.size
    assert vocab_size_of(folder) == tokenizer.vocab.size
    tokenizer.save(tmp_path / "own")
    own = replace(SMALL, data=replace(SMALL.data, tokenizer=str(tmp_path / "own")))
    assert vocab_size_of(own) == tokenizer.vocab.size


def test_dry_run_counts_the_ids_of_the_sources(capsys):
    main(["train", "nano", "--dry-run", "--data.sources", "markov"])
    size = CORPORA["markov"].tokenizer().vocab.size
    assert f"({size:,} ids)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": 0}, "ranks must be at least 1"),
        ({"ranks": 32}, "leaves 0 samples for each of 32 ranks"),
        ({"assumptions": Assumptions(mfu=1.5)}, "mfu must be in"),
        ({"run": replace(SMALL, data=replace(SMALL.data, tokenizer="other"))}, "--vocab-size"),
    ],
)
def test_impossible_plans_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        plan(**{"run": SMALL, "ranks": 4, "device": HERE} | change)


def test_unknown_device_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "nano", "--device", "h1000"])
    assert "h100, h200" in capsys.readouterr().err


@pytest.mark.slow
def test_ten_billion_on_1024_ranks_are_planned_here():
    """In a minute of one core and 2 GB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = plan(PRESETS["10b"], 1024, DEVICES["h100"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60
    assert after.ru_maxrss < 2e6
    assert 10e9 < made.num_parameters < 10.5e9 and made.memory.fits
    assert made.memory.phases["update"]["parameters"] == pytest.approx(
        4 * made.num_parameters / 1024, rel=0.02
    )


MEASURED = {
    "single": (1, run_of(autocast=False)),
    "single, bf16": (1, run_of()),
    "fsdp2 x2": (2, run_of(FSDP(), autocast=False)),
    "fsdp2 x2, bf16": (2, run_of(FSDP())),
    "fsdp2 x2, bf16, recomputed, 2 micro-batches, average": (
        2,
        run_of(FSDP(), recompute=True, accumulate=2, ema_decay=0.999),
    ),
    "ddp x2": (2, run_of(autocast=False)),
    "ddp x2, 2 micro-batches": (2, run_of(autocast=False, accumulate=2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_predicted_memory_is_what_a_run_takes(name):
    """Growth of the resident memory of real processes, to 15%."""
    ranks, run = MEASURED[name]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # large tensors go back to the system when they are freed, at once
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    environment |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, name],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]
    measured = max(int(process.communicate(timeout=300)[0]) for process in processes)
    traced = trace_in_child(run, Vocab(VOCAB_SIZE, mask_id=VOCAB_SIZE - 1), ranks, "cpu")
    predicted = max(sum(parts.values()) for parts in traced.phases.values())
    print(f"{name}: predicted {predicted / 2**20:.0f} MiB, measured {measured / 2**20:.0f} MiB")
    assert predicted == pytest.approx(measured, rel=0.15)


def steps(run: RunConfig, world, num: int) -> None:
    """What the training loop does, without data, reports and checkpoints."""
    state = build_state(run, Vocab(VOCAB_SIZE, mask_id=VOCAB_SIZE - 1), world)
    own, length = run.train.global_batch // world.size, run.data.length
    tokens = torch.arange(own * length).view(own, length) % (VOCAB_SIZE - 1)
    batch = Batch(tokens, tokens >= 0, torch.arange(own) + world.rank * own)
    for _ in range(num):
        micros = batch.split(run.train.accumulate)
        for k, micro in enumerate(micros):
            with sync_gradients_if_last(state.module, last=k == len(micros) - 1):
                with torch.autocast("cpu", torch.bfloat16, enabled=run.train.autocast):
                    outcome = state.module(micro, 0, run.train.global_batch, 1.0)
                outcome.loss.backward()
        torch.nn.utils.clip_grad_norm_(state.module.parameters(), 1.0)
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        if state.ema:
            state.ema.update(state.objective.named_parameters())


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def measure(run: RunConfig) -> int:
    """Bytes by which this process grew at most, once its libraries are loaded and warm."""
    with open_world("cpu", 120.0) as world:
        warm = replace(run.model, width=64, num_layers=1)
        steps(replace(run, model=warm, data=replace(run.data, length=8)), world, 1)
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
        steps(run, world, 3)  # DDP has settled on its buffers by the third
        return resident("VmHWM") - before


if __name__ == "__main__":
    print(measure(MEASURED[sys.argv[1]][1]))
