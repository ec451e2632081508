"""Several sources by weights: each step has the same number of samples of each, on any ranks."""

import numpy as np
import pytest
from data.test_packing import shards_of
from hypothesis import given, strategies as st

from gidd.data.loading.loader import BatchSource, Loader, LoaderConfig
from gidd.data.loading.order import Pace
from gidd.data.mixture import folders_of, samples_per_step
from gidd.errors import ConfigError
from gidd.training.config import DataConfig

CONFIG = {"global_batch": 8, "length": 16, "pad_id": 99, "vocab_size": 101, "block_bytes": 60}
SOURCES = [shards_of([3, 9, 4, 1, 40, 2, 7, 8] * 3), shards_of([5] * 13, [6] * 4), shards_of([2])]
PACES = [Pace(((0, 5), (7, 2), (20, 0))), Pace(((0, 3), (7, 6), (20, 7))), Pace(((0, 0), (20, 1)))]


def test_a_batch_is_divided_by_the_weights():
    assert samples_per_step(["data/wiki*3", "s3://bucket/code*1"], 8) == {0: (6, 2)}
    assert samples_per_step(["a*3,1000:1", "b*1,10:0.5"], 10) == {
        0: (8, 2),  # of 7.5 and 2.5 the first is rounded up
        10: (9, 1),
        1000: (7, 3),
    }
    assert samples_per_step(["a*1,5:0", "b*0,5:1"], 3) == {0: (3, 0), 5: (0, 3)}


@given(st.lists(st.floats(0.5, 1000), min_size=1, max_size=6), st.integers(2000, 4000))
def test_samples_are_rounded_by_less_than_one(weights, batch):
    weights = [round(weight, 3) for weight in weights]
    (counts,) = samples_per_step([f"a*{weight}" for weight in weights], batch).values()
    assert sum(counts) == batch
    for weight, count in zip(weights, counts, strict=True):
        assert abs(count - batch * weight / sum(weights)) < 1


def test_weights_that_leave_a_source_out_are_refused():
    for sources in (["a*100", "b*1"], ["a*0", "b*0"]):
        with pytest.raises(ConfigError, match=r"data\.sources: [ab]"):
            samples_per_step(sources, 8)
    with pytest.raises(ConfigError, match=r"data\.sources.*a\*1 b"):
        raise ConfigError(*DataConfig(sources=("a*1", "b")).problems())
    assert folders_of(["a*1", "b"]) == () == folders_of(["https://host/*.jsonl"])
    assert folders_of(["a*1", "s3://b/c*0.25,10:3"]) == ("a", "s3://b/c")


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("shuffle", ["full", "blocks"])
def test_each_source_is_shuffled_and_repeated_by_itself(shuffle, packing):
    """Every document once in each epoch of its source, across changes of the weights."""
    config = LoaderConfig(**CONFIG, shuffle=shuffle, packing=packing)
    source = BatchSource(SOURCES, config, paces=PACES)
    seen: list[list[int]] = [[], [], []]
    for step in range(40):
        sources, firsts, ends = source.documents(step)
        assert np.bincount(sources, minlength=3).tolist() == [p.samples(step) for p in PACES]
        for name, first, end in zip(sources, firsts, ends, strict=True):
            seen[name].append((int(first), int(end)))
    for name, (order, samples) in enumerate(zip(source.orders, seen, strict=True)):
        epochs = len(samples) // order.size
        assert epochs > 1
        for epoch in range(epochs):
            rows = sorted(samples[epoch * order.size : (epoch + 1) * order.size])
            assert [d for row in rows for d in range(*row)] == list(range(len(SOURCES[name])))


@pytest.mark.parametrize("shuffle", ["full", "blocks"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_mixture_does_not_depend_on_ranks_or_where_it_resumes(shuffle, ranks):
    config = LoaderConfig(**CONFIG, shuffle=shuffle)
    whole = BatchSource(SOURCES, config, paces=PACES)
    for rank in range(ranks):
        loader = Loader(SOURCES, config, paces=PACES, rank=rank, num_ranks=ranks, start=5)
        try:
            for step in range(5, 25):
                batch, rows = next(loader), slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
                for name, array in whole[step].items():
                    assert np.array_equal(getattr(batch, name).numpy(), array[rows])
        finally:
            loader.close()
    assert loader.epochs(20) == {"epochs/0": 61 / 24, "epochs/1": 99 / 17, "epochs/2": 0.0}


@pytest.mark.long
@pytest.mark.parametrize("shuffle", ["full", "blocks"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_worker_processes_read_the_same_mixture(shuffle, workers):
    config = LoaderConfig(**CONFIG, shuffle=shuffle)
    whole = BatchSource(SOURCES, config, paces=PACES)
    loader = Loader(SOURCES, config, paces=PACES, num_workers=workers)
    try:
        for step in range(25):
            assert np.array_equal(next(loader).tokens.numpy(), whole[step]["tokens"])
    finally:
        loader.close()
