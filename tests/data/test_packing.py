"""Short documents packed into rows: which documents, where, and the same on any ranks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gidd.data.loading.loader import BatchSource, LoaderConfig
from gidd.data.loading.order import packed_rows
from gidd.data.loading.shards import ShardSet, TokenShard
from gidd.errors import DataError

PAD, VOCAB_SIZE, LENGTH = 99, 101, 16
CONFIG = LoaderConfig(
    global_batch=4, length=LENGTH, pad_id=PAD, vocab_size=VOCAB_SIZE, packing=True
)


def shards_of(*parts: list[int], has_given: bool = False) -> ShardSet:
    """Shards of documents of these sizes; tokens are random, and given is their parity."""
    rng, shards = np.random.default_rng(0), []
    for number, sizes in enumerate(parts):
        tokens = rng.integers(0, PAD, sum(sizes))
        given = tokens % 2 if has_given else None
        shards.append(TokenShard(f"{number}.ds", tokens, np.cumsum(sizes, dtype=np.uint64), given))
    return ShardSet(shards)


def greedy(sizes: list[int], length: int) -> list[list[int]]:
    """The documents of each row, by the definition."""
    rows: list[list[int]] = []
    for document, size in enumerate(sizes):
        if rows and sum(sizes[one] for one in rows[-1]) + size <= length:
            rows[-1].append(document)
        else:
            rows.append([document])
    return rows


SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=30)


@given(st.lists(SIZES, min_size=1, max_size=3), st.integers(1, 20))
def test_rows_are_those_of_the_greedy_definition(parts, length):
    sizes = [size for part in parts for size in part]
    rows = packed_rows(np.array(sizes), length)
    found = [list(range(*bounds)) for bounds in zip(rows[:-1], rows[1:], strict=True)]
    assert found == greedy(sizes, length)


PARTS = ([3, 9, 4, 1, 40, 2, 0, 8], [16, 5, 5, 7])


@pytest.mark.parametrize("has_given", [False, True])
@pytest.mark.parametrize("shuffle", ["none", "full"])
def test_every_document_of_an_epoch_is_in_one_row(shuffle, has_given):
    """Segments are whole documents; one that is longer than the context is cropped, alone."""
    shards = shards_of(*PARTS, has_given=has_given)
    source = BatchSource(shards, replace(CONFIG, shuffle=shuffle))
    rows = greedy([size for part in PARTS for size in part], LENGTH)
    assert [len(row) for row in rows] == [3, 1, 1, 3, 1, 2, 1]
    seen = []
    for step in range(len(rows)):  # as many epochs as samples per batch
        arrays = source[step]
        assert (arrays["valid"] == (arrays["segments"] >= 0)).all()
        assert (arrays["tokens"][~arrays["valid"]] == PAD).all()
        for row, (tokens, segments) in enumerate(
            zip(arrays["tokens"], arrays["segments"], strict=True)
        ):
            numbers = segments[segments >= 0]
            assert (np.diff(numbers) >= 0).all() and (segments[len(numbers) :] == -1).all()
            seen += [tuple(tokens[segments == number]) for number in np.unique(numbers)]
            if has_given:
                parity = np.where(segments >= 0, tokens % 2, 0)
                assert (arrays["given"][row] == parity).all()
    bounds = ((shard, *shard.bounds(k)) for shard in shards.shards for k in range(len(shard)))
    documents = [tuple(shard.tokens[start:stop]) for shard, start, stop in bounds]
    short = [document for document in documents if 0 < len(document) <= LENGTH]
    assert sorted(text for text in seen if text in short) == sorted(4 * short)
    long = [text for text in seen if text not in short]
    assert len(long) == 4 and all(len(text) == LENGTH for text in long)


def test_a_batch_is_a_function_of_the_step_on_any_ranks():
    shards = shards_of(*PARTS)
    alone = BatchSource(shards, CONFIG)
    parts = [BatchSource(shards, CONFIG, rank, 3) for rank in range(3)]
    for step in (5, 0, 1000):
        whole = alone[step]
        for name, array in whole.items():
            together = np.concatenate([part[step][name] for part in parts])
            assert np.array_equal(together, array)


def test_without_packing_there_are_no_segments():
    assert "segments" not in BatchSource(shards_of(*PARTS), replace(CONFIG, packing=False))[0]


def test_a_damaged_index_and_a_wrong_token_are_refused_by_name():
    shards = shards_of([3, 3], [4, 5, 6])
    tokens = shards.shards[1].tokens
    damaged = ShardSet([TokenShard("bad.ds", tokens, np.array([9, 4, 15], dtype=np.uint64))])
    with pytest.raises(DataError, match=r"bad\.ds.*index"):
        BatchSource(damaged, CONFIG)
    tokens[5] = VOCAB_SIZE  # of the second document of its shard, the fourth of its row
    with pytest.raises(DataError, match=r"1\.ds: document 1 .*101"):
        BatchSource(shards, replace(CONFIG, shuffle="none"))[0]
