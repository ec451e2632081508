"""Processors: what they are given, in any company, and which functions are refused."""

import pytest
import torch
from support.sampling_worlds import random_denoiser

from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError
from gidd.sampling import Request, Require, RequireAt, Session, TopK, prompt, sampling_plan
from gidd.vocab import Vocab

VOCAB = Vocab(17, mask_id=16)
MODEL, SCHEDULE = random_denoiser(VOCAB), HybridSchedule(VOCAB, 0.2)
PLAN = sampling_plan(even_times(4))


def requests(*processors) -> list[Request]:
    """Requests of several lengths, prompts and seeds."""
    settings = {"plan": PLAN, "processors": processors}
    return [
        Request(tokens=prompt(7 + seed, [seed] * seed), seed=seed, **settings) for seed in range(4)
    ]


def tokens(session: Session, requests: list[Request]) -> list[tuple[int, ...]]:
    return [sample.tokens for sample in session.sample(requests)]


def not_its_first_token(rows, positions, request):
    """Ban the request's first token everywhere, and at odd positions all even tokens."""
    allowed = torch.arange(rows.shape[1]) != (request.tokens[0] or 0)
    is_odd = (torch.arange(rows.shape[1]) % 2 == 1) | (positions % 2 == 0)[:, None]
    rows = torch.where(allowed & is_odd, rows, 0)
    return rows / rows.sum(-1, keepdim=True)


def test_positions_and_request_are_those_of_the_rows():
    session = Session(MODEL, SCHEDULE, batch_size=3)
    given = requests(not_its_first_token)
    for request, sampled in zip(given, tokens(session, given), strict=True):
        num_given = request.first_blank
        drawn = list(enumerate(sampled))[num_given:]
        assert all(token != (request.tokens[0] or 0) for _, token in drawn)
        assert all(token % 2 for position, token in drawn if position % 2)


@pytest.mark.parametrize("processors", [(not_its_first_token,), (TopK(5), not_its_first_token)])
def test_tokens_are_those_of_each_request_alone(processors):
    session = Session(MODEL, SCHEDULE, batch_size=3)
    mixed = [*requests(*processors), *requests(TopK(3)), *requests()]
    assert tokens(session, mixed) == [tokens(session, [request])[0] for request in mixed]


def test_some_tokens_at_some_positions():
    few = RequireAt(Require(VOCAB, frozenset({2, 3})), frozenset({4, 6}))
    session = Session(MODEL, SCHEDULE, batch_size=3)
    for sampled in tokens(session, requests(few)):
        assert {sampled[4], sampled[6]} <= {2, 3}
    assert {token for sampled in tokens(session, requests()) for token in sampled} > {2, 3}


@pytest.mark.parametrize("function", [lambda rows: rows, lambda rows, positions: rows])
def test_functions_of_fewer_arguments_are_refused(function):
    with pytest.raises(ConfigError, match=r"function of \(rows, positions, request\)"):
        Session(MODEL, SCHEDULE).sample(requests(function))
