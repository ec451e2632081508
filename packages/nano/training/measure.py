"""Grade a model of stories by the Llama whose stories it learned: the truth is known.

python measure.py samples MODEL TEACHER held-out.jsonl     # before and after self-correction
python measure.py replaced MODEL TEACHER held-out.jsonl    # one word of a story is another one
python measure.py blanks MODEL TEACHER held-out.jsonl      # two blanks of a story are filled

TEACHER is the package of npm that `stories.py` reads, held-out.jsonl what it has drawn and no model
was trained on. Samples are the first of seed 0, and stories the first of the file: none is chosen.
Log-likelihoods are the teacher's, in nats; stories and samples are scored without their end.
Needs gidd-proof, and harper-py for samples.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from gidd_proof.words import MODEL_FOLDER, WordList
from stories import START, Teacher, choose, nats_per_token

import gidd
from gidd.pipeline import Pipeline

CORRECTION: dict[str, Any] = {"forward_passes": 64, "tokens_per_step": 2, "score": "gain"}
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


class Replaced(NamedTuple):
    """A story in which one word is another one of about the same frequency."""

    text: str
    start: int
    stop: int
    """Where the wrong word is in `text`."""


def log_likelihood(teacher: Teacher, text: str) -> float:
    """Return the teacher's log-likelihood of a text, of as many tokens as it sees."""
    (values,) = teacher.token_log_likelihoods([teacher.tokenizer.encode(text)[: teacher.context]])
    return float(values.sum())


def nats(teacher: Teacher, texts: Iterable[str]) -> str:
    """Return the nats per token of texts with their standard error."""
    tokens = (teacher.tokenizer.encode(text)[: teacher.context] for text in texts)
    rows = iter([row for row in tokens if row])
    scores = list[torch.Tensor]()
    while part := list(islice(rows, 16)):
        scores += teacher.token_log_likelihoods(part)
    return "{:.3f} ± {:.3f}".format(*nats_per_token(scores))


def distinct_four_grams(texts: Iterable[str]) -> float:
    """Return the fraction of four consecutive words that do not repeat others."""
    words = (WORD.findall(text.lower()) for text in texts)
    four = [tuple(row[i : i + 4]) for row in words for i in range(len(row) - 3)]
    return len(set(four)) / max(len(four), 1)


def known_words(texts: Iterable[str]) -> float:
    """Return the fraction of words that gidd-proof's list has."""
    listed = WordList.of_model(MODEL_FOLDER).counts
    words = [w.lower().replace("’", "'") for text in texts for w in WORD.findall(text)]
    return sum(listed.get(word.removesuffix("'s"), 0) > 0 for word in words) / max(len(words), 1)


def harper_mistakes(texts: Sequence[str]) -> str:
    """Return the mistakes per 1,000 words that Harper finds, if it is installed."""
    if importlib.util.find_spec("harper") is None:
        return "mistakes not counted (pip install harper-py)"
    import harper

    linter: Any = harper.Linter()
    num_words = sum(len(WORD.findall(text)) for text in texts)
    mistakes = 1000 * sum(len(linter.lint(text)) for text in texts) / max(num_words, 1)
    return f"{mistakes:.1f} mistakes per 1,000 words by Harper"


def with_wrong_word(story: str, counts: Counter[str], seed: int) -> Replaced:
    """Replace a random word by a random one of its 20 neighbors in frequency."""
    chance = random.Random(seed)
    ranked = sorted(counts, key=lambda word: (counts[word], word))
    keys = [(counts[word], word) for word in ranked]
    places = [match for match in WORD.finditer(story) if match[0].lower() in counts]
    match = chance.choice(places)
    word = match[0].lower()
    rank = bisect(keys, (counts[word], word)) - 1
    near = [other for other in ranked[max(rank - 10, 0) : rank + 11] if other != word]
    wrong = chance.choice(near)
    wrong = wrong.capitalize() if match[0][0].isupper() else wrong
    start, stop = match.span()
    text = story[:start] + wrong + story[stop:]
    return Replaced(text, start, start + len(wrong))


def grade_samples(pipe: Pipeline, teacher: Teacher, stories: Sequence[str], num: int) -> None:
    """Print likelihood, repetition and spelling of samples before and after self-correction."""
    plain = pipe.generate(n=num, seed=0, steps=64, temperature=1.0, top_p=None)
    after = [pipe.self_correct(sample, **CORRECTION) for sample in plain]
    recommended = pipe.generate(n=num, seed=0)
    rows = {
        "teacher": stories[:num],
        "samples": [sample.text for sample in plain],
        "self-corrected": [correction.text for correction in after],
        "recommended options": [sample.text for sample in recommended],
    }
    for name, texts in rows.items():
        print(
            f"{name:20} {nats(teacher, texts)} nats per token, "
            f"{distinct_four_grams(texts):.1%} distinct 4-grams, "
            f"{known_words(texts):.2%} known words, "
            f"{harper_mistakes(texts)}"
        )


