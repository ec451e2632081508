"""Many jobs at once: results in order, not all at the same time, and the first error ends all."""

import pytest
from support.sampling_worlds import random_denoiser

from gidd.diffusion.schedules import HybridSchedule
from gidd.sampling import Request, Session, blanks, corrector_plan, no_op
from gidd.sampling.jobs import run_jobs
from gidd.vocab import Vocab

VOCAB = Vocab(5, mask_id=4)
SESSION = Session(random_denoiser(VOCAB), HybridSchedule(VOCAB, 0.2), batch_size=4)


class Counted:
    """Jobs that sample some times and return their number; counts those in progress."""

    def __init__(self) -> None:
        self.running, self.most, self.ended = 0, 0, []

    async def run(self, jobs, number, rounds=1, failing=()):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for seed in range(rounds):
                plan = corrector_plan(no_op, 2)
                await jobs.sample(SESSION, [Request(tokens=blanks(3), plan=plan, seed=seed)])
            if number in failing:
                raise ZeroDivisionError(number)
            return number
        finally:
            self.running -= 1
            self.ended.append(number)

    def functions(self, num, **options):
        return (lambda jobs, k=k: self.run(jobs, k, **options) for k in range(num))


@pytest.mark.parametrize("at_once", [1, 3, 64])
def test_results_are_in_order_and_few_jobs_are_in_progress(at_once):
    counted = Counted()
    functions = (lambda jobs, k=k: counted.run(jobs, k, rounds=1 + 5 * k % 3) for k in range(10))
    assert run_jobs(functions, at_once) == list(range(10))
    assert counted.most == min(at_once, 10)
    assert counted.running == 0
    assert run_jobs([]) == []


def test_the_first_error_ends_all():
    counted = Counted()
    with pytest.raises(ZeroDivisionError, match="3"):
        run_jobs(counted.functions(20, rounds=2, failing={3, 4}), at_once=5)
    assert counted.running == 0
    assert sorted(counted.ended) == list(
        range(8)
    )  # 0, 1 and 2 ended before, and three others began


def test_an_error_before_the_first_sample():
    counted = Counted()
    with pytest.raises(ZeroDivisionError, match="2"):
        run_jobs(counted.functions(20, rounds=0, failing={2}))
    assert sorted(counted.ended) == [0, 1, 2]
