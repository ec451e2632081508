"""Constraints: how exact the law of samples is, what a step costs, and what answers gain.

python benchmarks/constraints.py                  # tables; about fifteen minutes on one core
python benchmarks/constraints.py --parts law      # by enumeration, in seconds
python benchmarks/constraints.py --json           # print a JSON object at the end

`law`: the total variation distance between whole samples and the source given the constraint, for
the exact denoiser of a Markov source. x_theta is a product over positions, so one step does not
sample the source; the chain of all steps is enumerated, without sampling error.

`cost`: processor time of an ancestral step with a pattern over one without, at 256 positions and
50,258 tokens of random weights, and the time to build the automaton. Tokens are GPT-2's.

`answers`: agreement questions of a kind that nobody chose by its result, answered by `nano` as a
blank: a pattern allows the two verbs, without it any token may be written.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise, product
from math import sqrt
from random import Random

import torch
from script import parser_of, size

import gidd
from gidd.data.tokenizers import gpt2
from gidd.diffusion.process import noise_at, posterior, prior
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.diffusion.times import even_times
from gidd.models import SIZES, Denoiser, DiT
from gidd.pipeline import Pipeline
from gidd.pipeline.json_schema import schema_pattern
from gidd.sampling import Constraint, Request, Session, blanks, sampling_plan
from gidd.sources import MarkovSource
from gidd.sources.enumeration import SmallWorld
from gidd.vocab import Vocab

PARTS = ("law", "cost", "answers")
SMALL = Vocab(4, mask_id=3)
NUM_TOKENS, LENGTH = 3, 3
NOISES: dict[str, MixingSchedule] = {
    "masked": MaskedSchedule(SMALL),
    "hybrid, p_u = 0.2": HybridSchedule(SMALL, 0.2),
    "uniform": UniformSchedule(SMALL),
}
STEPS = size((1, 2, 4, 8, 16, 32), (1, 2))


def law(schedule: MixingSchedule, num_steps: int) -> float:
    """Return the distance of samples from the source given that its first and last token agree."""
    world = SmallWorld(MarkovSource.random(NUM_TOKENS, 0.3, rng=1), schedule, LENGTH)
    clean, noisy = world.clean, world.noisy
    is_accepted = (clean[:, 0] == clean[:, -1]).double()
    times, position = even_times(num_steps), torch.arange(LENGTH)
    chain = prior(schedule, times).double()[noisy].prod(-1)
    for t, s in pairwise(times):
        at_t, at_s = world.times(t.clamp_max(1 - 1e-9)), world.times(s)
        x_theta = world.leave_one_out(noisy, at_t)
        evidence = noise_at(schedule, at_t, noisy)[:, None] + schedule.alpha(at_t)[
            :, None, None
        ] * (clean[None] == noisy[:, None])
        weights = x_theta[:, position, clean] * evidence  # [Z, X, L]
        joint = weights.prod(-1) * is_accepted
        joint = joint / joint.sum(-1, keepdim=True).clamp_min(1e-300)
        after = torch.zeros_like(chain)
        for x, p in zip(clean, joint.T, strict=True):  # z_s given z_t and each clean text
            one_hot = torch.zeros_like(x_theta)
            one_hot[:, position, x] = 1
            rows = posterior(schedule, at_s, at_t, noisy, one_hot)[:, position, noisy].prod(-1)
            after += (chain * p) @ rows
        chain = after
    target = torch.zeros_like(chain)
    place = SMALL.size ** torch.arange(LENGTH - 1, -1, -1)
    p_clean = world.clean_distribution * is_accepted
    target[(clean * place).sum(-1)] = p_clean / p_clean.sum()
    return float((chain - target).abs().sum() / 2)


def laws() -> dict[str, list[float]]:
    """Print the distances for each noise and number of steps."""
    print("| noise |" + "|".join(f" {n} steps " for n in STEPS) + "|")
    result: dict[str, list[float]] = {}
    for name, schedule in NOISES.items():
        result[name] = [law(schedule, n) for n in STEPS]
        print(f"| {name} |" + "|".join(f" {tv:.4f} " for tv in result[name]) + "|", flush=True)
    return result


FLAT = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "happy": {"type": "boolean"},
    },
    "required": ["name", "age", "happy"],
}
PATTERNS = {
    "date": r"\d{4}-\d{2}-\d{2}",
    "time": r"([01]\d|2[0-3]):[0-5]\d",
    "one of four words": "red|green|blue|yellow",
    "integer": "-?(0|[1-9][0-9]*)",
    "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?",
    "mail address": r"[a-z0-9._]+@[a-z0-9]+\.(com|org)",
    "version": r"v?\d+\.\d+\.\d+",
    "sentence": r"[A-Z][a-z ,]*\.",
    "list of words": r"([a-z]+, )*[a-z]+",
    "flat JSON object": schema_pattern(FLAT),
}
CANVAS, NUM_COST_STEPS = size((256, 4), (16, 2))


def costs() -> dict[str, dict[str, float]]:
    """Print the cost of each pattern."""
    tokenizer, name = gpt2(), size("small", "tiny")
    torch.manual_seed(0)
    denoiser = Denoiser(DiT(SIZES[name](tokenizer.vocab.size, CANVAS)), tokenizer.vocab).eval()
    pipe = Pipeline(denoiser, HybridSchedule(tokenizer.vocab, 0.2), tokenizer, context=CANVAS)
    plan = sampling_plan(torch.cat([even_times(128)[:NUM_COST_STEPS], torch.zeros(1)]))
    ends = tuple(sorted(tokenizer.terminator_ids))
    session = Session(pipe.network, pipe.schedule)

    def seconds(constraints: tuple[Constraint, ...]) -> float:
        request = Request(tokens=blanks(CANVAS), plan=plan, constraints=constraints)
        start = time.process_time()
        session.sample([request])
        return (time.process_time() - start) / len(plan)

    seconds(())
    without = seconds(())
    result: dict[str, dict[str, float]] = {}
    print("| pattern | states | edges | build, s | step / step without |\n|---|---|---|---|---|")
    for pattern_name, pattern in list(PATTERNS.items())[: size(10, 1)]:
        start = time.process_time()
        automaton = pipe.automaton(pattern, at_start=True, ends=ends)
        build = time.process_time() - start
        constraint = (Constraint(automaton, 0, CANVAS),)
        constraint[0].trellis(CANVAS)  # kept between requests
        ratio = seconds(constraint) / without
        states, edges = len(automaton.is_accepting), len(automaton.edges)
        result[pattern_name] = {"build": build, "ratio": ratio}
        print(f"| {pattern_name} | {states} | {edges} | {build:.2f} | {ratio:.2f} |", flush=True)
    return result


ANIMALS = ["cat", "dog", "bird", "frog", "bear", "duck", "lion", "pig", "cow", "fish"]
PLACES = ["in the park", "near the tree", "by the lake", "on the hill", "at the farm"]
FEELINGS = ["happy", "sad", "tired", "big", "small", "hungry"]
NUM_QUESTIONS = size(300, 4)


def questions() -> list[tuple[str, str]]:
    """Return templates with a blank for a verb, and the right verb."""
    every = list(product(ANIMALS, PLACES, FEELINGS))
    chosen = Random(0).sample(every, NUM_QUESTIONS // 2)
    return [
        (f"Once upon a time, the {animal}{s} {place} [MASK] very {feeling}.", verb)
        for animal, place, feeling in chosen
        for s, verb in (("", "was"), ("s", "were"))
        if animal != "fish" or not s
    ]


def answers() -> dict[str, dict[str, float]]:
    """Print how often the right verb is written."""
    pipe, asked = gidd.from_pretrained(size("nano", "models/nano")), questions()
    result: dict[str, dict[str, float]] = {}
    print(f"{len(asked)} questions\n| answers | right | other verb | neither |\n|---|---|---|---|")
    for name, pattern in (("any token", ""), ("pattern", size("was|were", "[a-z]"))):
        right = verbs = 0
        for seed, (template, verb) in enumerate(asked):
            (text,) = pipe.infill(template, seed=seed, pattern=pattern, steps=4)
            answer = text.filled[0].strip()
            right, verbs = right + (answer == verb), verbs + (answer in ("was", "were"))
        share, n = right / len(asked), len(asked)
        result[name] = {"right": share, "error": sqrt(share * (1 - share) / n)}
        print(
            f"| {name} | {share:.3f} ± {result[name]['error']:.3f} | {(verbs - right) / n:.3f} "
            f"| {1 - verbs / n:.3f} |",
            flush=True,
        )
    return result


def main() -> None:
    """Run the parts."""
    parser = parser_of(__doc__)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    measure = {"law": laws, "cost": costs, "answers": answers}
    results = {part: measure[part]() for part in options.parts}
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
