"""FLOPs of a forward pass and of training, as in Hoffmann et al. (2022), App. F.

Every part of the transformer is counted, with 2 FLOPs per multiplication and addition: embeddings
(as a product with one-hot vectors), attention, softmax, MLP and logits; not norms, biases, residual
additions and activation functions. The backward pass has twice the FLOPs of the forward pass.

`training_flops_per_token` of `gidd.training.reporting.speed` follows another convention, that of
MFU: it leaves out the embeddings and the softmax, which use no tensor cores, and counts biases and
norm weights as if they were multiplied.
"""

from __future__ import annotations

from typing import NamedTuple

from gidd.errors import ConfigError
from gidd.models.backbones.dit_config import DiTConfig
from gidd.models.backbones.layers import TIME_FEATURES
from gidd.models.backbones.llama import llama_config
from gidd.training.config import Autoregressive, RunConfig

BACKWARD = 2
"""FLOPs of the backward pass, in forward passes."""


class ForwardFlops(NamedTuple):
    """FLOPs of the forward pass of one sequence, of all layers together."""

    embedding: int
    qkv: int
    """Projections to queries, keys and values."""

    scores: int
    """Queries times keys; causal attention is counted in full, as in App. F."""

    softmax: int
    values: int
    """Softmax times values."""

    output: int
    """Output projection of the attention."""

    mlp: int
    logits: int
    conditioning: int = 0
    """Time embedding and adaptive layer norm of a DiT, once per sequence; not in App. F."""

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(self)

    @property
    def matmuls(self) -> int:
        """FLOPs of matrix products that are executed: an embedding is a lookup, not a product."""
        return self.total - self.embedding - self.softmax

    @property
    def training(self) -> int:
        """FLOPs of training on the sequence once: forward and backward pass."""
        return (1 + BACKWARD) * self.total


def dit_flops(size: DiTConfig, length: int) -> ForwardFlops:
    """Return the FLOPs of a DiT for a sequence of `length` tokens."""
    mlp = 2 * size.width * (4 * size.width)  # two matrices
    time, modulation = size.time_width, 6 * size.num_layers + 2
    conditioning = 2 * time * (TIME_FEATURES + time + modulation * size.width)
    return _transformer_flops(size, length, mlp)._replace(conditioning=conditioning)


def baseline_flops(size: DiTConfig, length: int) -> ForwardFlops:
    """Return the FLOPs of the autoregressive baseline, whose gated MLP has three matrices."""
    return _transformer_flops(size, length, 3 * size.width * llama_config(size).intermediate_size)


def _transformer_flops(size: DiTConfig, length: int, mlp_weights: int) -> ForwardFlops:
    width, layers = size.width, size.num_layers
    projection, product = 2 * length * width**2, 2 * length**2 * width
    rows = 2 * length * width * size.vocab_size
    return ForwardFlops(
        embedding=rows,
        qkv=layers * 3 * projection,
        scores=layers * product,
        softmax=layers * 3 * size.num_heads * length**2,
        values=layers * product,
        output=layers * projection,
        mlp=layers * 2 * length * mlp_weights,
        logits=rows,
    )


def run_flops(run: RunConfig, vocab_size: int) -> ForwardFlops:
    """Return the FLOPs of the network of a run for a sequence of its length."""
    size = run.network_config(vocab_size)
    if not isinstance(size, DiTConfig):
        raise ConfigError(
            f"backbone must be dit, whose FLOPs are known, got {run.backbone.name}. Leave the run "
            "out."
        )
    if isinstance(run.objective, Autoregressive):
        return baseline_flops(size, run.data.length)
    return dit_flops(size, run.data.length)
