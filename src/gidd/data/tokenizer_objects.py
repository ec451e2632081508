"""Tokenizer objects of the libraries `tokenizers` and `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gidd.data.special_tokens import SPECIAL_FIELDS
from gidd.errors import ConfigError


class FastTokenizer(Protocol):
    """A fast tokenizer of `transformers`, which need not be installed."""

    @property
    def backend_tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer` that it wraps."""
        ...

    @property
    def special_tokens_map(self) -> Mapping[str, Any]:
        """Its special tokens, such as {"eos_token": "</s>"}; only those that it has."""
        ...


def copy_of(tokenizer: Any) -> tuple[Any, dict[str, str]]:
    """Return a copy of an object's `tokenizers.Tokenizer`, and the special tokens it names."""
    from tokenizers import Tokenizer as Inner

    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(inner, Inner):
        raise ConfigError(
            "tokenizer must be a gidd.data.Tokenizer, a tokenizers.Tokenizer or a fast tokenizer "
            f"of transformers, got {type(tokenizer).__name__}. Load a fast one with "
            "transformers.AutoTokenizer.from_pretrained, or convert a slow one with "
            "transformers.convert_slow_tokenizer.convert_slow_tokenizer."
        )
    try:
        copied = Inner.from_str(inner.to_str())
    except Exception as error:  # the library has no other class
        raise ConfigError(
            f"tokenizer must be one that tokenizer.json can describe: {error}. Replace the parts "
            "that are written in Python by those of the tokenizers library."
        ) from error
    named: Mapping[str, Any] = getattr(tokenizer, "special_tokens_map", {})
    tokens = {field: named.get(field) for field in SPECIAL_FIELDS}
    return copied, {field: str(token) for field, token in tokens.items() if token is not None}
