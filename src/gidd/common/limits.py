"""Limits on sizes, compared before a file is parsed, so that none can exhaust memory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import final

from gidd.errors import ConfigError, GiddError


@final
@dataclass(frozen=True)
class Limit:
    """The largest accepted value of a size."""

    default: int
    unit: str = "bytes"
    variable: str = ""
    """Environment variable that changes it, if there is one."""

    @property
    def value(self) -> int:
        """The value of the environment variable, or the default."""
        text = os.environ.get(self.variable, "") if self.variable else ""
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
            fix = f" If you trust it, raise the limit: {self.variable}={amount}."
            raise error(
                f"{what} must have at most {self.value:,} {self.unit}, got {amount:,}."
                + (fix if self.variable else "")
            )


DOCUMENT_BYTES = Limit(1 << 25, variable="GIDD_MAX_DOCUMENT_BYTES")
"""Of one document, or of one line of JSON."""

PIECE_CHARACTERS = Limit(1 << 21, "characters", "GIDD_MAX_PIECE_CHARACTERS")
"""Of text that is encoded at once: it takes 110 to 300 bytes of memory for each."""

CONTEXT_TOKENS = Limit(1 << 17, "tokens", "GIDD_MAX_CONTEXT_TOKENS")
"""Of a model's longest sequence, which no tensor of the file shows."""

RECORD_BYTES = Limit(1 << 24)
"""Of a JSON record: gidd.json, config.json, ..."""

MANIFEST_BYTES = Limit(1 << 28)
"""Of a JSON file with an entry per file, tensor or document: manifests and results."""

TOKENIZER_BYTES = Limit(1 << 26)
"""Of tokenizer.json."""

YAML_BYTES = Limit(1 << 17)
"""Of run.yaml: the parser takes seconds for this many."""

JSON_VALUES = Limit(5_000_000, "values")
"""Of any JSON file: each takes about 100 bytes of memory."""

MAX_DEPTH = 64
"""Nesting of JSON and YAML; records of this library have at most 6 levels."""
