"""Instructions whose answers can be computed: accuracy of conditional models on held-out prompts.

    python benchmarks/instructions.py --out runs/instructions --json

Five tasks (reverse a word, add two numbers, sort letters, replace a letter, close brackets), each
in three difficulty levels, as chats of characters. Models with masked and with hybrid noise are
trained from scratch, two seeds each, and by LoRA on top of a model of text. Accuracies are of exact
answers, for several numbers of denoising steps, with guidance, and before and after
self-correction. Interrupted, the same command continues.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from script import parser_of, size

import gidd
from gidd.common.files import write_json
from gidd.data.chat import render_prompt
from gidd.data.tokenizers import Tokenizer, character_level
from gidd.pipeline.generate import build_requests
from gidd.pipeline.options import SamplingOptions, SelfCorrectionOptions

PAIRS, HELD_OUT = size((60_000, 20), (150, 1))
"""Training pairs, and held-out prompts of each task and level."""

LENGTH = 32
"""Context in characters: a prompt, its answer, and padding, which is learned."""

TEMPLATE = (
    "{% for message in messages %}{{ message.content }}"
    "{{ eos_token if message.role == 'assistant' else '>' }}{% endfor %}"
)
"""Chat template of the tokenizer: a prompt, >, its answer, end-of-text."""

STEPS, GUIDANCE = size((1, 4, 16), (1,)), 2.0
SEEDS = (0, 1)
NOISES = {"masked": 0.0, "hybrid": 0.2}
LETTERS = "abcdefghijkl"
PAIRED = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Pair:
    """A prompt and its answer."""

    task: str
    level: int
    prompt: str
    response: str


def draw_pair(task: str, level: int, rng: random.Random) -> Pair:
    """Return a random pair; words have 2 to 7 letters and numbers 1 to 3 digits by level."""
    length = rng.randint(2 * level, 2 * level + 1)
    word = "".join(rng.choices(LETTERS, k=length))
    if task == "reverse":
        return Pair(task, level, f"reverse {word}", word[::-1])
    if task == "sort":
        return Pair(task, level, f"sort {word}", "".join(sorted(word)))
    if task == "add":
        a, b = (rng.randrange(10 ** (level - 1) * (level > 1), 10**level) for _ in range(2))
        return Pair(task, level, f"add {a} {b}", str(a + b))
    if task == "replace":
        old, new = rng.choice(word), rng.choice(LETTERS)
        return Pair(task, level, f"replace {old} {new} in {word}", word.replace(old, new))
    opened = "".join(rng.choices("([{", k=length))
    closed = "".join(PAIRED[bracket] for bracket in opened[::-1])
    return Pair(task, level, f"close {opened}", closed)


TASKS = ("reverse", "add", "sort", "replace", "close")


def is_held_out(prompt: str) -> bool:
    """Hold out a fifth of all prompts, by their text alone: none of them is trained on."""
    return random.Random(prompt).random() < 0.2


def draw_pairs(count: int, *, held_out: bool, task: str, level: int) -> Iterator[Pair]:
    """Yield random pairs of one task and level, of one of the two sets of prompts."""
    rng = random.Random(f"{task} {level} {held_out}")
    while count:
        pair = draw_pair(task, level, rng)
        if is_held_out(pair.prompt) == held_out:
            count -= 1
            yield pair


def all_pairs(count: int, *, held_out: bool) -> list[Pair]:
    """Return `count` pairs of each task and level."""
    kinds = [(task, level) for task in TASKS for level in (1, 2, 3)]
    drawn = [draw_pairs(count, held_out=held_out, task=task, level=level) for task, level in kinds]
    return [pair for group in zip(*drawn, strict=True) for pair in group]


def prepare_data(out: Path) -> tuple[Path, Path]:
    """Write the training pairs, and a tokenizer of characters that also covers the speeches."""
    chats, tokenizer = out / "pairs.jsonl", out / "tokenizer"
    if not chats.is_file():
        characters = sorted({*string.printable[:95], "\n"})
        character_level("".join(characters), has_unknown=True).save(tokenizer)
        (tokenizer / "chat_template.jinja").write_text(TEMPLATE)
        pairs = all_pairs(PAIRS // 15, held_out=False)
        lines = [json.dumps({"prompt": p.prompt, "response": p.response}) for p in pairs]
        chats.write_text("\n".join(lines) + "\n")
    return chats, tokenizer


def train(out: Path, name: str, noise: str, seed: int, steps: int, **settings: Any) -> Path:
    """Train one model, or continue it, and return its folder."""
    model = out / "models" / name
    if not (model / "gidd.json").is_file():
        schedule = gidd.component("schedule", "hybrid", p_uniform=NOISES[noise])
        options: dict[str, Any] = {"steps": steps, "seed": seed, "length": LENGTH}
        options |= {
            "global_batch": size(32, 2),
            "generate_samples": 0,
            "evaluate_samples": size(256, 2),
        }
        options |= {"learning_rate": 2e-3}
        options |= {"schedule": schedule} | settings
        if "init_from" not in settings:  # the tokenizer is that of the model
            options["tokenizer"] = out / "tokenizer"
        pipe = gidd.train(out / "runs" / name, **options)
        if pipe.source["steps"] < options["steps"]:
            raise SystemExit(f"{name} was interrupted at step {pipe.source['steps']:,}.")
        pipe.save(model)
    return model


def accuracy(
    pipe: gidd.Pipeline, pairs: Sequence[Pair], options: SamplingOptions
) -> dict[str, float]:
    """Return the fraction of exact answers: of all, of each task and of each level."""
    tokenizer: Tokenizer = pipe.tokenizer
    stop = tuple(sorted(tokenizer.terminator_ids))
    requests = []
    for index, pair in enumerate(pairs):
        text = render_prompt(tokenizer, [{"role": "user", "content": pair.prompt}])
        prompt = tokenizer.encode_with_special(text)
        tokens = (*prompt, *[None] * (LENGTH - len(prompt)))
        requests += build_requests(pipe, tokens, stop, options, None, 1, 0, index)
    answers: dict[str, list[bool]] = {}
    for pair, sample in zip(pairs, pipe.run(requests), strict=True):
        is_right = sample.filled[-1].strip() == pair.response
        for group in ("all", pair.task, f"level {pair.level}"):
            answers.setdefault(group, []).append(is_right)
    return {group: sum(rights) / len(rights) for group, rights in answers.items()}


def measure(model: Path, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the accuracies of a model by number of steps and kind of sampling."""
    pipe = gidd.from_pretrained(model, batch_size=50)
    corrected = SelfCorrectionOptions(forward_passes=size(16, 2), patience=size(8, 1))
    by_steps: dict[str, Any] = {}
    for steps in STEPS:
        kinds = {"sampled": SamplingOptions(steps=steps)}
        kinds["guided"] = SamplingOptions(steps=steps, guidance_scale=GUIDANCE)
        if pipe.can_score_visible_tokens:
            kinds["corrected"] = SamplingOptions(steps=steps, self_correction=corrected)
        rights = {kind: accuracy(pipe, pairs, chosen) for kind, chosen in kinds.items()}
        by_steps[f"{steps}"] = rights
    return by_steps


