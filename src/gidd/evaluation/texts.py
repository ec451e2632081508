"""Documents to evaluate on: held-out ones of a corpus, files, folders, URLs or prepared shards.

documents(["sotu", "letters/"], tokenizer=pipe.tokenizer, max_documents=100)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gidd.common.config.allowed import integer, optional, require_arguments
from gidd.common.urls import is_url, without_credentials
from gidd.data.corpora import corpora_of
from gidd.data.loading.loader import open_split
from gidd.data.loading.shards import invalid_tokens
from gidd.data.manifest import DATA_MANIFEST, DataManifest
from gidd.data.preparation.tasks import VALIDATION
from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError, DataError
from gidd.pipeline.text import TokenDecoder

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


class Document(NamedTuple):
    """A text to evaluate on."""

    id: str  # source and number of the document, such as `sotu#3`
    text: str
    tokens: tuple[int, ...] | None = None
    """Tokens of a prepared folder of the same tokenizer, of a text without end-of-text; otherwise
    None."""
    given: tuple[bool, ...] | None = None  # the condition of a chat, which is not scored


class EncodedDocument(NamedTuple):
    """A document as tokens, and the UTF-8 bytes of its text."""

    id: str
    tokens: Int[Tensor, " n"]
    num_bytes: int  # of a chat: of its answers, without special tokens
    given: Bool[Tensor, " n"] | None = None


class EncodedCorpus(NamedTuple):
    """Documents that have tokens, the number of empty documents, and a hash of all texts."""

    documents: list[EncodedDocument]
    num_skipped: int
    sha256: str


def documents(
    sources: Sequence[str], *, tokenizer: Tokenizer, max_documents: int | None = None
) -> Iterator[Document]:
    """Yield the documents of the sources in order; empty ones are skipped.

    Sources are files, folders, URLs, datasets and corpora, as for `gidd data prepare`, and folders
    that it wrote. A corpus that defines held-out documents gives only these; a prepared folder
    gives its validation split. `tokenizer` is the model's.
    """
    require_arguments(max_documents=(max_documents, optional(integer(1))))
    if not sources:
        raise ConfigError("sources must be one or more files, folders, URLs or corpora, got none.")
    all_documents = chain.from_iterable(_documents_of(source, tokenizer) for source in sources)
    is_empty = True
    for document in islice((item for item in all_documents if item.text), max_documents):
        is_empty = False
        yield document
    if is_empty:
        raise DataError(f"{', '.join(source_names(sources))}: there is no text to evaluate on.")


def source_names(sources: Iterable[str]) -> list[str]:
    """Return the sources as a manifest records them: URLs without credentials."""
    return [without_credentials(source) for source in sources]


def texts_digest(texts: Iterable[str]) -> str:
    """Return the SHA-256 of a list of texts, for the manifest: results on equal texts compare."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def encode_corpus(
    sources: Sequence[str],
    decoder: TokenDecoder,
    *,
    max_documents: int | None = None,
    last: Sequence[int] = (),
) -> EncodedCorpus:
    """Read and encode documents, whose texts must be restored exactly; append `last` to each."""
    encoded: list[EncodedDocument] = []
    num_skipped = 0

    def texts() -> Iterator[str]:
        nonlocal num_skipped
        read = documents(sources, tokenizer=decoder.tokenizer, max_documents=max_documents)
        for document in read:
            tokens = document.tokens
            if tokens is None:
                tokens = decoder.encode(document.text, f"the text of {document.id}")
            if document.given is not None and tokens:
                given, ids = torch.tensor(document.given), torch.tensor(tokens)
                tokenizer = decoder.tokenizer
                answers = [v for v in ids[~given].tolist() if v not in tokenizer.special_ids]
                num_bytes = len(tokenizer.decode(answers).encode())
                encoded.append(EncodedDocument(document.id, ids, num_bytes, given))
            elif tokens:
                ids = torch.tensor([*tokens, *last])
                encoded.append(EncodedDocument(document.id, ids, len(document.text.encode())))
            else:
                num_skipped += 1
            yield document.text

    digest = texts_digest(texts())  # reads them one after the other: only tokens are kept
    return EncodedCorpus(encoded, num_skipped, digest)


def _documents_of(source: str, tokenizer: Tokenizer) -> Iterator[Document]:
    if not is_url(source) and (Path(source) / DATA_MANIFEST).is_file():
        yield from _prepared(Path(source), tokenizer)
        return
    (corpus,) = corpora_of([source])
    corpus_tokenizer = corpus.tokenizer()
    if corpus_tokenizer is not None and corpus_tokenizer.fingerprint != tokenizer.fingerprint:
        required = "a model with its own tokenizer: its tokens are symbols of an exact source"
        raise ConfigError(f"{corpus.name} must be evaluated by {required}.")
    name, parts, left = without_credentials(corpus.name), corpus.documents(), corpus.validation()
    held_out: list[Iterator[str]] = []
    if not left:
        held_out = [part.texts() for part in parts]
    for part in reversed(parts):  # from the end: counting all parts of a dataset reads them
        if left > 0:
            count = part.count()
            held_out.insert(0, part.read(max(0, count - left), count))
            left -= count
    for index, text in enumerate(chain.from_iterable(held_out)):
        yield Document(f"{name}#{index}", text)


def _prepared(folder: Path, tokenizer: Tokenizer) -> Iterator[Document]:
    """Yield the validation split; shards of another tokenizer are decoded with their own."""
    manifest, shards = DataManifest.read(folder), open_split(folder, VALIDATION)
    is_same = manifest.tokenizer == tokenizer.fingerprint
    if not is_same:
        tokenizer = Tokenizer.load(folder)
        manifest.require_tokenizer(tokenizer, folder)
    for document in range(len(shards)):
        shard, index = shards.locate(document)
        start, stop = shard.bounds(index)
        tokens: list[int] = shard.tokens[start:stop].tolist()
        if max(tokens, default=0) >= manifest.vocab.size:
            raise invalid_tokens(f"{shard.file}: document {index}", manifest.vocab.size)
        given = None
        if shard.given is not None:
            if not is_same:
                raise DataError(f"{folder}: chats must be of the model's tokenizer, not another.")
            given = tuple(bool(flag) for flag in shard.given[start:stop])
        elif tokens[-1:] == [manifest.end_id]:
            tokens.pop()
        text = tokenizer.decode(tokens)
        yield Document(f"{folder}#{document}", text, tuple(tokens) if is_same else None, given)
