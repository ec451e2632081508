"""Write the layout of the authors' published checkpoints, which their code reads."""

from pathlib import Path

from gidd.common.files import write_json
from gidd.models import Denoiser
from gidd.models.importers.gidd_v1 import FIELDS, reference_name, rotary_buffers
from gidd.models.weights import WEIGHTS, write_safetensors


def export_reference(folder: Path, denoiser: Denoiser, p_uniform: float) -> None:
    """Write a DiT whose mask is the last id, without padding rows."""
    backbone, vocab = denoiser.backbone, denoiser.vocab
    config = backbone.config
    tensors = {reference_name(name): value for name, value in backbone.state_dict().items()}
    for name in ("vocab_embed.embedding", "output_layer.linear.weight", "output_layer.linear.bias"):
        tensors[name] = tensors[name][: vocab.size]
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / WEIGHTS, tensors | rotary_buffers(config))
    sizes = {theirs: getattr(config, ours) for ours, theirs in FIELDS.items()}
    fixed = {"architectures": ["DIT"], "attention_dropout": 0.0, "model_type": "dit"}
    more = {"vocab_size": vocab.size, "p_uniform": p_uniform, "t_eps": 1e-4}
    write_json(folder / "config.json", fixed | sizes | more | {"torch_dtype": "float32"})
