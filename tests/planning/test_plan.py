"""The plan of a run against its definition, and against what real runs of that size need.

Run as a script, this file is one rank of a measured run.
"""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from itertools import accumulate
from pathlib import Path

import pytest
import torch

import gidd.planning
from gidd.cli import main
from gidd.common.config.components import component
from gidd.common.devices import acting_as
from gidd.data.batch import Batch
from gidd.data.corpora import CORPORA
from gidd.data.loading.order import BLOCK_BYTES, LANE_SAMPLES
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import character_level
from gidd.errors import ConfigError
from gidd.models import DiT
from gidd.planning import DEVICES, Assumptions, Device, RunPlan, plan_run
from gidd.planning.counters import Collective
from gidd.planning.data_cost import data_cost
from gidd.planning.run_plan import checkpoint_cost, failures, traffic, vocab_size_of
from gidd.planning.step_trace import RankBatch, StepTrace, follow_cuda_autocast, trace_in_child
from gidd.runs.presets import PRESETS, hybrid
from gidd.training.build import build_state
from gidd.training.config import DataConfig, Diffusion, RunConfig, TrainConfig
from gidd.training.loop import step_loss
from gidd.training.parallel import DDP, FSDP, sync_gradients_if_last
from gidd.training.world import World, open_world
from gidd.vocab import Vocab

pytestmark = pytest.mark.usefixtures("forked_traces")
HERE = Device(name="here", memory=1e9, flops=1e11, float32_flops=2e10, link=1e10, kind="cpu")
VOCAB_SIZE = 8192
VOCAB = Vocab(VOCAB_SIZE, mask_id=VOCAB_SIZE - 1)


def run_of(
    parallel=None, *, width=512, layers=6, batch=8, length=128, ema_decay=None, **train
) -> RunConfig:
    recompute, train = train.pop("recompute", False), {"autocast": True} | train
    return RunConfig(
        backbone=component(
            "backbone",
            "dit",
            width=width,
            num_layers=layers,
            num_heads=4,
            checkpoint_activations=recompute,
        ),
        objective=Diffusion(noise=hybrid(0.1)),
        data=DataConfig(sources=("sotu",), tokenizer=VOCAB_SIZE, length=length),
        train=TrainConfig(steps=100, global_batch=batch, ema_decay=ema_decay, **train),
        parallel=parallel or DDP(),
    )


SMALL = run_of(FSDP(shard_size=2), width=32, layers=2, batch=16, length=16, accumulate=2)


@pytest.fixture(scope="module")
def small(forked_traces):
    """Two machines of two ranks, with a replica of the model in each."""
    return plan_run(SMALL, 4, HERE, Assumptions(ranks_per_machine=2))


@pytest.mark.slow
def test_sharded_state_of_a_rank(small):
    """A rank has half the parameters and half the gradients; Adam has twice that."""
    update, total = small.memory["phases"]["update"], 4 * small.num_parameters
    assert update["parameters"] == pytest.approx(total / 2, rel=0.01)
    assert update["gradients"] == pytest.approx(update["parameters"], rel=0.01)
    assert update["optimiser"] == pytest.approx(2 * update["parameters"], rel=0.01)


def test_collectives_are_those_of_the_fsdp_plan(small):
    """Blocks are gathered twice per micro-batch and the rest once, in bf16; reduced in float32.

    The all-reduce over replicas runs after the last of the two micro-batches only.
    """
    sizes = SMALL.network_config(VOCAB_SIZE)
    blocks, total = sizes.num_block_parameters, small.num_parameters
    flows = {flow["collective"].kind: flow["collective"] for flow in small.traffic["flows"]}
    gathered, scattered, reduced = (
        flows[kind] for kind in ("all-gather", "reduce-scatter", "all-reduce")
    )
    assert gathered.bytes == pytest.approx(2 * 2 * (total + blocks), rel=0.01)
    assert scattered.bytes == pytest.approx(2 * 4 * total, rel=0.01)
    assert reduced.bytes == pytest.approx(scattered.bytes / 2 / 2, rel=0.01)
    assert (gathered.ranks, scattered.ranks, reduced.ranks) == (2, 2, 2)
    groups = 2 + 1 + 1  # blocks, head, the rest
    assert (gathered.calls, scattered.calls, reduced.calls) == (2 * 6, 2 * groups, groups)


