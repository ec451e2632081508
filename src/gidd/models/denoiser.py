"""From the hidden states of a network to the distribution x_theta over clean tokens.

The mask is never predicted: `Denoiser.head` gives it a bias of -inf, the only place that does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gidd.common.devices import device_type
from gidd.diffusion.schedule import Flags, Sequences, Times
from gidd.errors import ConfigError
from gidd.models.context import FinishedBlocks, hidden_in_blocks, hidden_of_blocks, keys_and_values
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class Backbone(Protocol):
    """A network for a `Denoiser`: hidden states of noisy tokens, and a head over tokens.

    A network may also have

    - `blocks`, a list of modules: sharded and compiled one by one; otherwise the whole network;
    - `reset_parameters(initial)`, which fills all parameters with a
      `gidd.models.networks.Initializer`: no rank then holds the complete network;
    - `uses_time = False`, if hidden states do not depend on t: samplers then cache them;
    - `accepts_padding = True`, if its method is `hidden(z, t, valid=None)`. `valid` [B, L] is False
      at padding, which is at the end of rows and can be any token; every row has a token, and None
      means that all rows are full. The hidden states of tokens must not depend on padding; those of
      padding are finite. Samplers then compute several lengths in one forward pass;
    - `accepts_segments = True`, if its method is `hidden(z, t, valid=None, segments=None)`.
      `segments` [B, L], in place of `valid`, numbers the documents of packed rows; padding has a
      number of its own. The hidden states of a document must be those of the document alone;
    - `accepts_context = True`, if its method is `hidden(z, t, valid=None, *, context=None)`, and a
      `gidd.models.Context` in place of `valid` has the mask of its attention, the positions of
      tokens, and a function for each layer that extends keys and values. It can then be trained
      and sampled in blocks. A token must read others by these keys only, or those of its group;
    - `adjust_logits(logits, columns)`, if logits are not linear in the hidden states, which then
      have more columns than the head: it maps logits of the head [K, rows] and the last columns of
      the hidden states to logits [K, rows]. Such a network samples and scores, but is not trained;
    - `predicts_posterior = True`, if x_theta is converted from p(x_i | z) at the time of a step:
      the noise level of a text is then read off these posteriors;
    - `needs_first_token = True`, if the first token must not be masked, as nothing predicts it:
      guidance then keeps it in its row without the condition;
    - `has_mixed_types = True`, if files are to be loaded in their own types, such as float32 in
      norms and bf16 in the rest; otherwise in the widest type;
    - `config`, the registered dataclass that built it: the network can then be saved.
    """

    head: nn.Linear
    """Hidden states to logits; may have more rows than the vocabulary, as padding."""

    def hidden(self, z: Sequences, t: Times) -> Float[Tensor, "B L D"]:
        """Hidden states before the head, of rows without padding, of any floating-point type.

        Args:
            z: Noisy tokens, int64, in [0, vocab.size); the mask is one of them.
            t: Time of each sequence, float32, in [0, 1]; larger is noisier.
        """
        ...


class Head(NamedTuple):
    """The output layer over the vocabulary: x_theta = softmax(weight h + bias)."""

    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, " V"]
    """-inf for the mask token, which is never clean text."""


class LogitHead(NamedTuple):
    """The output layer with padding rows, if the backbone has any: for kernels."""

    weight: Float[Tensor, "rows D"]
    bias: Float[Tensor, " rows"]
    """float32; -inf for the mask and for padding."""
    adjust: Callable[[Tensor, Tensor], Tensor] | None = None
    """`adjust_logits` of the backbone, if it has that."""

    def __call__(self, hidden: Float[Tensor, "K columns"]) -> Float[Tensor, "K rows"]:
        """Return logits in float32; on CUDA, a product of 16-bit numbers is never rounded."""
        weight, bias, adjust = self
        if adjust is not None:
            states, columns = hidden.tensor_split([weight.shape[1]], dim=-1)
            logits = adjust(LogitHead(weight, bias)(states.to(weight.dtype)), columns)
            return logits.masked_fill(bias == -torch.inf, -torch.inf)
        with torch.autocast(hidden.device.type, enabled=False):
            if device_type(hidden) == "cuda" and hidden.dtype == weight.dtype != torch.float32:
                return torch.addmm(bias, hidden, weight.T, out_dtype=torch.float32)
            return F.linear(hidden.float(), weight.float(), bias)


@final
class Denoiser(nn.Module):
    """A backbone and its vocabulary: x_theta(z, t), a distribution over tokens per position."""

    def __init__(self, backbone: Backbone, vocab: Vocab) -> None:
        super().__init__()
        if (rows := backbone.head.out_features) < vocab.size:
            raise ConfigError(
                f"backbone.head must have at least vocab.size = {vocab.size} rows, got {rows}."
            )
        self.backbone = backbone
        self.vocab = vocab

    def forward(self, z: Sequences, t: Times) -> Float[Tensor, "B L V"]:
        """Return x_theta(z, t) in float32."""
        return self.distribution(self.hidden(z, t))

    @property
    def accepts_padding(self) -> bool:
        """Whether rows can end with padding: whether `hidden` accepts `valid`."""
        return bool(getattr(self.backbone, "accepts_padding", False))

    @property
    def accepts_context(self) -> bool:
        """Whether `hidden` accepts `context`: whether sequences can be read in blocks."""
        return bool(getattr(self.backbone, "accepts_context", False))

    def hidden(
        self,
        z: Sequences,
        t: Times,
        valid: Flags | None = None,
        segments: Sequences | None = None,
        *,
        clean: Sequences | None = None,
        block_index: Sequences | None = None,
        context: FinishedBlocks | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Hidden states before the head; t of any floating-point dtype (float64 in sampling).

        `valid` is False at padding, which is at the end of rows; None: all rows are full.
        `segments`, in place of it, numbers the documents of packed rows. With `clean` tokens and
        the `block_index` of each token, the hidden states of a noisy block z are given the clean
        blocks before it, which are read at t = 0; with a `context`, given the blocks that it holds
        of each row. It raises `ConfigError` for a backbone that does not accept them.
        """
        name = type(self.backbone).__name__
        if (clean is not None or context is not None) and not self.accepts_context:
            raise ConfigError(
                f"{name} does not read sequences in blocks. Use a dit, bidirectional or "
                "llama-bidirectional network, or see accepts_context in docs/extending.md."
            )
        if context is not None:
            return hidden_of_blocks(self.backbone, z, t.float(), context, valid)
        if clean is not None and block_index is not None:
            parts = clean, block_index, valid, segments
            return hidden_in_blocks(self.backbone, z, t.float(), *parts)
        if segments is not None:
            if not getattr(self.backbone, "accepts_segments", False):
                raise ConfigError(
                    f"{name} does not accept packed rows. Give it one document per row, or see "
                    "accepts_segments in docs/extending.md."
                )
            return cast(Any, self.backbone).hidden(z, t.float(), segments=segments)
        if valid is None:
            return self.backbone.hidden(z, t.float())  # backbones may have two arguments
        if not self.accepts_padding:
            raise ConfigError(
                f"{name} does not accept padding. Call it with sequences of one length, or give it "
                "accepts_padding = True and hidden(z, t, valid=None)."
            )
        return cast(Any, self.backbone).hidden(z, t.float(), valid)

    def keys_and_values(
        self, x: Sequences, context: FinishedBlocks
    ) -> Float[Tensor, "layers 2 H n width"]:
        """Keys and values of a finished block, given the blocks before it; x is one row."""
        return keys_and_values(self.backbone, x, context)

    @property
    def has_linear_head(self) -> bool:
        """Whether logits are linear in the hidden states: whether there is a `head`."""
        return not hasattr(self.backbone, "adjust_logits")

    def head(self) -> Head:
        """The backbone's head without padding rows and with a bias of -inf for the mask.

        It is rebuilt from the backbone's parameters on every call; gradients reach them.
        """
        if not self.has_linear_head:
            raise ConfigError(
                f"{type(self.backbone).__name__} has logits that are not linear in its hidden "
                "states. Training and per-token evaluation need a linear head: use another "
                "network, or the library of this one."
            )
        self.gather_head()
        linear, size = self.backbone.head, self.vocab.size
        bias = cast("Tensor | None", linear.bias)
        bias = linear.weight.new_zeros(size) if bias is None else bias[:size]
        if self.vocab.mask_id is not None:
            is_mask = torch.arange(size, device=bias.device) == self.vocab.mask_id
            bias = bias.masked_fill(is_mask, -torch.inf)
        return Head(linear.weight[:size], bias)

    def gather_head(self) -> None:
        """Gather the head's parameters if FSDP2 shards them: it does so only for called modules."""
        if (unshard := getattr(self.backbone.head, "unshard", None)) is not None:
            unshard()  # waits if the last block has started it

    def logit_head(self) -> LogitHead:
        """Return the output layer with all its rows, for logits of many positions in parts."""
        linear = self.backbone.head
        weight, bias = linear.weight, cast("Tensor | None", linear.bias)
        never = _never_predicted(len(weight), self.vocab.size, self.vocab.mask_id, weight.device)
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        adjust = getattr(self.backbone, "adjust_logits", None)
        return LogitHead(weight, bias.float().masked_fill(never, -torch.inf), adjust)

    def distribution(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Return x_theta of hidden states, for any number of positions, from float32 logits."""
        logits = self.logit_head()(hidden.reshape(-1, hidden.shape[-1]))
        return logits.softmax(-1).view(*hidden.shape[:-1], -1)[..., : self.vocab.size]


@lru_cache(maxsize=64)
def _never_predicted(
    num_rows: int, size: int, mask_id: int | None, device: torch.device
) -> Bool[Tensor, " rows"]:
    """Return the rows of the head that are no clean token: the mask, and padding."""
    with torch.inference_mode(False):
        row = torch.arange(num_rows, device=device)
        return (row >= size) | (row == (-1 if mask_id is None else mask_id))
