"""A causal language model that scores samples: generative perplexity (App. F).

grader = load_grader("smollm2")  # or a folder, a GGUF file, a name on the Hugging Face hub
scores = grader.score(["The cat sat on the mat."])
generative_perplexity(scores)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import torch
from torch import Tensor

from gidd.common.allowed import integer, require_arguments
from gidd.common.files import explain_damage
from gidd.errors import ConfigError, DataError
from gidd.evaluation.ratios import ratio_of_sums
from gidd.evaluation.results import Measurement

if TYPE_CHECKING:
    import numpy as np

DEFAULT_MAX_LENGTH: Final = 512
"""Grader tokens of a text that are scored, as in the authors' code."""

DEFAULT_BATCH_SIZE: Final = 8

_MAX_LOGITS = 1 << 27
"""Logits of a batch, 0.5 GB in float32: long texts or a large vocabulary get smaller batches."""

_NO_BOS = "the first token has no context and is not scored"
_BOS = "the grader's BOS token is prepended, as its tokenizer does, and every token is scored"
_SPECIAL = "names of special tokens in a text are encoded as ordinary text"
_AGGREGATION = "exp(sum of NLL / number of scored tokens) over all texts, so weighted by tokens"
_EMPTY = "texts without a scored token are counted as unscored and left out"

OnGradedText = Callable[[int, int], None]
"""Called with the number of texts that are scored, and of all texts."""


class GradedText(NamedTuple):
    """The negative log-likelihood of one text."""

    nll: float
    """In nats, summed over the scored tokens."""

    num_tokens: int
    """Scored tokens; 0 if the text is too short to have any."""

    is_truncated: bool


