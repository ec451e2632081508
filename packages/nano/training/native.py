"""Write a converted Llama as the library's own network, which needs no `transformers`.

gidd export work/runs/converted --out work/converted
python native.py work/converted work/native
gidd export work/native --bf16 --out work/nano
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import gidd
from gidd.models import Denoiser
from gidd.models.backbones.bidirectional import BidirectionalConfig


def native_of(network: Any) -> torch.nn.Module:
    """Return the same network: its parameters have the same names."""
    config, fields = network.config, json.loads(network.config.hf)
    own = BidirectionalConfig(
        vocab_size=config.vocab_size, max_length=config.max_length, width=config.width,
        mlp_width=fields["intermediate_size"], num_layers=config.num_layers,
        num_heads=config.num_heads, num_kv_heads=fields["num_key_value_heads"],
        rotary_base=fields["rope_parameters"]["rope_theta"], norm_eps=fields["rms_norm_eps"],
        tied_head=fields["tie_word_embeddings"], start_id=config.start_id,
    ).build()  # fmt: skip
    weights = {name.removeprefix("body."): value for name, value in network.state_dict().items()}
    own.load_state_dict(weights)
    return own


def main() -> None:
    """Load, convert, save."""
    parser = argparse.ArgumentParser(description="Write a converted Llama as a native network.")
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    source = gidd.from_pretrained(options.model, device="cpu")
    network = native_of(source.denoiser.backbone)
    z = torch.arange(8)[None] % source.schedule.vocab.size
    times = torch.tensor([0.5])
    with torch.no_grad():
        expected = source.denoiser.backbone(z, times)
        torch.testing.assert_close(network.eval()(z, times), expected, rtol=0, atol=1e-4)
    denoiser = Denoiser(network, source.schedule.vocab)
    pipe = gidd.Pipeline(
        denoiser, source.schedule, source.tokenizer,
        context=source.context, source=source.source, times=source.times,
    )  # fmt: skip
    pipe.save(options.folder)


if __name__ == "__main__":
    main()
