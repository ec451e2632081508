"""Give a model the larger vocabulary of a BPE that was trained on the same texts.

python larger_vocabulary.py MODEL DATA OUT      # folders; DATA was prepared with the larger BPE

The merges of the smaller BPE are the first of the larger one, so every new token is a sequence of
old ones: its rows of the embedding and of the head are their means.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer as BPE

import gidd
from gidd.data.tokenizers import Tokenizer
from gidd.models import Denoiser, DiT
from gidd.pipeline import Pipeline

PENALTY = 1.0
"""Taken from the bias of a new token: its first piece is more frequent than it."""


def main() -> None:
    """Load a model, and save it with another vocabulary."""
    model, data, out = map(Path, sys.argv[1:])
    old, tokenizer = gidd.from_pretrained(model, device="cpu"), Tokenizer.load(data)
    ids, vocab = (BPE.from_file(str(f / "tokenizer.json")).get_vocab() for f in (model, data))
    description = json.loads((data / "tokenizer.json").read_text(encoding="utf-8"))
    parts = {"".join(pair): pair for pair in description["model"]["merges"]}

    def pieces(token: str) -> list[int]:
        if token in ids:
            return [ids[token]]
        left, right = parts[token]
        return pieces(left) + pieces(right)

    rows = [pieces(token) for token in sorted(vocab, key=lambda token: vocab[token])]
    weights = old.denoiser.backbone.state_dict()
    for name in ("embedding.weight", "head.weight"):
        weights[name] = torch.stack([weights[name][row].mean(0) for row in rows])
    bias = weights["head.bias"]
    weights["head.bias"] = torch.stack(
        [bias[row].min() - (PENALTY if len(row) > 1 else 0) for row in rows]
    )
    network = DiT(replace(old.denoiser.backbone.config, vocab_size=len(rows)))
    network.load_state_dict(weights)
    schedule = replace(old.schedule, vocab=tokenizer.vocab)
    denoiser = Denoiser(network, tokenizer.vocab)
    Pipeline(denoiser, schedule, tokenizer, context=old.context, times=old.times).save(out)


if __name__ == "__main__":
    main()
