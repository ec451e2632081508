"""OpenWebText: the paper's training data."""

from gidd.data.corpora.hf_dataset import HubCorpus

OPENWEBTEXT = HubCorpus(
    name="openwebtext",
    description="web pages linked from Reddit; the last 100,000 documents are for validation",
    dataset="Skylion007/openwebtext",
    held_out=100_000,
)
