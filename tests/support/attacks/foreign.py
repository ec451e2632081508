"""Hostile folders of other projects: weights in shards with an index, and configurations."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from gidd.data.tokenizers import character_level
from support.attacks.tools import (
    ESCAPE,
    Attack,
    become_link,
    become_pipe,
    edit_json,
    nested,
    replace,
    write_json,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "foreign"
INDEX, CONFIG, SHARD = (
    "model.safetensors.index.json",
    "config.json",
    "model-{:05}-of-00002.safetensors",
)
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,;:!?'-0"
_SIZES = (-1, 0, 1.5, 10**9, 10**30, True, None, ESCAPE, [1])
_ODD = (-1, 0, 1e308, "x", ESCAPE, [1], {"a": 1})


def write_sharded(folder: Path) -> None:
    """Write the toy of gidd's scaling study in two shards."""
    shutil.copytree(GOLDEN / "gidd_scaling", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = load_file(GOLDEN / "gidd_scaling" / "model.safetensors")
    names, index = sorted(tensors), dict[str, str]()
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = SHARD.format(number)
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
        index |= dict.fromkeys(part, file)
    write_json(folder / INDEX, {"metadata": {}, "weight_map": index})
    write_scaling_tokenizer(folder)


def write_scaling_tokenizer(folder: Path, letters: str = LETTERS[:60]) -> None:
    """Write a tokenizer with the special tokens of that study, in front of others."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>", "<|mask|>"]
    vocab = {token: i for i, token in enumerate([*special, *letters])}
    inner = Tokenizer(BPE(vocab=vocab, merges=[]))
    inner.decoder = Fuse()
    names = dict(zip(("bos_token", "eos_token", "pad_token", "mask_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained(folder)


def write_gemma(folder: Path) -> None:
    """Write the toy of DiffusionGemma."""
    shutil.copytree(GOLDEN / "diffusion_gemma", folder)
    character_level(LETTERS).save(folder)


def _config(path: tuple[str, ...], value: Any, folder: Path) -> None:
    edit_json(folder / CONFIG, path, value)


def _added(path: tuple[str, ...], value: Any, folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text())
    group, name = path
    (config[group] if group else config)[name] = value
    write_json(folder / CONFIG, config)


def _configs(group: tuple[str, ...], values: dict[str, tuple[Any, ...]]) -> dict[str, Attack]:
    return {
        f"config {'.'.join((*group, name))} #{number}": partial(_config, (*group, name), value)
        for name, options in values.items()
        for number, value in enumerate(options)
    }


def _more(entries: dict[str, Any], folder: Path) -> None:
    """Add entries to the index, beside those of all tensors."""
    content = json.loads((folder / INDEX).read_text())
    write_json(folder / INDEX, content | {"weight_map": content["weight_map"] | entries})


def _one_less(folder: Path) -> None:
    content = json.loads((folder / INDEX).read_text())
    content["weight_map"].popitem()
    write_json(folder / INDEX, content)


def _special(make: Any, folder: Path) -> None:
    """Replace the second shard by a file that is none."""
    make(folder / SHARD.format(2))


_FILES = ("../../../etc/passwd", "/etc/passwd", SHARD.format(3), "model-٠٠٠٠١-of-00002.safetensors")
_FILES += (f"{SHARD.format(1)}\0", f"{SHARD.format(1)}\n", ESCAPE, 5, None, ["a"], "", ".")
SHARDED_ATTACKS: dict[str, Attack] = {
    **{
        f"index: a tensor in file #{number}": partial(_more, {"x": file})
        for number, file in enumerate(_FILES)
    },
    "index: 10^6 entries": partial(_more, {f"x{k}": SHARD.format(1) for k in range(10**6)}),
    "index: one tensor less": _one_less,
    "index is nested": lambda folder: replace(folder / INDEX, nested(10**5)),
    "index has a list": lambda folder: write_json(folder / INDEX, {"weight_map": []}),
    "index is a pipe": lambda folder: become_pipe(folder / INDEX),
    "index is /dev/zero": lambda folder: become_link(folder / INDEX, "/dev/zero"),
    **{
        f"shard is {name}": partial(_special, make)
        for name, make in {
            "a pipe": become_pipe,
            "/dev/zero": lambda path: become_link(path, "/dev/zero"),
            "another one": lambda path: become_link(path, SHARD.format(1)),
            "missing": Path.unlink,
            "empty": lambda path: replace(path, b""),
        }.items()
    },
    **_configs(
        (),
        {
            **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads"), _SIZES),
            **dict.fromkeys(("head_dim", "max_position_embeddings", "vocab_size"), _SIZES),
            **dict.fromkeys(("rope_theta", "noise_type", "attn_soft_cap", "resid_scale"), _ODD),
            "rope_scaling": ({"type": "yarn", "factor": 1e30}, ESCAPE),
            "auto_map": ({"AutoModel": "evil.Evil"},),
        },
    ),
}
"""On a folder of the layout of gidd's scaling study, in shards."""

_ROPE = {"rope_type": "yarn", "factor": 1e30, "rope_theta": 1}
GEMMA_ATTACKS: dict[str, Attack] = {
    **_configs(
        ("text_config",),
        {
            **dict.fromkeys(("hidden_size", "head_dim", "global_head_dim", "num_experts"), _SIZES),
            **dict.fromkeys(("top_k_experts", "sliding_window", "bos_token_id"), _SIZES),
            **dict.fromkeys(("num_hidden_layers", "max_position_embeddings"), _SIZES),
            "layer_types": (None, [], ["x"] * 3, ["full_attention"] * 10**5),
            "hidden_activation": ("os.system", None, ESCAPE),
            "rope_parameters": (None, {}, {"full_attention": _ROPE}, {"x": 5}),
        },
    ),
    **{
        f"config {group}.{name} is added": partial(_added, (group, name), value)
        for group in ("", "text_config")
        for name, value in {
            "_attn_implementation": "evil/kernels",
            "_experts_implementation": "evil/kernels",
            "quantization_config": {"quant_method": "bitsandbytes"},
            "auto_map": {"AutoModel": "evil.Evil"},
            "attribute_map": {"hidden_size": "vocab_size"},
            "num_labels": 10**9,
            "vocab_size_per_layer_input": 10**12,
        }.items()
    },
    **_configs((), {"canvas_length": _SIZES, "text_config": (None, [], {}, ESCAPE)}),
}
"""On a folder of the layout of DiffusionGemma."""