def test_later_micro_batches_start_with_gradients(small):
    phases = small.memory["phases"]
    assert phases["forward"]["gradients"] == phases["update"]["gradients"]


def test_logits_are_counted(small):
    """16 samples of 16 tokens over 4 ranks and 2 micro-batches: all in one chunk."""
    assert small.memory["logits"] == 2 * 16 * VOCAB_SIZE * 2
    assert small.memory["phases"]["forward"]["head and loss"] > small.memory["logits"]


def test_time_is_flops_over_speed(small):
    speed = small.throughput
    assert speed["step_seconds"] * 4 * 1e11 * 0.35 == pytest.approx(
        speed["flops_per_token"] * speed["tokens_per_step"]
    )
    assert speed["tokens"] == 100 * 16 * 16


@pytest.mark.slow
def test_float32_runs_use_the_float32_peak(small):
    run = replace(SMALL, train=replace(SMALL.train, autocast=False))
    bf16, float32 = small.throughput, plan_run(run, 4, HERE).throughput
    assert (bf16["precision"], float32["precision"]) == ("bf16", "float32")
    assert (bf16["peak"], float32["peak"]) == (HERE.flops, HERE.float32_flops)
    assert float32["step_seconds"] == pytest.approx(5 * bf16["step_seconds"])
    assert float32["flops_per_token"] == bf16["flops_per_token"]


def test_checkpoint_holds_weights_and_moments_once(small):
    cost = small.checkpoint
    assert cost["bytes"] == 12 * small.num_parameters
    assert cost["bytes_per_rank"] == pytest.approx(cost["bytes"] / 2, rel=0.01)
    tensors = 2 * 10 + 1 + 4 + 1 + 2 + 2  # two blocks, embedding, time, last norm, modulation, head
    assert cost["pieces"] == 3 * tensors * 2


