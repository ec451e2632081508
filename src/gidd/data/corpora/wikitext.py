"""WikiText-103: good and featured articles of Wikipedia, one line a document."""

from gidd.data.corpora.hf_dataset import HubCorpus

WIKITEXT = HubCorpus(
    name="wikitext",
    description="WikiText-103, raw; its validation split is for validation",
    dataset="Salesforce/wikitext",
    config="wikitext-103-raw-v1",
    validation_split="validation",
)
