"""A corpus: documents by number, those for validation last."""

import random
from collections.abc import Iterator

import gidd
from gidd.data.corpora import Corpus
from gidd.data.corpora.documents import Documents


@gidd.register("corpus", "sums")
class Sums(Corpus):
    """Additions, written out; they need no file and no network."""

    name = "sums"
    description = "2,000 documents of additions, such as 12 + 7 = 19"
    held_out = 100

    def documents(self) -> list[Documents]:
        """Return all documents; they are made when they are read."""
        return [_SumDocuments()]


class _SumDocuments(Documents):
    """Document k is a function of k: every process reads the same text."""

    @property
    def name(self) -> str:
        return Sums.name

    def stamp(self) -> list[int]:
        return [1]  # a version: change it with the text, and prepared data is not mistaken for it

    def count(self) -> int:
        return 2_000

    def read(self, start: int, stop: int) -> Iterator[str]:
        for index in range(start, stop):
            draw = random.Random(index)
            pairs = [(draw.randrange(100), draw.randrange(100)) for _ in range(8)]
            yield "\n".join(f"{a} + {b} = {a + b}" for a, b in pairs)
