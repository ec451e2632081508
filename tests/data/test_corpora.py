"""Corpora by name: datasets of the Hugging Face hub, and sources whose entropy is known."""

import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from gidd.cli import main
from gidd.data import corpora
from gidd.data.corpora import CORPORA, HubCorpus, resolve
from gidd.data.corpora.documents import Documents
from gidd.data.corpora.formats import ParquetFile
from gidd.data.manifest import DataManifest, verify
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer, character_level, train_tokenizer
from gidd.errors import ConfigError, DataError
from gidd.pipeline.text import TokenDecoder
from gidd.sources import MarkovSource
from gidd.vocab import Vocab

REASON = 'needs `pip install "gidd[data]"`'

TEXTS = [f"Document {i}: " + "é東京 of many. " * (i % 7) for i in range(40)]


def test_corpora_are_listed_by_their_names():
    assert {name: corpus.name for name, corpus in CORPORA.items()} == {n: n for n in CORPORA}
    assert all(corpus.description for corpus in CORPORA.values())
    assert CORPORA["openwebtext"].validation() == 100_000


# ---- datasets of the hub; a folder stands in for it: the library opens both in the same way ----


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, 300)


@pytest.fixture(params=["jsonl", "parquet"])
def dataset(request, tmp_path) -> Path:
    """TEXTS in the column "content" of four files of a split, and others of another split."""
    pytest.importorskip("datasets", reason=REASON)
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path / "dataset"
    folder.mkdir()
    parts = [TEXTS[:3], TEXTS[3:20], TEXTS[20:25], TEXTS[25:]]
    for name, texts in [*((f"train-{i}", part) for i, part in enumerate(parts)), ("test", ["t"])]:
        table = pyarrow.table({"content": texts, "id": range(len(texts))})
        if request.param == "parquet":
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=2)
        else:
            rows = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
            (folder / f"{name}.jsonl").write_text(rows)
    return folder


def read(documents: list[Documents]) -> list[str]:
    return [text for part in documents for text in part.read(0, part.count())]


@pytest.mark.slow
def test_any_dataset_can_be_named(dataset, tokenizer, tmp_path):
    source = f"hf:{dataset}?text=content"
    assert read(resolve(source)) == TEXTS
    assert read(resolve(f"hf:{dataset}?split=test&text=content")) == ["t"]
    made = prepare([source], tokenizer, tmp_path / "out", tasks=6, validation=4, quiet=True)
    assert made.splits["train"].documents == 36
    assert made.sources == (source,)
    expected = [[*tokenizer.encode(text), tokenizer.end_id] for text in TEXTS]
    files = [shard.file for split in made.splits.values() for shard in split.shards]
    tokens = [np.fromfile(tmp_path / "out" / file, dtype="<u2") for file in files]
    assert np.concatenate(tokens).tolist() == sum(expected, [])


def test_a_task_opens_only_the_files_that_its_documents_are_in(dataset):
    """Earlier files are neither read nor skipped through: here they do not exist."""
    documents = resolve(f"hf:{dataset}?text=content")
    counts = [part.count() for part in documents]
    assert counts == [3, 17, 5, 15]
    for path in [*dataset.glob("train-0.*"), *dataset.glob("train-1.*")]:
        path.unlink()
    assert read(documents[2:]) == TEXTS[20:]
    assert list(documents[3].read(4, 6)) == TEXTS[29:31]


def test_parquet_files_are_divided_and_others_are_streamed(dataset):
    documents = resolve(f"hf:{dataset}?text=content")
    is_parquet = any(dataset.glob("*.parquet"))
    assert all(isinstance(part, ParquetFile) == is_parquet for part in documents)
    assert all((part.extent() > 1) == is_parquet for part in documents)


def test_a_dataset_that_changed_is_another_source(dataset, tokenizer, tmp_path):
    source = f"hf:{dataset}?text=content"
    prepare([source], tokenizer, tmp_path / "out", quiet=True)
    for path in dataset.glob("train-0.*"):
        os.utime(path, (1, 1))
    corpora.hf_dataset._builder.cache_clear()  # as in a new process
    with pytest.raises(DataError, match="other documents"):
        prepare([source], tokenizer, tmp_path / "out", quiet=True)


@pytest.mark.parametrize(
    ("query", "kind", "message"),
    [
        ("", DataError, r'must have a column "text", it has \[.content., .id.\].*text=COLUMN'),
        ("?text=id", DataError, 'a string in "id"'),
        ("?split=tain&text=content", DataError, "tain.*train"),
        ("?config=english&text=content", DataError, "english.*default"),
        ("?column=content", ConfigError, "config, split, text"),
        ("?split=train&split=test", ConfigError, "split=train&split=test"),
    ],
)
def test_a_wrong_dataset_name_is_reported(dataset, tokenizer, tmp_path, query, kind, message):
    with pytest.raises(kind, match=message):
        prepare([f"hf:{dataset}{query}"], tokenizer, tmp_path / "out", tasks=1, quiet=True)


def test_a_missing_dataset_is_named(tokenizer, tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason=REASON)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=f"{tmp_path}/none on the Hugging Face hub cannot be read"):
        prepare([f"hf:{tmp_path}/none"], tokenizer, tmp_path / "out", quiet=True)
    with pytest.raises(ConfigError, match="hf:ORG/NAME"):
        resolve("hf:")


def test_a_listed_corpus_may_have_a_validation_split(dataset, tokenizer, tmp_path, monkeypatch):
    local = HubCorpus(
        name="local",
        description="-",
        dataset=str(dataset),
        validation_split="test",
        text_field="content",
    )
    monkeypatch.setitem(CORPORA, "local", local)
    made = prepare(["local"], tokenizer, tmp_path / "out", tasks=3, quiet=True)
    counts = {name: split.documents for name, split in made.splits.items()}
    assert counts == {"train": 40, "validation": 1}


