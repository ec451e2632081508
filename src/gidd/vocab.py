"""All that the mathematics knows of a tokenizer: how many ids there are and which are special."""

from dataclasses import dataclass

from gidd.errors import ConfigError


@dataclass(frozen=True)
class Vocab:
    """The token ids `0 .. size - 1`; `mask_id` is the [MASK] token, None if there is none."""

    size: int
    """Number of ids, special tokens included (N in the paper)."""

    mask_id: int | None = None
    """Id of the mask token m. The denoiser never predicts it."""

    pad_id: int | None = None
    """Id that fills short sequences. It is an ordinary token to the noise process."""

    def __post_init__(self) -> None:
        """Refuse ids outside the vocabulary."""
        if self.size < 2:
            raise ConfigError(
                f"vocab.size must be at least 2, got {self.size}. "
                "A diffusion over fewer than two tokens has nothing to predict."
            )
        for field, token in (("mask_id", self.mask_id), ("pad_id", self.pad_id)):
            if token is not None and not 0 <= token < self.size:
                raise ConfigError(
                    f"vocab.{field} must be in [0, {self.size}), the ids of the vocabulary, "
                    f"got {token}. Use the tokenizer's own id for that token, or enlarge "
                    f"vocab.size if the token was added last."
                )

    @property
    def num_data_tokens(self) -> int:
        """Number of ids a clean text may contain: all but the mask."""
        return self.size - (self.mask_id is not None)
