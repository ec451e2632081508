"""FineWeb: filtered Common Crawl, here its sample of 10 billion tokens."""

from gidd.data.corpora.hf_dataset import HubCorpus

FINEWEB = HubCorpus(
    name="fineweb",
    description="filtered Common Crawl, sample-10BT; the last 100,000 documents are for validation",
    dataset="HuggingFaceFW/fineweb",
    config="sample-10BT",
    held_out=100_000,
)
