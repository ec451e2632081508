"""The whole loop of sampling in `sample`, against a session, bit for bit."""

import pytest
import torch
from support.random_requests import FIXERS, SAMPLERS
from support.sampling_worlds import random_denoiser

from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.sampling import (
    Guidance,
    NetworkPredict,
    Request,
    Session,
    TopK,
    corrector_plan,
    guided,
    processed,
    sample,
    sampling_plan,
    start,
)
from gidd.vocab import Vocab

VOCAB, LENGTH, ROWS = Vocab(17, mask_id=16), 12, 3
MODEL = random_denoiser(VOCAB)
STEPS = {**SAMPLERS, **FIXERS}
GIVEN = torch.tensor([3, 5])


def both(schedule, plan, guidance=None, processors=()) -> tuple[list, list]:
    """Tokens of the loop and of a session: the first tokens are given, the others blank."""
    tokens = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    tokens[:, : len(GIVEN)] = GIVEN
    blank = torch.arange(LENGTH).expand(ROWS, -1) >= len(GIVEN)
    seed, index = torch.full((ROWS,), 7), torch.arange(ROWS)
    state = start(schedule, tokens, ~blank, blank, torch.ones_like(blank), seed, index)
    predict = NetworkPredict(MODEL, VOCAB.size, ROWS)
    if guidance is not None:
        predict = guided(predict, [guidance] * ROWS)
    predict = processed(predict, [processors] * ROWS)
    given = (*GIVEN.tolist(), *[None] * (LENGTH - len(GIVEN)))
    requests = [
        Request(
            tokens=given,
            plan=plan,
            seed=7,
            sample_index=i,
            guidance=guidance,
            processors=processors,
        )
        for i in range(ROWS)
    ]
    samples = Session(MODEL, schedule, batch_size=ROWS).sample(requests)
    with torch.no_grad():
        end = sample(predict, schedule, state, plan)
    return end.tokens.tolist(), [list(each.tokens) for each in samples]


@pytest.mark.parametrize("name", STEPS)
def test_every_step_and_corrector(name):
    step = STEPS[name][-1]
    schedule = MaskedSchedule(VOCAB) if name == "remdm" else HybridSchedule(VOCAB, 0.2)
    plan = sampling_plan(even_times(4))
    plan += corrector_plan(step, 6, 0.1) if name in FIXERS else sampling_plan(even_times(4), step)
    ours, session = both(schedule, plan)
    assert ours == session


def test_guidance_and_processors():
    guidance = Guidance(2.5, (16, None, *[None] * (LENGTH - 2)))
    plan = sampling_plan(even_times(5))
    ours, session = both(HybridSchedule(VOCAB, 0.2), plan, guidance, (TopK(4),))
    assert ours == session != both(HybridSchedule(VOCAB, 0.2), plan)[0]
