"""Networks that read sequences in blocks, and the definition: one block after the other."""

import torch
from torch import Tensor

from gidd.models.backbones.bidirectional import BidirectionalConfig
from gidd.models.backbones.dit_config import DiTConfig
from gidd.models.backbones.hf_config import BidirectionalLMConfig
from gidd.models.context import FinishedBlocks
from gidd.models.denoiser import Denoiser
from gidd.vocab import Vocab

VOCAB, LENGTH = Vocab(13, mask_id=12), 32
SIZES = {"vocab_size": VOCAB.size, "max_length": LENGTH, "width": 32, "num_layers": 2}
LLAMA = {"mlp_width": 48, "num_kv_heads": 2, "rotary_base": 1e4, "norm_eps": 1e-6}
NETWORKS = {
    "dit": DiTConfig(**SIZES, num_heads=4, time_width=16),
    "mixing": DiTConfig(**SIZES, num_heads=4, time_width=16, mixing_width=3),
    "bidirectional": BidirectionalConfig(**SIZES, num_heads=4, **LLAMA),
    "converted": BidirectionalConfig(**SIZES, num_heads=4, start_id=3, **LLAMA),
    "hf": BidirectionalLMConfig(
        **SIZES, num_heads=4, family="qwen2", start_id=3, time_embedding=True
    ),
}


def block_denoiser(name: str, std: float = 0.15) -> Denoiser:
    """A network with random weights, whose predictions are neither flat nor certain."""
    network = NETWORKS[name].build().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            parameter.normal_(std=std, generator=generator)
            if "norm" in key and key.endswith("weight"):
                parameter.add_(1)
    return Denoiser(network, VOCAB)


def hidden_block_by_block(denoiser: Denoiser, z: Tensor, t: Tensor, x: Tensor, n: int) -> Tensor:
    """Hidden states of each block of single rows, given the keys and values of those before."""
    rows = list[Tensor]()
    for row in range(len(z)):
        pages, states = list[Tensor](), list[Tensor]()
        for start in range(0, z.shape[1], n):
            block = slice(start, start + n)
            size = len(z[row, block])
            context = FinishedBlocks(1, start, size)
            for number, page in enumerate(pages):
                context.put(0, number * n, page)
            context.start[:], context.before[:] = start, x[row, start - 1] if start else -1
            states.append(denoiser.hidden(z[row, None, block], t[[row]], context=context)[0])
            pages.append(denoiser.keys_and_values(x[row, None, block], context))
        rows.append(torch.cat(states))
    return torch.stack(rows)
