"""Blocks and windows: the order by its definition, who reads what, and how well it shuffles."""

import numpy as np
import pytest
from data.test_packing import greedy, shards_of
from hypothesis import given, settings, strategies as st

from gidd.data.loading.loader import BatchSource, LoaderConfig
from gidd.data.loading.order import BlockOrder, DocumentOrder, Pace, in_lanes, shuffled
from gidd.data.loading.shards import ShardSet
from gidd.diffusion.randomness import Stream

SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=60)


def pace(width: int) -> Pace:
    return Pace(((0, width),))


def blocks_by_definition(shards: ShardSet, block_bytes: int) -> list[list[int]]:
    """Equal numbers of documents of a shard, so many blocks that they have this size on average."""
    blocks, first = [], 0
    for shard in shards.shards:
        num_bytes = len(shard.tokens) * shard.tokens.dtype.itemsize
        count = min(max(1, -(-num_bytes // block_bytes)), len(shard))
        ends = [len(shard) * k // count for k in range(count + 1)]
        blocks += [list(range(first + a, first + b)) for a, b in zip(ends, ends[1:], strict=False)]
        first += len(shard)
    return blocks


def epoch_by_definition(
    shards: ShardSet, sizes: list[int], order: BlockOrder, epoch: int, width: int, size: int
) -> list[tuple[int, int]]:
    """All samples of an epoch in order, as first document and end."""
    blocks = blocks_by_definition(shards, size)
    rows = [
        [[document] for document in block]
        if order.packed_length is None
        else [
            [block[k] for k in row]
            for row in greedy([sizes[d] for d in block], order.packed_length)
        ]
        for block in blocks
    ]
    permuted = shuffled(np.arange(len(blocks)), len(blocks), order.seed, epoch).tolist()
    lanes = -(-width // 8)
    per_window = max(16, -(-256 // lanes))
    line: list[list[int]] = []
    for number, start in enumerate(range(0, len(blocks), per_window)):
        window = [row for block in permuted[start : start + per_window] for row in rows[block]]
        places, address = np.arange(len(window)), epoch << 32 | number
        order_of_window = shuffled(places, len(window), order.seed, address, Stream.WINDOW)
        line += [window[k] for k in order_of_window]
    steps, result = len(line) // width, []
    for step in range(steps):
        for first in range(0, width, 8):  # each lane reads on in its own part of the line
            samples = min(8, width - first)
            start = first * steps + step * samples
            result += line[start : start + samples]
    return [(row[0], row[-1] + 1) for row in result + line[steps * width :]]


@pytest.mark.slow
@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.lists(SIZES, min_size=1, max_size=4), st.sampled_from([1, 8, 40, 1000]),
    st.sampled_from([1, 7, 8, 24, 300]), st.sampled_from([None, 16]), st.integers(0, 2**62),
)  # fmt: skip
def test_an_epoch_is_the_definition(parts, block_bytes, width, packed, seed):
    """Every document once, in any epoch, with and without packing, asked for in any order."""
    shards, sizes = shards_of(*parts), [size for part in parts for size in part]
    if not sum(sizes):
        return
    order = BlockOrder(shards, seed, packed, block_bytes=block_bytes, pace=pace(width))
    index = np.arange(3 * order.size)
    asked = np.random.default_rng(0).permutation(index)
    first, end = (part[np.argsort(asked)] for part in order.documents(asked))
    for epoch in range(3):
        here = slice(epoch * order.size, (epoch + 1) * order.size)
        expected = epoch_by_definition(shards, sizes, order, epoch, width, block_bytes)
        assert list(zip(first[here].tolist(), end[here].tolist(), strict=True)) == expected
        documents = [d for a, b in zip(first[here], end[here], strict=True) for d in range(a, b)]
        assert sorted(documents) == list(range(len(sizes)))
    for document in range(len(sizes)):
        tokens, number = order.locate(document)
        (start, stop), (shard, row) = tokens.bounds(number), shards.locate(document)
        assert (tokens.tokens[start:stop] == shard.tokens[slice(*shard.bounds(row))]).all()


@given(st.integers(1, 500), st.integers(1, 600))
def test_lanes_are_a_permutation(size, width):
    assert sorted(in_lanes(np.arange(size), size, width)) == list(range(size))


def test_windows_differ_between_epochs_and_seeds():
    shards = shards_of([1] * 500)
    orders = {
        tuple(BlockOrder(shards, seed, None, block_bytes=9, pace=pace(8)).documents(at)[0].tolist())
        for seed in (0, 1, 2**40)
        for at in (np.arange(500), np.arange(500, 1000))
    }
    assert len(orders) == 6


LARGE = shards_of([1] * 16_000, [1] * 16_384)  # 4,048 blocks of 8 documents, 64 bytes


@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_read_different_blocks(ranks):
    """In an epoch, each block is read by one rank, but for those at the ends of lanes."""
    config = LoaderConfig(
        global_batch=128, length=8, pad_id=99, vocab_size=101, shuffle="blocks", block_bytes=64
    )
    reads = 0
    for rank in range(ranks):
        source = BatchSource(LARGE, config, rank, ranks)
        order, steps = source.orders[0], len(LARGE) // 128
        seen: set[int] = set()
        for step in range(steps):
            seen |= set(order.rows(step * 128 + source._slots)[0].tolist())
        reads += len(seen)
    assert order.num_blocks == 4048
    assert reads <= 4048 + ranks * 16  # a window at the end of each rank's lanes


def fractions(order, num_documents: int, classes: int, batch: int) -> np.ndarray:
    """The fraction of each class in each step of an epoch of a corpus that is sorted by class."""
    documents, _ = order.documents(np.arange(num_documents // batch * batch))
    counts = [
        np.bincount(step * classes // num_documents, minlength=classes)
        for step in documents.reshape(-1, batch)
    ]
    return np.array(counts) / batch


@pytest.mark.parametrize("batch", [8, 64, 256])
def test_the_class_balance_of_a_sorted_corpus(batch):
    """Variance of a class in a step: full shuffle p (1 - p) / batch, blocks at most 1.6 times it.

    By blocks, the samples of a lane share a block with probability 1 / WINDOW_BLOCKS.
    """
    num, classes = len(LARGE), 4
    full = fractions(DocumentOrder(LARGE, 3, None, shuffle=True), num, classes, batch)
    blocks = BlockOrder(LARGE, 3, None, block_bytes=64, pace=pace(batch))
    ours = fractions(blocks, num, classes, batch)
    expected = 0.25 * 0.75 / batch
    assert full.var() == pytest.approx(expected, rel=0.15)
    assert ours.var() < 1.6 * expected
    assert (
        fractions(
            BlockOrder(LARGE, 3, None, block_bytes=1 << 14, pace=pace(batch)), num, classes, batch
        ).var()
        > 0
    )  # few blocks: one window


@pytest.mark.parametrize("steps", [(0,), (0, 3, 10)])
def test_the_samples_of_a_source_are_counted_through_changes(steps):
    counts = [5, 0, 2][: len(steps)]
    changing = Pace(tuple(zip(steps, counts, strict=True)))
    index = 0
    for step in range(20):
        assert changing.index(step) == index
        samples = changing.samples(step)
        for k in range(index, index + samples):
            assert changing.samples_at(k) == samples
        index += samples
