"""The vocabulary size and special tokens: all that the mathematics needs of a tokenizer."""

from dataclasses import dataclass

from gidd.errors import ConfigError


@dataclass(frozen=True)
class Vocab:
    """The token ids `0 .. size - 1` and which of them are special."""

    size: int
    """Vocabulary size, special tokens included (N in the paper)."""
    mask_id: int | None = None
    """Id of the mask token m, None if there is none. The denoiser never predicts it."""
    pad_id: int | None = None
    """Id of the padding token, if any. The noise process treats it as an ordinary token."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for special tokens outside the vocabulary."""
        if self.size < 2:
            raise ConfigError(
                f"vocab.size must be at least 2, got {self.size}. Use the tokenizer's."
            )
        for field, token in (("mask_id", self.mask_id), ("pad_id", self.pad_id)):
            if token is not None and not 0 <= token < self.size:
                raise ConfigError(
                    f"vocab.{field} must be in [0, {self.size}), got {token}. Use the tokenizer's "
                    "id of that token, or increase vocab.size if the token was added last."
                )
        if self.pad_id is not None and self.pad_id == self.mask_id:
            raise ConfigError(
                f"vocab.pad_id must differ from vocab.mask_id, got {self.pad_id} for both. Pad "
                "with end-of-text: clean text may not contain the mask."
            )

    @property
    def num_data_tokens(self) -> int:
        """Number of tokens that clean text may contain: all but the mask."""
        return self.size - (self.mask_id is not None)