def test_json_has_every_field_of_the_plan(small, monkeypatch, capsys):
    monkeypatch.setattr(gidd.planning, "plan_run", lambda *args, **kwargs: small)
    main(["plan", "nano", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == [field.name for field in fields(RunPlan)]
    for name in ("memory", "throughput", "data", "checkpoint", "at_best", "assumptions"):
        assert printed[name] == asdict(small)[name]


def test_tables_have_every_assumption_kind_of_memory_and_collective(small, monkeypatch, capsys):
    monkeypatch.setattr(gidd.planning, "plan_run", lambda *args, **kwargs: small)
    main(["plan", "nano", "--ranks", "4", "--device", "h100", "--mfu", "0.4"])
    text = capsys.readouterr().out
    labels = {f"--{name.replace('_', '-')}" for name in asdict(Assumptions())}
    labels |= {flow["collective"].kind for flow in small.traffic["flows"]}
    for kinds in small.memory["phases"].values():
        labels |= {kind for kind, size in kinds.items() if size >= 2**20}
    labels |= {f"{small.memory['peak'] / 2**30:.2f} GiB", f"{small.at_best['goodput']:.2%}"}
    assert {label for label in labels if label not in text} == set()


def test_options_need_no_torch():
    code = "import sys, gidd.planning.hardware; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_attention_is_traced_in_bfloat16_and_norms_in_float32(monkeypatch):
    """As on CUDA: float32 attention of the CPU would keep half as much again."""
    seen = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def spy(q, k, v, **options):
        seen.append((q.dtype, v.dtype))
        return attend(q, k, v, **options)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", spy)
    model = DiT(SMALL.network_config(64))
    follow_cuda_autocast(model)
    norm = model.blocks[0].attention_norm
    norm.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with acting_as("cuda"), torch.autocast("cpu", torch.bfloat16):
        model(torch.zeros(1, 16, dtype=torch.int64), torch.zeros(1)).sum().backward()
    assert seen == [torch.float32, *[(torch.bfloat16, torch.bfloat16)] * 2]


def test_reads_are_those_of_the_samples_and_of_the_blocks_of_their_lanes():
    """Against counting, for every rank, the samples and the lanes of a step."""
    ranks, per_machine, length, samples = 32, 2, 512, 64
    speed = {"tokens": 1e12, "data_bytes": 2e12}
    speed |= {"tokens_per_second": length * samples, "data_bytes_per_second": 2 * length * samples}
    assumptions = Assumptions(ranks_per_machine=per_machine, prepare_mb_per_second=2)
    cost = data_cost(speed, length, RankBatch(2, 2), ranks, assumptions)
    full, blocks = cost["reading"]["full shuffle"], cost["reading"]["blocks"]
    assert full["reads_per_second"] == samples and full["rank_reads_per_second"] == 2
    lanes_of_rank = [
        {sample // LANE_SAMPLES for sample in (2 * r, 2 * r + 1)} for r in range(ranks)
    ]
    read_by_ranks = sum(map(len, lanes_of_rank)) / (samples // LANE_SAMPLES)
    machines = {(r // per_machine, lane) for r in range(ranks) for lane in lanes_of_rank[r]}
    read_by_machines = len(machines) / (samples // LANE_SAMPLES)
    rate = 2 * length * samples
    assert blocks["bytes_per_second"] == read_by_machines * rate
    assert blocks["reads_per_second"] == 2 * read_by_machines * rate / BLOCK_BYTES
    assert blocks["rank_bytes_per_second"] * ranks == read_by_ranks * rate
    assert full["NFS"] == {"limit": "reads", "fraction": samples / 10e3}
    assert full["local disk"] == {"limit": "capacity", "fraction": 2 / 7.68}
    preparation = cost["preparation"]
    assert preparation["core_hours"] == pytest.approx(5.1e12 / 2e6 / 3600)
    assert preparation["machine_hours"] == preparation["core_hours"] / 64


@pytest.mark.parametrize(
    ("tokens", "verdict"), [(1e9, "yes, 0.125 of reads"), (1e13, "NO, 2.6 of capacity")]
)
def test_a_store_that_cannot_serve_the_data_is_named(tokens, verdict, small, monkeypatch, capsys):
    speed = {"tokens": tokens, "data_bytes": 2 * tokens}
    speed |= {"tokens_per_second": 1e6, "data_bytes_per_second": 2e6}
    plan = replace(small, data=data_cost(speed, 16, RankBatch(4, 2), 4, Assumptions()))
    monkeypatch.setattr(gidd.planning, "plan_run", lambda *args, **kwargs: plan)
    main(["plan", "nano"])
    printed = capsys.readouterr().out
    assert verdict in printed  # local disk
    assert "NO, 6.25 of reads" in printed  # full shuffle on NFS


def test_young_daly_is_the_best_interval():
    saved = {"pause_seconds": 20.0, "write_seconds": 60.0}
    assumptions, seconds = Assumptions(failures_per_device_hour=1 / 8), 5 * 86_400.0
    best = failures(seconds, saved, 1, assumptions)
    assert best["interval_seconds"] == pytest.approx((2 * 20 * 8 * 3600) ** 0.5)
    for factor in (0.3, 0.9, 1.1, 3.0):
        other = failures(seconds, saved, 1, assumptions, factor * best["interval_seconds"])
        assert other["goodput"] < best["goodput"] and other["days"] > best["days"]


def test_training_waits_for_writing_that_does_not_overlap():
    held = {"parameters": 100, "optimiser": 200}
    traced = StepTrace(phases={"update": held}, num_parameters=25, num_tensors=5, collectives=())
    slow = Assumptions(copy_gb_per_second=100e-9, write_gb_per_second=10e-9)
    costs = [checkpoint_cost(traced, 1, hidden, slow) for hidden in (0, 20, 30, 40)]
    pauses = [cost["pause_seconds"] for cost in costs]
    assert pauses == pytest.approx([33.0, 13.0, 3.0, 3.0])  # 3 s to copy, 30 s to write


def test_a_run_that_fails_too_often_never_completes():
    saved = {"pause_seconds": 1.0, "write_seconds": 60.0}
    often, never = (Assumptions(failures_per_device_hour=rate) for rate in (36.0, 0.0))
    assert failures(1e6, saved, 1, often)["days"] == float("inf")
    assert failures(1e6, saved, 1, never)["goodput"] == pytest.approx(1.0, abs=1e-3)


NO_LATENCY = Assumptions(hop_microseconds=0.0)


def test_bytes_between_machines_do_not_depend_on_the_sharding():
    """Two all-gathers in bf16 and a float32 reduce-scatter are 8 bytes per parameter and machine.

    So is a float32 all-reduce over machines with a replica each: once to reduce, once to broadcast.
    """
    everywhere = (Collective("all-gather", 1024, 1, 4), Collective("reduce-scatter", 1024, 1, 4))
    within = (
        Collective("all-gather", 8, 1, 4),
        Collective("reduce-scatter", 8, 1, 4),
        Collective("all-reduce", 128, 1, 4 / 8),
    )
    ddp = (Collective("all-reduce", 1024, 1, 4),)
    entering = [
        sum(flow["between_bytes"] for flow in traffic(parts, 1024, 450e9, NO_LATENCY)["flows"])
        for parts in (everywhere, within, ddp)
    ]
    assert entering == pytest.approx([127 / 128] * 3)


@pytest.mark.slow
def test_every_micro_batch_is_gathered_and_replicas_are_reduced_once(small):
    """Two micro-batches of `small` against a run with one."""
    one_micro_batch = replace(SMALL, train=replace(SMALL.train, accumulate=1))
    times = {"all-gather": 2, "reduce-scatter": 2, "all-reduce": 1}
    expected = [
        c._replace(calls=c.calls * times[c.kind], bytes=c.bytes * times[c.kind])
        for c in trace_in_child(one_micro_batch, VOCAB, 4, "cpu").collectives
    ]
    assert [flow["collective"] for flow in small.traffic["flows"]] == expected


def test_one_machine_receives_nothing_from_others():
    parts = (Collective("all-gather", 8, 1, 450e9),)
    (flow,) = traffic(parts, 8, 450e9, NO_LATENCY)["flows"]
    assert flow["between_bytes"] == 0 and flow["seconds"] == pytest.approx(7 / 8)


def test_vocabulary_size_before_preparation(tmp_path):
    """From a prepared folder; from exact sources, which ignore data.tokenizer; from a tokenizer."""
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


def test_dry_run_prints_the_vocabulary_size_of_the_sources(capsys):
    main(["train", "nano", "--dry-run", "--data.sources", "markov"])
    size = CORPORA["markov"].tokenizer().vocab.size
    assert re.search(rf"vocabulary size\s+{size:,}\s", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": 0}, "ranks .* got 0"),
        ({"ranks": 32}, "train.global_batch = 16 .* 32 ranks"),
        ({"run": replace(SMALL, data=replace(SMALL.data, tokenizer="other"))}, "data.*'other'"),
    ],
)
def test_impossible_plans_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        plan_run(**{"run": SMALL, "ranks": 4, "device": HERE} | change)


@pytest.mark.long
def test_ten_billion_parameters_on_1024_ranks():
    """What `test_sharded_state_of_a_rank` shows for a small run, and that it fits.

    Groups of 8 ranks share a copy of the model, which 128 groups have.
    """
    plan = plan_run(PRESETS["10b"], 1024, DEVICES["h100"])
    assert 10e9 < plan.num_parameters < 10.5e9 and plan.memory["fits"]
    assert plan.memory["phases"]["update"]["parameters"] == pytest.approx(
        4 * plan.num_parameters / 8, rel=0.02
    )
    ranks = {flow["collective"].kind: flow["collective"].ranks for flow in plan.traffic["flows"]}
    assert ranks == {"all-gather": 8, "reduce-scatter": 8, "all-reduce": 128}


@pytest.mark.perf
def test_ten_billion_parameters_are_planned_in_a_minute_and_2_gb():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    plan_run(PRESETS["10b"], 1024, DEVICES["h100"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60
    assert after.ru_maxrss < 2e6


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
def test_predicted_memory_is_what_the_allocator_hands_out(autocast):
    """Peak of forward and of backward of a real step, counted by torch's profiler."""
    run = run_of(width=64, layers=3, batch=4, autocast=autocast)
    with open_world("cpu", 600) as world:
        state = build_state(run, VOCAB, world)
        batch, output = batch_of(run, world), []

        def forward() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                output.append(step_loss(state, state.module, batch, 0, run.train.global_batch, 1.0))

        forward_sizes = allocations(forward)
        backward_sizes = allocations(output[0].loss.backward)
    measured = {
        "forward": max(accumulate(forward_sizes)),
        "backward": sum(forward_sizes) + max(accumulate(backward_sizes)),
    }
    phases = trace_in_child(run, VOCAB, 1, "cpu").phases
    for phase, peak in measured.items():
        held = phases[phase]["parameters"] + phases[phase]["optimiser"]  # allocated before
        assert sum(phases[phase].values()) - held == pytest.approx(peak, rel=0.01)


def allocations(work: Callable[[], object]) -> list[int]:
    """Bytes of every allocation (positive) and free (negative) on the CPU, in order."""
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]


MEASURED = {
    "single": (1, run_of(autocast=False)),
    "single, bf16": (1, run_of()),
    "fsdp2 x2": (2, run_of(FSDP(), autocast=False)),
    "fsdp2 x2, bf16": (2, run_of(FSDP())),
    "fsdp2 x2, bf16, recomputed, 2 micro-batches, EMA": (
        2,
        run_of(FSDP(), recompute=True, accumulate=2, ema_decay=0.999),
    ),
    "ddp x2": (2, run_of(autocast=False)),
    "ddp x2, 2 micro-batches": (2, run_of(autocast=False, accumulate=2)),
}


@pytest.mark.perf
@pytest.mark.parametrize("name", MEASURED)
def test_predicted_memory_is_what_a_run_takes(name):
    """Growth of the resident memory of real processes, within 15%."""
    ranks, run = MEASURED[name]
    # large tensors are returned to the system as soon as they are freed
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]  # picks a free port
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", str(ranks), __file__, name],
        env=environment,
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    measured = max(int(line) for line in done.stdout.split())
    traced = trace_in_child(run, VOCAB, ranks, "cpu")
    predicted = max(sum(kinds.values()) for kinds in traced.phases.values())
    print(f"{name}: predicted {predicted / 2**20:.0f} MiB, measured {measured / 2**20:.0f} MiB")
    assert predicted == pytest.approx(measured, rel=0.15)


def batch_of(run: RunConfig, world: World) -> Batch:
    own, length = run.train.global_batch // world.size, run.data.length
    tokens = torch.arange(own * length).view(own, length) % (VOCAB_SIZE - 1)
    return Batch(tokens, tokens >= 0, torch.arange(own) + world.rank * own)


def steps(run: RunConfig, world: World, num: int) -> None:
    """Run the training loop without data, reports and checkpoints."""
    state, batch = build_state(run, VOCAB, world), batch_of(run, world)
    for _ in range(num):
        micros = batch.split(run.train.accumulate)
        for k, micro in enumerate(micros):
            with sync_gradients_if_last(state.module, last=k == len(micros) - 1):
                with torch.autocast("cpu", torch.bfloat16, enabled=run.train.autocast):
                    noisy = state.corrupt(micro, 0, run.train.global_batch, 1.0)
                    outcome = state.module(state.objective, noisy)
                outcome.loss.backward()
        torch.nn.utils.clip_grad_norm_(state.module.parameters(), 1.0)
        state.optimizers[0].step()
        state.zero_grad()
        if state.ema:
            state.ema.update(state.model.named_parameters())


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def measure(run: RunConfig) -> int:
    """Return the peak growth of this process in bytes, after its libraries are loaded and warm."""
    with open_world("cpu", 120.0) as world:
        warm = run.backbone.changed(width=64, num_layers=1)
        steps(replace(run, backbone=warm, data=replace(run.data, length=8)), world, 1)
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        steps(run, world, 3)  # DDP has rebuilt its buckets by the third
        return resident("VmHWM") - before


if __name__ == "__main__":
    peak = measure(MEASURED[sys.argv[1]][1])
    os.write(1, f"{peak}\n".encode())  # one write: the lines of two ranks do not mix