@final
class Grader:
    """A causal language model of `transformers` with its own tokenizer.

    A text is decoded text: it is encoded by the grader's tokenizer, truncated to `max_length`
    tokens and scored in a batch with right padding. Padding is never scored.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        sha256: str = "",
        max_length: int = DEFAULT_MAX_LENGTH,
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> None:
        """Check that model and tokenizer belong together.

        Args:
            model: A causal language model of `transformers` on its device.
            tokenizer: Its tokenizer.
            name: Name for the manifest.
            sha256: Of the weights, for the manifest.
            max_length: Tokens of a text that are used, including BOS; at most the model's context.
            batch_size: Texts per forward pass; fewer if the logits would need too much memory.
        """
        require_arguments(max_length=(max_length, integer(2)), batch_size=(batch_size, integer(1)))
        self.model, self.tokenizer = model.eval().requires_grad_(False), tokenizer
        self.name, self.sha256, self.batch_size = name, sha256, batch_size
        settings = getattr(model.config, "text_config", model.config)
        context = getattr(settings, "max_position_embeddings", None)
        self.max_length: int = max_length if context is None else min(max_length, context)
        self.vocab_size: int = model.get_input_embeddings().weight.shape[0]
        _require_same_vocabulary(name, tokenizer, self.vocab_size)
        self._bos: list[int] = _leading_bos(tokenizer)

    @property
    def manifest(self) -> dict[str, Any]:
        """Everything about the grader that decides a number, as plain data."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "precision": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "batch_size": self.batch_size,
            "max_length": self.max_length,
            "truncation": f"texts are truncated to their first {self.max_length} grader tokens",
            "first_token": _BOS if self._bos else _NO_BOS,
            "special_tokens": _SPECIAL,
            "empty_texts": _EMPTY,
            "aggregation": _AGGREGATION,
        }

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the grader's tokens of each text, all of them and without BOS."""
        filled = [(i, text) for i, text in enumerate(texts) if text]
        tokens: list[list[int]] = [[] for _ in texts]
        if not filled:
            return tokens
        with explain_damage("a text for the grader", "Remove lone surrogates.", DataError):
            encoded = self.tokenizer(
                [text for _, text in filled],
                add_special_tokens=False,
                split_special_tokens=True,
                verbose=False,
            )["input_ids"]
        for (i, _), ids in zip(filled, encoded, strict=True):
            tokens[i] = list(ids)
        return tokens

    def score(self, texts: Sequence[str], on_text: OnGradedText | None = None) -> list[GradedText]:
        """Return the negative log-likelihood of each text."""
        tokens = self.encode(texts)
        rows = [(self._bos + row)[: self.max_length] for row in tokens]
        results = [
            GradedText(0.0, 0, len(self._bos) + len(row) > self.max_length) for row in tokens
        ]
        scored = [i for i, row in enumerate(rows) if len(row) > 1]
        done = len(rows) - len(scored)
        for batch in self._batches(rows, scored):
            for i, nll in zip(batch, self._nll([rows[i] for i in batch]), strict=True):
                results[i] = results[i]._replace(nll=nll, num_tokens=len(rows[i]) - 1)
            done += len(batch)
            if on_text is not None:
                on_text(done, len(rows))
        return results

    def features(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """Return the last hidden state at the last token of each text, as MAUVE uses it.

        Texts without tokens have none and are left out.
        """
        rows = [(self._bos + row)[: self.max_length] for row in self.encode(texts) if row]
        if not rows:
            raise DataError("features need at least one text that is not empty.")
        found: dict[int, Tensor] = {}
        for batch in self._batches(rows, range(len(rows))):
            ids, mask = self._pad([rows[i] for i in batch])
            with torch.inference_mode():
                backbone = self.model.base_model
                hidden = backbone(input_ids=ids, attention_mask=mask, use_cache=False)[0]
            for k, i in enumerate(batch):
                found[i] = hidden[k, len(rows[i]) - 1].float().cpu()
        return torch.stack([found[i] for i in range(len(rows))]).numpy()

    def _batches(self, rows: Sequence[list[int]], indices: Sequence[int]) -> list[list[int]]:
        """Return batches of indices, longest texts first, each with a bounded number of logits."""
        order = sorted(indices, key=lambda i: -len(rows[i]))
        batches: list[list[int]] = []
        while order:
            size = _MAX_LOGITS // (len(rows[order[0]]) * self.vocab_size)
            size = max(1, min(self.batch_size, size))
            batches.append(order[:size])
            order = order[size:]
        return batches

    def _pad(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Return tokens and attention mask, padded on the right with any token."""
        length = max(map(len, rows))
        ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
        return ids.to(self.model.device), mask.to(self.model.device)

    def _nll(self, rows: Sequence[list[int]]) -> list[float]:
        """Return the summed negative log-likelihood of tokens 1, 2, ... of each row."""
        ids, mask = self._pad(rows)
        with torch.inference_mode():
            logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            sums: list[float] = []
            for k, row in enumerate(rows):
                last = len(row) - 1
                losses = torch.nn.functional.cross_entropy(
                    logits[k, :last].float(), ids[k, 1 : last + 1], reduction="none"
                )
                sums.append(float(losses.cpu().double().sum()))
        if not all(map(math.isfinite, sums)):
            raise DataError(
                f"the grader {self.name} gives a likelihood that is not a number. Use float32, or "
                "another grader."
            )
        return sums


def generative_perplexity(scores: Sequence[GradedText]) -> Measurement:
    """Return exp(sum of NLL / number of scored tokens); NaN if no token was scored.

    The standard error treats the texts as independent: that of the ratio of two means (delta
    method), times the perplexity for the exponential.
    """
    scored = [score for score in scores if score.num_tokens]
    nlls, counts = [s.nll for s in scored], [s.num_tokens for s in scored]
    found = ratio_of_sums(nlls, counts, exponential=True)
    return Measurement(found.value, found.standard_error, len(scored))


def _require_same_vocabulary(name: str, tokenizer: Any, rows: int) -> None:
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= rows:
        raise ConfigError(
            f"the tokenizer of the grader {name} has tokens up to {largest:,}, but the embedding "
            f"of its model has only {rows:,} rows. Model and tokenizer must be of the same model; "
            "copy both again."
        )


def _leading_bos(tokenizer: Any) -> list[int]:
    """Return the BOS token if the tokenizer itself puts it before a text.

    A tokenizer may have a BOS token that its model never sees before plain text, such as the start
    of a chat turn.
    """
    bos = getattr(tokenizer, "bos_token_id", None)
    first = tokenizer("a")["input_ids"][:1]
    return [bos] if bos is not None and first == [bos] else []
