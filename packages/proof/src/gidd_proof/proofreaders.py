"""The proofreaders of a model: what they need of it is made once, and shared by all texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, final

from gidd.proofreading.channels import Channel
from gidd.proofreading.judge import TextJudge
from gidd.proofreading.posterior_pass import PosteriorPass
from gidd.proofreading.proofreader import Proofreader
from gidd.proofreading.token_proofreader import TokenProofreader
from gidd.proofreading.window_reader import WindowReader

from gidd.errors import ConfigError
from gidd.pipeline.pipeline import Pipeline
from gidd.pipeline.text import ban_unwritten_tokens

if TYPE_CHECKING:
    from torch import Tensor

_NUM_ALTERNATIVES = 3
"""Other tokens that are listed for a doubtful token."""

_CHARACTER_KINDS = ("chars", "bytes")
"""Kinds of tokenizers with tokens that channels describe."""


@final
@dataclass(frozen=True, eq=False)
class Proofreaders:
    """Proofreaders of words and of tokens, for mistakes as a channel describes them.

    Words are judged as a whole if the tokens of the model are characters and it has a list of
    words.
    """

    model: Pipeline
    channel: Channel | None = None

    @cached_property
    def words(self) -> Proofreader | None:
        """Judges words; None if the model cannot."""
        model = self.model
        if model.words is None or not model.tokenizer.is_character_level:
            return None
        crops = replace(model.reader, engine=model.crop_engine)
        judge = TextJudge(crops, model.tokenizer)
        passes = PosteriorPass(self._writer, self.table)
        return Proofreader(passes, judge, model.tokenizer, model.words, model.context)

    @cached_property
    def tokens(self) -> TokenProofreader:
        """Judges each token by its posterior."""
        passes = PosteriorPass(self._writer, self.table, _NUM_ALTERNATIVES)
        return TokenProofreader(passes, self.model.token_texts.decode_one, self.model.context)

    @cached_property
    def _writer(self) -> WindowReader:
        """The network, with a ban on tokens that correction never writes."""
        model = self.model
        banned = ban_unwritten_tokens(model.schedule.vocab, model.token_texts)
        return replace(model.reader, processors=(banned,))

    @cached_property
    def table(self) -> Tensor | None:
        """The channel by tokens [V, V]."""
        if self.channel is None:
            return None
        tokenizer, texts = self.model.tokenizer, self.model.token_texts
        if tokenizer.kind not in _CHARACTER_KINDS:
            raise ConfigError(
                "a channel needs a model whose tokens are characters (chars or bytes), got a "
                f"tokenizer of kind {tokenizer.kind}. Omit the channel, or use another model."
            )
        special = tokenizer.terminator_ids | texts.fixed_ids | {tokenizer.vocab.mask_id}
        size = self.model.schedule.vocab.size
        characters = [None if v in special else texts.decode_one(v) for v in range(size)]
        table = self.channel.table([c if c and len(c) == 1 else None for c in characters])
        reader = self.model.reader
        return table.to(reader.engine.device, reader.dtype)
