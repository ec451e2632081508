"""Posteriors of windows: those of the corrector, in order, alike in any company."""

import torch
from hypothesis import given, strategies as st
from support.sampling_worlds import random_denoiser

from gidd.diffusion.error_rate import time_at_error_rate
from gidd.diffusion.schedules import HybridSchedule
from gidd.sampling import PosteriorCorrection, Request, Session, ban, corrector_plan, run_sync
from gidd.sampling.windows import (
    PosteriorPass,
    TextWindows,
    WindowPosterior,
    WindowReader,
    WindowTokens,
)
from gidd.vocab import Vocab

VOCAB = Vocab(33, mask_id=32)
NETWORK, SCHEDULE = random_denoiser(VOCAB, gain=0.0), HybridSchedule(VOCAB, 0.2)
TOKENS = torch.randint(32, (120,), generator=torch.Generator().manual_seed(0)).tolist()


def reader(batch_size: int = 4, **options) -> WindowReader:
    return WindowReader(Session(NETWORK, SCHEDULE, batch_size=batch_size), **options)


def posteriors(judge: PosteriorPass, windows, error_rate: float) -> list[WindowPosterior]:
    return run_sync(judge(windows, error_rate))


def windows_of(lengths) -> list[WindowTokens]:
    return [WindowTokens(tuple(TOKENS[i : i + n]), (True,) * n) for i, n in enumerate(lengths)]


def test_it_is_the_corrector():
    judge = PosteriorPass(reader(), num_alternatives=3)
    texts = windows_of([16] * 6)
    plan = corrector_plan(PosteriorCorrection(), 1, judge.time(0.5))
    requests = [
        Request(tokens=window.tokens, plan=plan, protected=(False,) * 16) for window in texts
    ]
    samples = reader().session.sample(requests)
    for window, posterior, sample in zip(
        texts, posteriors(judge, texts, 0.5), samples, strict=True
    ):
        new = torch.where(posterior.replaced(), posterior.tokens[:, 0], torch.tensor(window.tokens))
        assert tuple(new.tolist()) == sample.tokens
        for edit in sample.edits:
            assert float(posterior.probabilities[edit.position, 0].float()) == edit.probability
        assert (posterior.probabilities.diff(dim=-1) <= 0).all()
        total = posterior.current + posterior.probabilities.sum(-1)
        assert (total <= 1 + 1e-12).all() and (total > 0.2).all()
        assert (posterior.tokens != torch.tensor(window.tokens)[:, None]).all()
    assert any(sample.edits for sample in samples)


def test_windows_come_back_in_order_and_alike_in_any_company():
    judge = PosteriorPass(reader())
    lengths = [8, 8, 8, 8, 8, 12, 8, 12, 12]
    texts = windows_of(lengths)
    found = posteriors(judge, iter(texts), 0.3)
    assert [len(posterior.current) for posterior in found] == lengths
    for window, posterior in zip(texts, found, strict=True):
        (alone,) = posteriors(judge, [window], 0.3)
        assert all(torch.equal(a, b) for a, b in zip(alone, posterior, strict=True))


def test_positions_that_are_not_judged_are_zero_and_change_nothing():
    judge = PosteriorPass(reader(processors=(ban(VOCAB, [3, 4]),)), num_alternatives=2)
    ((tokens, _),) = windows_of([16])
    some = tuple(i % 3 == 0 for i in range(16))
    (all_judged,) = posteriors(judge, [WindowTokens(tokens, (True,) * 16)], 0.2)
    (some_judged,) = posteriors(judge, [WindowTokens(tokens, some)], 0.2)
    chosen = torch.tensor(some)
    for full, part in zip(all_judged, some_judged, strict=True):
        assert torch.equal(full[chosen], part[chosen])
        assert not part[~chosen].any()
    likely = all_judged.probabilities > 0
    assert not torch.isin(all_judged.tokens[likely], torch.tensor([3, 4])).any()


def test_the_time_is_one_the_network_was_trained_with():
    judge = PosteriorPass(reader(min_time=0.01, max_time=0.3))
    assert judge.time(0.0) == 0.01
    assert judge.time(0.9) == 0.3
    assert judge.time(0.12) == float(time_at_error_rate(SCHEDULE, 0.12))


@given(st.integers(1, 90), st.integers(1, 24), st.data())
def test_every_token_is_judged_once_unless_it_is_fixed(num_tokens, context, data):
    fixed = data.draw(st.lists(st.booleans(), min_size=num_tokens, max_size=num_tokens))
    cut = TextWindows(TOKENS[:num_tokens], fixed, context)
    editable = [0] * num_tokens
    for window, part in zip(cut, cut.parts, strict=True):
        assert list(window.tokens) == TOKENS[part.start : part.stop]
        for i, is_judged in enumerate(window.editable):
            editable[part.start + i] += is_judged
    assert editable == [not is_fixed for is_fixed in fixed]
