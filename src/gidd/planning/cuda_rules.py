"""Where a model does otherwise on CUDA devices than on the CPU that its step is followed on."""

from __future__ import annotations

from unittest.mock import patch

import torch
from torch import Tensor, nn

from gidd.models.backbones.layers import Attention


def behave_as_on_cuda(model: nn.Module) -> None:
    """Two things differ under autocast, and both decide which activations are kept.

    Layer norms are float32 inside and out on CUDA, by the rules of its autocast. Attention stays in
    bfloat16 there, while on CPUs it turns its features into float32: that step is left out.
    """
    left_out = patch.object(torch.Tensor, "float", _as_it_is)

    def begin(module: nn.Module, inputs: object) -> None:
        left_out.start()

    def end(module: nn.Module, inputs: object, output: object) -> None:
        left_out.stop()

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_pre_hook(_widen)
        elif isinstance(module, Attention):
            module.register_forward_pre_hook(begin)
            module.register_forward_hook(end, always_call=True)


def _widen(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0].float(),)


def _as_it_is(features: Tensor) -> Tensor:
    return features
