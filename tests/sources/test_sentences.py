"""The source of small sentences: what is wrong in them is unlikely."""

import re

import pytest
import torch

from gidd.sources import sentence_source

SOURCE, WORDS = sentence_source()


def log_prob(text: str) -> float:
    return float(SOURCE.log_prob(torch.tensor([[WORDS.index(word) for word in text.split()]])))


@pytest.mark.parametrize(
    "right, wrong",
    [
        (". the old cats sleep .", ". the old cats sleeps ."),
        (". the child never waits .", ". the child never wait ."),
        (". 3 + 4 = 7 .", ". 3 + 4 = 8 ."),
        (". anna met bob and bob greeted anna .", ". anna met bob and bob greeted carl ."),
        (". ( [ x ] y ) .", ". ( [ x ) y ] ."),
    ],
)
def test_a_mistake_is_unlikely(right, wrong):
    assert log_prob(right) > log_prob(wrong) + 4


def test_samples_are_sentences_with_few_mistakes():
    source, words = sentence_source(noise=0.0)
    tokens = source.sample(0, torch.arange(200), 64)
    texts = [" ".join(words[token] for token in row) for row in tokens.tolist()]
    sums = [found for text in texts for found in re.findall(r"(\d) \+ (\d) = (\d)", text)]
    assert len(sums) > 100 and all(int(a) + int(b) == int(c) for a, b, c in sums)
    assert float(source.log_prob(tokens).min()) > -torch.inf
    torch.testing.assert_close(source.initial @ source.transition, source.initial)
