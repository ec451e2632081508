"""LM1B: the One Billion Word Benchmark, single sentences of news."""

from gidd.data.corpora.hf_dataset import HubCorpus

LM1B = HubCorpus(
    name="lm1b",
    description="One Billion Word Benchmark; its test split is for validation",
    dataset="dvruette/lm1b",
    validation_split="test",
)