# ---- exact sources ----

EXACT = {
    name: dataclasses.replace(CORPORA[name], num_documents=300, length=64, held_out=100)
    for name in ("markov", "hidden-markov", "sentences")
}


@pytest.fixture(params=EXACT)
def exact(request, monkeypatch) -> str:
    monkeypatch.setitem(CORPORA, request.param, EXACT[request.param])
    return request.param


def tokens_of(folder: Path, split: str) -> torch.Tensor:
    """Documents [B, L], after checking that end-of-text closes each."""
    manifest = DataManifest.read(folder)
    files = [folder / shard.file for shard in manifest.splits[split].shards]
    tokens = np.concatenate([np.fromfile(file, dtype="<u2") for file in files])
    rows = torch.from_numpy(tokens.astype(np.int64)).reshape(-1, 65)
    assert (rows[:, -1] == manifest.end_id).all()
    return rows[:, :-1]


@pytest.mark.slow
def test_ids_on_disk_are_the_tokens_of_the_source(exact, tmp_path):
    corpus = EXACT[exact]
    prepare([exact], corpus.tokenizer(), tmp_path, tasks=7, quiet=True)
    made = verify(tmp_path)
    size = corpus.make().num_tokens
    assert made.vocab == Vocab(size + 2, mask_id=size + 1, pad_id=size)
    assert made.end_id == size
    stored = torch.cat([tokens_of(tmp_path, split) for split in ("train", "validation")])
    expected = corpus.make().sample(corpus.seed, torch.arange(300), 64)
    assert torch.equal(stored, expected)


@pytest.mark.slow
def test_the_recorded_entropy_is_that_of_the_stored_tokens(exact, tmp_path):
    """The source's own log-probability of what is on disk, within four standard errors."""
    corpus = EXACT[exact]
    made = prepare([exact], corpus.tokenizer(), tmp_path, quiet=True)
    x, source = tokens_of(tmp_path, "train"), corpus.make()
    late = source.log_prob(x) - source.log_prob(x[:, :32])  # log p of the second half
    nats = -late / 32
    error = math.hypot(nats.std() / len(x) ** 0.5, made.known["entropy_rate_standard_error"])
    assert float(nats.mean()) == pytest.approx(made.known["entropy_rate"], abs=4 * error)
    assert made.known["entropy_rate"] < math.log(64) - 1


def test_an_exact_source_is_prepared_alone_and_with_its_own_tokens(exact, tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=f"tokenizer of {exact} must be its own"):
        prepare([exact], tokenizer, tmp_path, quiet=True)
    with pytest.raises(ConfigError, match=f"sources must be {exact} alone"):
        prepare([exact, str(tmp_path)], EXACT[exact].tokenizer(), tmp_path, quiet=True)


def test_more_tokens_than_ascii_has_keep_their_ids():
    """Every symbol is one id, in order, and comes back."""
    corpus = dataclasses.replace(EXACT["markov"], make=lambda: MarkovSource.random(500))
    symbols = corpus.symbols()
    assert len(set(symbols)) == 500
    tokenizer = character_level(symbols)
    assert tokenizer.encode(symbols) == list(range(500))
    assert tokenizer.decode(range(500)) == symbols
    assert tokenizer.encode("[MASK]") == [symbols.index(symbol) for symbol in "[MASK]"]


def test_sentences_are_words():
    """Documents, and what is sampled and scored from their tokens, read as text."""
    corpus = EXACT["sentences"]
    tokenizer, words = corpus.tokenizer(), corpus.words()
    (text,) = corpus.documents()[0].read(0, 1)
    tokens = tokenizer.encode(text)
    assert tokens == corpus.make().sample(corpus.seed, torch.arange(1), 64)[0].tolist()
    assert text.split() == [words[token] for token in tokens]
    assert tokenizer.decode(tokens) == text == "".join(TokenDecoder(tokenizer)(tokens)).strip()
    assert tokenizer.encode(" the\ndogs  sing . ") == tokenizer.encode("the dogs sing .")


def test_a_text_of_words_begins_with_or_without_a_space():
    decoder = TokenDecoder(EXACT["sentences"].tokenizer())
    for text in ("the dogs sing .", " the dogs sing ."):
        given = decoder.encode_with_offsets(text, "it")
        assert "".join(given.texts) == text
        assert "".join(decoder.decode_like(given.tokens, given)) == text
        assert decoder.encode(text, "it") == list(given.tokens)
    with pytest.raises(DataError, match="restored exactly"):
        decoder.encode("the  dogs", "it")


def test_a_word_that_a_source_has_not_is_refused_by_name(tmp_path):
    EXACT["sentences"].tokenizer().save(tmp_path)
    for tokenizer in (EXACT["sentences"].tokenizer(), Tokenizer.load(tmp_path)):
        for text, word in (("the dogs bark .", "'bark'"), ("the [MASK]", r"'\[MASK\]'")):
            with pytest.raises(DataError, match=f"^{word} is not a word .* 58.*children"):
                tokenizer.encode(text)


@pytest.mark.slow
def test_exact_sources_from_the_command_line(exact, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["data", "prepare", exact, "--out", "made"])
    assert "200 documents" in capsys.readouterr().out
    main(["data", "show", "made"])
    shown = capsys.readouterr().out
    assert f"entropy rate {EXACT[exact].known()['entropy_rate']:.6g}" in shown
    assert f"vocabulary size {EXACT[exact].make().num_tokens + 2}" in shown
    main(["data", "prepare", exact, "--tokenizer", "made", "--out", "made"])
    with pytest.raises(SystemExit):
        main(["data", "prepare", exact, ".", "--out", "other"])
    assert "alone" in capsys.readouterr().err
