"""TinyStories: short stories in the words of a small child."""

from gidd.data.corpora.hf_dataset import HubCorpus

TINYSTORIES = HubCorpus(
    name="tinystories",
    description="short synthetic stories; its validation split is for validation",
    dataset="roneneldan/TinyStories",
    validation_split="validation",
)
