"""Counts of n-grams and what they say about a word."""

import math

import numpy as np
import pytest
from gidd_proof.contexts import DISCOUNT, END, UNKNOWN, Contexts, Neighbours, Table
from gidd_proof.words import MODEL_FOLDER

from gidd.errors import DataError

training = pytest.importorskip("contexts", reason="needs packages/proof/training")

TEXTS = [
    "the dog barks. the cat sleeps. the dog sleeps.\n" * 6,
    "a cat sleeps, London sleeps. " * 9,
]


@pytest.fixture(scope="module")
def table():
    return training.count(TEXTS, min_count=5)


def gain(contexts, before, word, after=(END, END)):
    tokens = [UNKNOWN, UNKNOWN, *map(contexts.token, before.split())][-2:]
    (value,) = contexts.gains([(Neighbours(tuple(tokens), after), word)])
    return value


def test_a_pair_has_its_discounted_probability(table):
    """P(dog | the) = (12 - D) / 18 + rest f(dog), by the definition of the module."""
    found = Contexts(table)
    frequency = found.frequency("dog")
    followers = {"dog": 12, "cat": 6}
    rest = 1 - sum((n - DISCOUNT) / 18 for n in followers.values())
    expected = math.log(((12 - DISCOUNT) / 18 + rest * frequency) / frequency)
    after = (UNKNOWN, UNKNOWN)
    assert gain(found, "the", "dog", after) == pytest.approx(expected, rel=1e-6)


def test_neighbours_on_both_sides_count(table):
    found = Contexts(table)
    assert gain(found, "the", "dog") > gain(found, "the", "sleeps")
    barks = found.token("barks"), END
    assert gain(found, "the", "dog", barks) > gain(found, "the", "cat", barks)
    assert gain(found, "the", "unheard") == 0


def test_no_query_has_no_gain(table):
    assert len(Contexts(table).gains([])) == 0


def test_a_table_is_read_back(table, tmp_path):
    path = tmp_path / "contexts.npz"
    table.save(path)
    again = Table.read(path)
    assert again.vocabulary == table.vocabulary
    for name in ("is_name", "neighbours"):
        np.testing.assert_array_equal(getattr(again, name), getattr(table, name))
    for name in ("pairs", "triples"):
        np.testing.assert_array_equal(getattr(again, name)[:, :2], getattr(table, name)[:, :2])
        np.testing.assert_allclose(getattr(again, name)[:, 2], getattr(table, name)[:, 2], rtol=0.1)


def test_a_damaged_table_is_refused(tmp_path):
    (tmp_path / "contexts.npz").write_bytes(b"PK nothing")
    with pytest.raises(DataError, match=r"contexts\.npz"):
        Contexts.of_model(tmp_path)


def test_names_and_neighbours_are_counted(table):
    found = Contexts(table)
    assert found.is_name("london") and not found.is_name("dog")
    plain = training.count(["cat hat cats can. " * 9], min_count=5)
    near = Contexts(plain, [("cat", "kat")]).near
    assert set(near("cat")) == {"hat", "can", "kat"}  # cats: grammar, not spelling


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        ("She is taller then me.", "then", "than"),
        ("It has lost it's way.", "it's", "its"),
        ("They live in there house.", "there", "their"),
        ("It is to late to go.", "to", "too"),
    ],
)
def test_the_packaged_counts_prefer_the_right_word(text, wrong, right):
    found = Contexts.of_model(MODEL_FOLDER)
    around = found.tokens(text).around(text.index(wrong))
    one, other = found.gains([(around, wrong), (around, right)])
    assert other > one + 2
    assert right in found.near(wrong)


def test_the_packaged_counts_are_small():
    assert (MODEL_FOLDER / "contexts.npz").stat().st_size <= 1_500_000
