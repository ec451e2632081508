"""Estimate memory, time, traffic, checkpoints and failures of a run on given devices.

Memory and traffic come from one traced step of the real model on fake ranks
(`step_trace`). Time, checkpoints and failures are arithmetic from `Assumptions`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from gidd.common.devices import has_bf16
from gidd.data import tokenizers
from gidd.data.corpora import corpora_of
from gidd.data.manifest import DataManifest
from gidd.diffusion.loss import CHUNK_TOKENS, CHUNK_TOKENS_OF_KERNELS, HEAD_ROWS
from gidd.errors import ConfigError
from gidd.planning.counters import Collective
from gidd.planning.hardware import Assumptions, Device
from gidd.planning.step_trace import RankBatch, StepTrace, trace_in_child
from gidd.training.build import build_step, with_precision
from gidd.training.config import FSDP, RunConfig
from gidd.training.reporting.speed import training_flops_per_token
from gidd.vocab import Vocab

_HOUR, _DAY = 3600.0, 86_400.0
Section = dict[str, Any]


@dataclass(frozen=True)
class RunPlan:
    """Estimated needs of a run, in bytes, FLOPs and seconds, by the names that `--json` prints."""

    ranks: int
    device: Device
    assumptions: Assumptions
    num_parameters: int
    rank_batch: RankBatch
    memory: Section  # of the rank that needs the most: by kind at the peak of each phase
    throughput: Section  # speed and duration without failures
    traffic: Section | None  # communication of one step; None if the device's link is unknown
    checkpoint: Section  # size and duration of one checkpoint
    as_configured: Section  # failures with a checkpoint every `train.save_every` steps
    at_best: Section  # failures with a checkpoint at the optimal interval (Young 1974)


def plan_run(
    run: RunConfig,
    ranks: int,
    device: Device,
    assumptions: Assumptions | None = None,
    *,
    vocab_size: int | None = None,
) -> RunPlan:
    """Estimate what a run needs on a number of ranks with one device each.

    Starts a process that traces one step of the real model; takes up to a minute at 10B parameters.
    `vocab_size` is needed if it does not follow from the run.
    """
    assumptions = assumptions or Assumptions()
    if ranks < 1:
        raise ConfigError(f"ranks must be at least 1, got {ranks}.")
    run.check(ranks)
    run = with_precision(run, device.kind == "cuda" or has_bf16(torch.device("cpu")))
    size = vocab_size or vocab_size_of(run)
    vocab = Vocab(size, mask_id=size - 1)
    traced, batch = trace_in_child(run, vocab, ranks, device.kind), RankBatch.of(run, ranks)
    chunk, width = CHUNK_TOKENS, size
    if device.kind == "cuda":
        chunk, width = CHUNK_TOKENS_OF_KERNELS, -(-size // HEAD_ROWS) * HEAD_ROWS
    rows, entry = min(chunk, batch.micro * run.data.length), 2 if run.train.autocast else 4
    peak = max(sum(held.values()) for held in traced.phases.values())
    usable = device.memory * assumptions.usable_memory
    # the only logits in memory are those of one chunk of tokens, part of "head and loss"
    memory = {"phases": traced.phases, "logits": rows * width * entry}
    memory |= {"peak": peak, "usable": usable, "fits": peak <= usable}
    speed = throughput(run, ranks, device, assumptions.mfu, vocab)
    num_shards = run.parallel.shard_size or ranks if isinstance(run.parallel, FSDP) else 1
    hidden_seconds = (run.train.max_steps_ahead_of_save + 1) * speed["step_seconds"]
    saved = checkpoint_cost(traced, num_shards, hidden_seconds, assumptions)
    seconds, interval = speed["days"] * _DAY, run.train.save_every * speed["step_seconds"]
    return RunPlan(
        ranks=ranks,
        device=device,
        assumptions=assumptions,
        num_parameters=traced.num_parameters,
        rank_batch=batch,
        memory=memory,
        throughput=speed,
        traffic=traffic(traced.collectives, ranks, device.link, assumptions),
        checkpoint=saved,
        as_configured=failures(seconds, saved, ranks, assumptions, interval),
        at_best=failures(seconds, saved, ranks, assumptions),
    )


def vocab_size_of(run: RunConfig) -> int:
    """Return the vocabulary size of the run's tokenizer, without reading sources or downloading."""
    data, choice = run.data, run.data.tokenizer
    if data.prepared:
        return DataManifest.read(data.prepared[0]).vocab.size
    if (tokenizer := corpora_of(data.sources)[-1].tokenizer()) is not None:
        return tokenizer.vocab.size
    if isinstance(choice, int):
        return choice
    if choice not in tokenizers.BUILT_KINDS and Path(choice).exists():
        return tokenizers.Tokenizer.load(choice).vocab.size
    known = tokenizers.GPT2_VOCAB_SIZES | {"bytes": tokenizers.BYTES_VOCAB_SIZE}
    if choice not in known:
        raise ConfigError(
            f"the vocabulary size of data.tokenizer {choice!r} is unknown until it is loaded. "
            "Prepare the data and set --data.folder DIR, or set --vocab-size for `gidd plan`."
        )
    return known[choice]


