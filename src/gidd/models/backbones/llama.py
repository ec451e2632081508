"""The autoregressive baseline: a Llama with the parameter count of the DiT of the same size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

import torch
from torch import Tensor, nn

from gidd.common.optional import optional_package
from gidd.errors import ConfigError
from gidd.models.backbones.dit_config import DiTConfig
from gidd.models.networks import Initializer
from gidd.models.weights import WEIGHTS, explain_write_failure, require_finite

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def llama_config(size: DiTConfig) -> Any:
    """`transformers.LlamaConfig` with the hidden size, layers, heads and parameters of a DiT.

    A Llama block has 4 D^2 + 3 D F + 2 D parameters; F is chosen to match those of a DiT block.
    """
    width = size.width
    per_block = size.num_block_parameters / size.num_layers
    intermediate = (per_block - 4 * width**2 - 2 * width) / (3 * width)
    return optional_package("transformers", "hf").LlamaConfig(
        vocab_size=size.vocab_size,
        hidden_size=width,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        intermediate_size=32 * round(intermediate / 32),  # for efficient kernels
        max_position_embeddings=size.max_length,
        tie_word_embeddings=False,
        # the defaults are token ids of another tokenizer
        bos_token_id=None,
        eos_token_id=None,
    )


def recompute_activations(model: Any) -> None:
    """Let the backward pass of a `transformers` model recompute the activations of its layers."""
    if hasattr(model, "activation_checkpointing_enable"):  # since transformers 5.23
        model.activation_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})


@final
class AutoregressiveModel(nn.Module):
    """A causal language model: position i predicts token i + 1."""

    def __init__(self, size: DiTConfig) -> None:
        super().__init__()
        if size.dropout:
            raise ConfigError(f"model.dropout must be 0 for a Llama, got {size.dropout}.")
        llama = optional_package("transformers", "hf").LlamaForCausalLM(llama_config(size))
        self.config = size
        self.trunk = llama.model
        self.head = cast(nn.Linear, llama.lm_head)
        if size.checkpoint_activations:
            recompute_activations(self.trunk)

    @property
    def blocks(self) -> nn.ModuleList:
        """Layers of the trunk, under the attribute name of `DiT`."""
        return self.trunk.layers

    @torch.no_grad()
    def reset_parameters(self, initial: Initializer | None = None) -> None:
        """Initialise all weights as Llama does: normal; norm weights are 1."""
        initial = initial or Initializer()
        llama = self.trunk.config
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                initial.normal(module.weight, llama.initializer_range)
            else:
                for norm_weight in module.parameters(recurse=False):
                    norm_weight.fill_(1)
        # rotary buffers are not parameters: they are lost when a model leaves the meta device
        rotary = type(self.trunk.rotary_emb)(llama)
        self.trunk.rotary_emb = rotary.to(self.head.weight.device)

    def save(self, folder: str | Path) -> None:
        """Write safetensors and config.json that `transformers` loads as a Llama."""
        library = optional_package("transformers", "hf")
        with torch.device("meta"):
            llama = library.LlamaForCausalLM(self.trunk.config)
        llama.model, llama.lm_head = self.trunk, self.head
        folder = Path(folder)
        require_finite(self.state_dict(), folder / WEIGHTS)
        with explain_write_failure(folder / WEIGHTS):
            llama.save_pretrained(str(folder))
            mode = (folder / "config.json").stat().st_mode
            for file in folder.glob("*.safetensors"):
                file.chmod(mode)  # safetensors ignores the umask and creates files with mode 0600

    def hidden(self, x: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """Hidden states before the head."""
        return self.trunk(input_ids=x, use_cache=False).last_hidden_state

    def forward(self, x: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        """Logits of the next token at every position."""
        return self.head(self.hidden(x))
