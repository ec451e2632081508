"""text8: 100 million characters of Wikipedia, lower-case letters and spaces."""

from gidd.data.corpora.hf_dataset import HubCorpus

TEXT8 = HubCorpus(
    name="text8",
    description="100 million letters of Wikipedia; its validation split is for validation",
    dataset="afmck/text8",
    validation_split="validation",
)
