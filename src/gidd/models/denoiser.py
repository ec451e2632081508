"""From a network's features to the distribution x_theta over clean tokens.

That the mask is never predicted is written here, once, as a bias of -inf in `Denoiser.head`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gidd.errors import ConfigError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Backbone(Protocol):
    """Any module that turns noisy tokens and their time into features, with a head over tokens."""

    head: nn.Linear
    """Features to logits; may have more rows than the vocabulary has ids."""

    def hidden(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """The features that go into the head."""
        ...


class Head(NamedTuple):
    """The output layer over the ids of the vocabulary: x_theta = softmax(weight h + bias)."""

    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, " V"]
    """-inf where an id can never be clean text."""


@final
class Denoiser(nn.Module):
    """A backbone and its vocabulary: p(clean token | noisy sequence, time) at every position."""

    def __init__(self, backbone: Backbone, vocab: Vocab) -> None:
        super().__init__()
        if backbone.head.out_features < vocab.size:
            raise ConfigError(
                f"the backbone's head must have at least vocab.size = {vocab.size} rows, got "
                f"{backbone.head.out_features}. Build the model with vocab_size={vocab.size}."
            )
        self.backbone = backbone
        self.vocab = vocab

    def forward(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L V"]:
        """x_theta(z, t), in float32."""
        return self.distribution(self.hidden(z, t))

    def hidden(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """The features that go into the head."""
        return self.backbone.hidden(z, t)

    def head(self) -> Head:
        """The head over the vocabulary: padding rows cut off, the mask impossible.

        It is made anew from the backbone's parameters, and gradients flow back to them.
        """
        linear, size = self.backbone.head, self.vocab.size
        bias = cast("Tensor | None", linear.bias)
        bias = linear.weight.new_zeros(size) if bias is None else bias[:size]
        if self.vocab.mask_id is not None:
            is_mask = torch.arange(size, device=bias.device) == self.vocab.mask_id
            bias = bias.masked_fill(is_mask, -torch.inf)
        return Head(linear.weight[:size], bias)

    def distribution(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """x_theta from features, at as many positions as are given.

        The product is in float32 even under autocast: a bf16 logit is off by up to one part in 256.
        """
        weight, bias = self.head()
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden.float(), weight.float(), bias.float()).softmax(-1)
