"""A callback that raises, in every position: its own caller gets the error, no other is harmed."""

import pytest
import torch
from support.sampling_worlds import random_denoiser
from support.stepped_session import SteppedSession as Session

from gidd.diffusion.likelihood import NelboEstimator, ScoredText, estimate_nelbo
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import even_times
from gidd.sampling import Request, blanks, corrector_plan, sampling_plan
from gidd.sampling.correctors import SelfCorrectionStep
from gidd.vocab import Vocab

VOCAB = Vocab(17, mask_id=16)
SCHEDULE = HybridSchedule(VOCAB, 0.2)
MODEL = random_denoiser(VOCAB, max_length=32)


class Mine(RuntimeError):
    """The error of a callback."""


def fail(*_: object) -> None:
    raise Mine


def request(index: int, steps: int = 2, *step) -> Request:
    plan = sampling_plan(even_times(steps), *step)
    return Request(tokens=blanks(4), plan=plan, sample_index=index)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_requests_end_with_the_error_of_their_callback_alone(is_first, batch_size):
    seen, ends = [], []
    session = Session(MODEL, SCHEDULE, batch_size=batch_size)
    callbacks = [fail, seen.extend] if is_first else [seen.extend, fail]
    tickets = [session.submit(request(i), on_step=call) for i, call in enumerate(callbacks)]
    tickets.append(session.submit(request(9)))
    while session.pending:
        ends += [progress for progress in session.step() if progress.is_done]
    bad, good = tickets[not is_first], tickets[is_first]
    assert len(ends) == 3 and type(bad.error) is Mine and good.error is tickets[2].error is None
    assert good.sample is not None and tickets[2].sample is not None and bad.sample is None
    assert [event.sample is not None for event in seen] == [False, True]
    assert bad.steps_done == 1
    assert session.counters.finished == 2 and session.counters.failed == 1


def test_an_error_at_the_last_step_takes_the_place_of_the_sample():
    session = Session(MODEL, SCHEDULE)
    ticket = session.submit(request(0, 1), on_step=fail)
    assert session.step() == [ticket]
    assert type(ticket.error) is Mine
    assert session.counters.finished == 0 and session.counters.failed == 1 and not session.pending


def test_a_callback_may_cancel_its_request_and_raise():
    session = Session(MODEL, SCHEDULE)

    def cancel_and_fail(events) -> None:
        session.cancel(ticket)
        raise Mine

    ticket = session.submit(request(0), on_step=cancel_and_fail)
    assert session.step() == [] and ticket.is_cancelled and ticket.error is None


def test_the_best_tokens_of_a_request_that_lost_its_row_are_known():
    """With one row, the second correction takes the row of the first."""
    session, plan = Session(MODEL, SCHEDULE), corrector_plan(SelfCorrectionStep(), 40, 0.01)
    tokens = {"tokens": (1, 2, 3, 4), "protected": (False,) * 4}
    first = session.submit(Request(plan=plan, **tokens))
    session.step()
    best = first.event.best
    short = corrector_plan(SelfCorrectionStep(), 2, 0.01)
    other = session.submit(Request(plan=short, sample_index=1, **tokens))
    while not other.steps_done:
        session.step()
        best = best if other.steps_done else first.event.best
    assert not first.is_done and first.event.best == best


def test_an_error_of_a_likelihood_callback_ends_the_likelihood():
    estimator = NelboEstimator(MODEL, SCHEDULE, nodes=2)
    texts = [ScoredText(torch.tensor([1, 2, 3]), 0)]
    with pytest.raises(Mine):
        estimate_nelbo(estimator, texts, on_forward_passes=fail)
