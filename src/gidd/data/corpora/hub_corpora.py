"""Named datasets on the Hugging Face hub."""

from gidd.data.corpora.hf_dataset import HubCorpus

HUB_CORPORA = (
    HubCorpus(  # the training data of the paper
        name="openwebtext",
        description="web pages linked from Reddit; validation on the last 100,000 documents",
        dataset="Skylion007/openwebtext",
        held_out=100_000,
    ),
    HubCorpus(
        name="fineweb",
        description="filtered Common Crawl, sample-10BT; validation: last 100,000 documents",
        dataset="HuggingFaceFW/fineweb",
        config="sample-10BT",
        held_out=100_000,
    ),
    HubCorpus(
        name="lm1b",
        description="One Billion Word Benchmark; validation on its test split",
        dataset="dvruette/lm1b",
        validation_split="test",
    ),
    HubCorpus(  # good and featured articles, one line a document
        name="wikitext",
        description="WikiText-103, raw; validation on its validation split",
        dataset="Salesforce/wikitext",
        config="wikitext-103-raw-v1",
        validation_split="validation",
    ),
    HubCorpus(
        name="tinystories",
        description="short synthetic stories; validation on its validation split",
        dataset="roneneldan/TinyStories",
        validation_split="validation",
    ),
    HubCorpus(
        name="text8",
        description="100 million letters of Wikipedia; validation on its validation split",
        dataset="afmck/text8",
        validation_split="validation",
    ),
)
