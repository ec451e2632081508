"""Limits on what is read from files and networks. An environment variable changes each of them.

A file is compared with its limit before it is parsed or decompressed, so that a small hostile file
cannot exhaust memory or time.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import final

from gidd.errors import ConfigError, GiddError


@final
@dataclass(frozen=True, kw_only=True)
class Limit:
    """The largest accepted value of a size."""

    variable: str
    """Environment variable that changes it."""

    default: int
    unit: str

    @property
    def value(self) -> int:
        """The value of the environment variable, or the default."""
        text = os.environ.get(self.variable, "")
        if not text:
            return self.default
        if not re.fullmatch("[1-9][0-9]{0,17}", text):
            raise ConfigError(
                f"the environment variable {self.variable} must be a number of {self.unit} in "
                f"[1, 10**18), got {text[:40]!r}. Its default is {self.default}."
            )
        return int(text)

    def require(self, amount: int, what: str, error: type[GiddError]) -> None:
        """Raise `error` if an amount exceeds the limit; `what` names what has that amount."""
        if amount > self.value:
            raise error(
                f"{what} must have at most {self.value:,} {self.unit}, got {amount:,}. If you "
                f"trust it, raise the limit: {self.variable}={amount}."
            )


RECORD_BYTES = Limit(variable="GIDD_MAX_RECORD_BYTES", default=1 << 24, unit="bytes")
"""Of a JSON record: gidd.json, config.json, ..."""

YAML_BYTES = Limit(variable="GIDD_MAX_YAML_BYTES", default=1 << 17, unit="bytes")
"""Of run.yaml: the parser takes seconds for this many."""

MANIFEST_BYTES = Limit(variable="GIDD_MAX_MANIFEST_BYTES", default=1 << 26, unit="bytes")
"""Of a JSON file with an entry per file or tensor: the manifests of data and of checkpoints."""

RESULT_BYTES = Limit(variable="GIDD_MAX_RESULT_BYTES", default=1 << 28, unit="bytes")
"""Of a JSON file with the result of an evaluation, which may have a row per document."""

TOKENIZER_BYTES = Limit(variable="GIDD_MAX_TOKENIZER_BYTES", default=1 << 26, unit="bytes")
"""Of tokenizer.json."""

JSON_VALUES = Limit(variable="GIDD_MAX_JSON_VALUES", default=5_000_000, unit="values")
"""Of any JSON file: each takes about 100 bytes of memory."""

DOCUMENT_BYTES = Limit(variable="GIDD_MAX_DOCUMENT_BYTES", default=1 << 25, unit="bytes")
"""Of one document, or of one line of JSON."""

PIECE_CHARACTERS = Limit(variable="GIDD_MAX_PIECE_CHARACTERS", default=1 << 21, unit="characters")
"""Of text that is encoded at once: it takes 110 to 300 bytes of memory for each."""

COMPRESSION_RATIO = Limit(
    variable="GIDD_MAX_COMPRESSION_RATIO", default=100, unit="times the compressed size"
)
"""Of a compressed file of documents."""

CONTEXT_TOKENS = Limit(variable="GIDD_MAX_CONTEXT_TOKENS", default=1 << 17, unit="tokens")
"""Of a model's longest sequence, which no tensor of the file shows."""

SECRET_BYTES = Limit(variable="GIDD_MAX_SECRET_BYTES", default=1 << 16, unit="bytes")
"""Of a file with a user, a password or a signature of a URL."""

MAX_DEPTH = 64
"""Nesting of JSON and YAML; records of this library have at most 6 levels."""
