"""The loss of an autoregressive model, from logits."""

import torch.nn.functional as F
from torch import Tensor


def ar_nll(logits: Tensor, x: Tensor) -> Tensor:
    """Return -log p(x_i | x_<i) for every token but the first, [B, L - 1]."""
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), x[:, 1:], reduction="none")