def throughput(run: RunConfig, ranks: int, device: Device, mfu: float, vocab: Vocab) -> Section:
    """Return speed and duration; HFU counts recomputed activations, and data is read once."""
    network, length = build_step(run, vocab).model.network, run.data.length
    flops = training_flops_per_token(network, length)
    peak = device.flops if run.train.autocast else device.float32_flops
    blocks = flops - 6 * cast(nn.Linear, network.head).weight.numel()
    # a forward pass of the blocks is a third of forward and backward
    recomputed = blocks / 3 if run.backbone.options.get("checkpoint_activations") else 0.0
    per_step = run.train.global_batch * length
    per_second = ranks * peak * mfu / flops
    tokens, bytes_each = run.train.steps * per_step, 2 if vocab.size <= 1 << 16 else 4
    return {
        "flops_per_token": flops,
        "precision": "bf16" if run.train.autocast else "float32",
        "peak": peak,
        "mfu": mfu,
        "hfu": mfu * (flops + recomputed) / flops,
        "tokens": tokens,
        "tokens_per_step": per_step,
        "tokens_per_second": per_second,
        "step_seconds": per_step / per_second,
        "days": tokens / per_second / _DAY,
        "data_bytes": tokens * bytes_each,
        "data_bytes_per_second": per_second * bytes_each,
    }


def traffic(
    collectives: Iterable[Collective], ranks: int, link: float | None, assumptions: Assumptions
) -> Section | None:
    """Return the communication of a step; None if the `link` within a machine is unknown.

    Neighbouring ranks share a machine. Rings use all network adapters of a machine at once.
    All-gather and reduce-scatter: all bytes enter every machine once, split over its devices, and
    are exchanged inside the machine. All-reduce of replicas: twice the bytes of a shard, to reduce
    and to broadcast; devices of a machine that hold the same shard split them.
    """
    if link is None:
        return None
    per_machine, flows = min(assumptions.ranks_per_machine, ranks), list[Section]()
    for collective in collectives:
        rounds, inside = 1, min(collective.ranks, per_machine)
        if collective.kind == "all-reduce":
            # replicas in a machine
            rounds, inside = 2, max(1, per_machine * collective.ranks // ranks)
        machines = -(-collective.ranks // inside)
        # up a tree and down, or around a ring
        hops = 2 * math.ceil(math.log2(machines)) if rounds == 2 else machines - 1
        entering = rounds * collective.bytes * (machines - 1) / machines / inside
        exchanged = rounds * collective.bytes * (inside - 1) / inside
        transfer = max(entering / (assumptions.network_gb_per_second * 1e9), exchanged / link)
        latency = collective.calls * hops * (assumptions.hop_microseconds * 1e-6)
        flow = {"collective": collective, "machines": machines, "between_bytes": entering}
        flows.append(flow | {"seconds": transfer + latency})
    return {"flows": flows, "seconds": sum(flow["seconds"] for flow in flows)}


def checkpoint_cost(
    traced: StepTrace, num_shards: int, hidden_seconds: float, assumptions: Assumptions
) -> Section:
    """Return the cost of a checkpoint of a model in `num_shards` shards.

    Training pauses to copy it to host memory, and for the time of writing beyond `hidden_seconds`.
    """
    held = traced.phases["update"]
    on_rank = held["parameters"] + held["optimiser"] + held.get("ema", 0)
    copies = 4 if "ema" in held else 3  # weights, two moments, EMA
    size = 4 * copies * traced.num_parameters
    copy_seconds = on_rank / (assumptions.copy_gb_per_second * 1e9)
    write_seconds = size / (assumptions.write_gb_per_second * 1e9)
    return {
        "bytes": size,
        "bytes_per_rank": on_rank,
        "pause_seconds": copy_seconds + max(0.0, write_seconds - hidden_seconds),
        "write_seconds": write_seconds,
        "pieces": copies * traced.num_tensors * num_shards,
    }


def failures(
    seconds: float,
    saved: Section,
    ranks: int,
    assumptions: Assumptions,
    interval: float | None = None,
) -> Section:
    """Return the cost of failures in a run of `seconds` with a checkpoint every `interval` seconds.

    A failure costs the restart, half an interval of work, and the time until a checkpoint that was
    started is complete. An interval of None is the optimal one, sqrt(2 pause / rate) (Young 1974),
    but at least the time to write a checkpoint and at most the run.
    """
    rate, pause = assumptions.failures_per_device_hour * ranks / _HOUR, saved["pause_seconds"]
    if interval is None:
        best = math.sqrt(2 * pause / rate) if rate else math.inf
        interval = min(max(best, saved["write_seconds"]), seconds)
    lost = interval / 2 + saved["write_seconds"] + 60 * assumptions.restart_minutes
    goodput = max(0.0, 1 - pause / interval - rate * lost)  # fraction of time that is not lost
    total = seconds / goodput if goodput else math.inf  # infinite if the run never completes
    return {
        "hours_between": 1 / rate / _HOUR if rate else math.inf,
        "interval_seconds": interval,
        "goodput": goodput,
        "expected": rate * total if rate else 0.0,
        "days": total / _DAY,
    }