def main() -> None:
    """Train, measure, print."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/instructions"))
    parser.add_argument("--steps", type=int, default=size(2500, 4))
    parser.add_argument("--held-out", type=int, default=HELD_OUT)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    chats, _ = prepare_data(out)
    pairs = all_pairs(options.held_out, held_out=True)
    results: dict[str, Any] = {}
    for noise in NOISES:
        settings: dict[str, Any] = {"format": "chat", "validation": size(512, 8)}
        for seed in SEEDS:
            name = f"{noise}-{seed}"
            train(out, name, noise, seed, options.steps, data=[chats], **settings)
        base = train(out, f"text-{noise}", noise, 0, options.steps // 2, data=["sotu"])
        settings |= {"init_from": base, "lora": {"rank": 16, "alpha": 32.0, "embeddings": True}}
        train(out, f"lora-{noise}", noise, 0, options.steps // 2, data=[chats], **settings)
        for name in (*(f"{noise}-{seed}" for seed in SEEDS), f"lora-{noise}"):
            path = out / f"{name}.json"
            if not path.is_file():
                write_json(path, measure(out / "models" / name, pairs))
            results[name] = json.loads(path.read_text())
    for name, by_steps in results.items():
        for steps, kinds in by_steps.items():
            shown = ", ".join(f"{kind} {values['all']:.3f}" for kind, values in kinds.items())
            print(f"{name:>12} {steps:>3} steps: {shown}")
    if options.json:
        print(json.dumps({"steps": options.steps, "held_out": len(pairs), "results": results}))


if __name__ == "__main__":
    main()