def grade_corrections(pipe: Pipeline, teacher: Teacher, stories: Sequence[str], num: int) -> None:
    """Print how many wrong words are found and made right, and how many right ones spoiled."""
    counts = Counter(word.lower() for story in stories for word in WORD.findall(story))
    found = right = restored = spoiled = words = 0
    for seed, story in enumerate(stories[:num]):
        wrong = with_wrong_word(story, counts, seed)
        words += len(WORD.findall(story)) - 1
        fixed = wrong.text
        for edit in reversed(pipe.correct(wrong.text).changes):
            if edit.start < wrong.stop and edit.stop > wrong.start:
                fixed = fixed[: edit.start] + edit.new + fixed[edit.stop :]
            else:
                spoiled += len(WORD.findall(edit.old))
        if fixed != wrong.text:
            found += 1
            right += log_likelihood(teacher, fixed) >= log_likelihood(teacher, story)
            restored += fixed == story
    print(f"one wrong word in each of {num} stories: found {found / num:.1%}")
    print(f"replaced by a word at least as likely as the original one: {right / num:.1%}")
    print(f"restored: {restored / num:.1%}; good words changed: {spoiled / words:.2%} of {words:,}")


def grade_blanks(pipe: Pipeline, teacher: Teacher, stories: Sequence[str], num: int) -> None:
    """Print log-likelihoods of stories with two words filled in, less those of the originals."""
    filled, left_to_right = list[float](), list[float]()
    for seed, story in enumerate(stories[:num]):
        chance = random.Random(seed)
        matches = [match for match in WORD.finditer(story) if story[match.start() - 1] == " "]
        first, second = sorted(chance.sample(range(len(matches)), 2))
        blanks = [matches[first].span(), matches[second].span()]
        truth = log_likelihood(teacher, story)
        template, at = "", 0
        for start, stop in blanks:
            num_tokens = len(pipe.encode(story[start - 1 : stop]))
            template += f"{story[at:start]}[MASK:{num_tokens}]"
            at = stop
        (sample,) = pipe.infill(template + story[at:], seed=seed)
        filled.append(log_likelihood(teacher, sample.text) - truth)
        other = fill_left_to_right(teacher, story, blanks, seed)
        left_to_right.append(log_likelihood(teacher, other) - truth)
    for name, values in (("the model", filled), ("left to right, teacher", left_to_right)):
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        print(f"{name:24} {mean(values):+.2f} ± {error:.2f} nats per story of two blanks")


def fill_left_to_right(
    teacher: Teacher, story: str, blanks: Sequence[tuple[int, int]], seed: int
) -> str:
    """Return a story whose blanks the teacher has drawn, each given the text before it."""
    generator = torch.Generator().manual_seed(seed)
    text, at = "", 0
    for start, stop in blanks:
        text, at = text + story[at : start - 1], stop
        tokens = [START, *teacher.tokenizer.encode(text)]
        for _ in teacher.tokenizer.encode(story[start:stop]):
            logits = teacher.logits(torch.tensor([tokens[-teacher.context :]]))[0, -1]
            u = torch.rand(1, generator=generator, dtype=torch.float64)
            tokens.append(int(choose(logits.softmax(-1)[None], u)))
        text = teacher.tokenizer.decode(tokens)
    return text + story[at:]


def main() -> None:
    """Load, grade, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    graders = {"samples": grade_samples, "replaced": grade_corrections, "blanks": grade_blanks}
    parser.add_argument("figures", choices=graders)
    parser.add_argument("model")
    parser.add_argument("teacher", type=Path)
    parser.add_argument("held_out", type=Path)
    parser.add_argument("--skip", type=int, default=0, help="stories at the beginning of the file")
    parser.add_argument("--num", type=int, help="20 samples, or 100 or 200 stories")
    options = parser.parse_args()
    records = map(json.loads, options.held_out.read_text(encoding="utf-8").splitlines())
    stories = [record["text"] for record in records if record["whole"]]
    pipe = gidd.from_pretrained(options.model, device="cpu")
    fitting = [story for story in stories if len(pipe.encode(story)) <= pipe.context]
    fitting = fitting[options.skip :]
    num = options.num or {"samples": 20, "replaced": 100, "blanks": 200}[options.figures]
    with torch.no_grad():
        graders[options.figures](pipe, Teacher(options.teacher), fitting, min(num, len(fitting)))


if __name__ == "__main__":
    main()
