"""Self-correction against a literal transcription of the paper's Algorithm 1."""

import pytest
import torch
from support.cases import few
from support.sampling_worlds import random_denoiser

from gidd.diffusion.categorical import draw
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedules import HybridSchedule
from gidd.errors import ConfigError
from gidd.sampling import (
    FunctionNetwork,
    Request,
    SelfCorrectionStep,
    Session,
    corrector_plan,
    rank_by_probability,
    rank_by_ratio,
)
from gidd.sampling.predict import scaled_log_odds
from gidd.vocab import Vocab

VOCAB = Vocab(33, mask_id=32)
HYBRID = HybridSchedule(VOCAB, 0.2)
LENGTH = 12


def texts(num: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(2)
    return [tuple(torch.randint(32, (LENGTH,), generator=generator).tolist()) for _ in range(num)]


def logits_of(model, z, t):
    logits = model.backbone(z[None], torch.tensor([t]))[0].clone()
    logits[:, VOCAB.mask_id] = -torch.inf
    return logits


def self_accuracy(model, tokens, t=0.0) -> float:
    z = torch.tensor(tokens)
    return float((logits_of(model, z, t).argmax(-1) == z).double().mean())


@torch.no_grad()
def algorithm_1(model, tokens, t, tau, forward_passes, patience, seed):
    """App. C, one sequence, one token per call, one position after the other.

    It ends when nothing would change, or patience or calls are used up. The best state by
    self-accuracy is returned; each state is scored with its own logits.
    """
    z = torch.tensor(tokens)
    best, best_accuracy, age = z.clone(), -1.0, 0
    for call in range(forward_passes):
        logits = logits_of(model, z, t)
        accuracy = float((logits.argmax(-1) == z).double().mean())
        if accuracy > best_accuracy:
            best, best_accuracy, age = z.clone(), accuracy, 0
        else:
            age += 1
        if tau == 0:  # the limit: the most likely token; positions by its lead
            x_theta = torch.zeros_like(logits)
            first, second = logits.topk(2).values.unbind(-1)
            x_theta[torch.arange(len(z)), logits.argmax(-1)] = first - second
        else:
            x_theta = (logits.double() / tau).softmax(-1)
        position = torch.arange(len(z))
        u = random_integers(seed, Stream.TOKEN, call, torch.tensor([0]), position)[0]
        new = [int(draw(x_theta[i][None], u[i][None, None])) for i in range(len(z))]
        changed = [i for i in range(len(z)) if new[i] != z[i]]
        if not changed or age >= patience:
            break
        j = max(changed, key=lambda i: float(x_theta[i, new[i]]))
        z[j] = new[j]
    return tuple(best.tolist())


@pytest.mark.slow
@pytest.mark.parametrize(("tau", "t"), few([0.0, 0.1, 0.5, 1.0], [0.0, 0.05], every=3))
def test_it_is_algorithm_1(tau, t):
    """8 sequences at once equal one by one, token for token, with the same draws."""
    model = random_denoiser(VOCAB, gain=0.0)
    corrector = SelfCorrectionStep(temperature=tau, patience=3)
    plan = corrector_plan(corrector, 24, t)
    given = texts(8)
    requests = [
        Request(tokens=text, plan=plan, seed=s, protected=(False,) * LENGTH)
        for s, text in enumerate(given)
    ]
    samples = Session(model, HYBRID, batch_size=4).sample(requests)
    expected = [algorithm_1(model, text, t, tau, 24, 3, s) for s, text in enumerate(given)]
    assert [sample.tokens for sample in samples] == expected
    assert sum(a != b for a, b in zip(expected, given, strict=True)) > 2  # it does something
    assert len({sample.forward_passes for sample in samples}) > 1  # and sequences stop on their own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tau", "score", "num_tokens"),
    few([0.0, 0.3, 2.0], [rank_by_probability, rank_by_ratio], [1, 4], every=5),
)
def test_self_accuracy_never_falls(tau, score, num_tokens):
    """The best state is returned, whichever changes were committed."""
    model = random_denoiser(VOCAB, gain=0.0)
    corrector = SelfCorrectionStep(
        temperature=tau,
        patience=4,
        score=score,
        num_tokens=num_tokens,
        distance=2,
    )
    given = texts(16)
    requests = [
        Request(tokens=text, plan=corrector_plan(corrector, 9), seed=s, protected=(False,) * LENGTH)
        for s, text in enumerate(given)
    ]
    samples = Session(model, HYBRID).sample(requests)
    before = [self_accuracy(model, text) for text in given]
    after = [self_accuracy(model, sample.tokens) for sample in samples]
    assert all(a >= b for a, b in zip(after, before, strict=True))
    assert sum(after) > sum(before)


def test_changes_of_one_call_are_spaced():
    model = random_denoiser(VOCAB, gain=0.0)
    corrector = SelfCorrectionStep(temperature=1.0, num_tokens=3, distance=4)
    request = Request(
        tokens=texts(1)[0], plan=corrector_plan(corrector, 6), protected=(False,) * LENGTH
    )
    (sample,) = Session(model, HYBRID).sample([request])
    for call in range(5):
        drawn = [e for e in sample.edits if e.step_index == call and e.probability > 0]
        positions = sorted(edit.position for edit in drawn)
        assert len(positions) <= 3
        assert all(b - a >= 4 for a, b in zip(positions, positions[1:], strict=False))


def test_gain_prefers_the_largest_ratio():
    """A token of 0.6 instead of 0.3 against one of 0.5 instead of 0.001."""
    x_theta = torch.tensor([[0.6, 0.3, 0.1], [0.001, 0.5, 0.499]])
    vocab = Vocab(4, mask_id=3)
    rows = torch.nn.functional.pad(x_theta, (0, 1))[None]
    network = FunctionNetwork(lambda z, t: rows.expand(len(z), -1, -1))
    session = Session(network, HybridSchedule(vocab, 0.2))
    first = {}
    for score in (rank_by_probability, rank_by_ratio):
        corrector = SelfCorrectionStep(temperature=0.0, score=score)
        request = Request(
            tokens=(1, 0), plan=corrector_plan(corrector, 5), protected=(False, False)
        )
        (sample,) = session.sample([request])
        first[score] = sample.edits[0].position
        assert sample.tokens == (0, 1)
    assert first == {rank_by_probability: 0, rank_by_ratio: 1}


@pytest.mark.parametrize("tau", [0.0, 0.01, 0.1, 0.4])
def test_the_most_confident_change_comes_first_at_any_temperature(tau):
    """At tau = 0.1 odds of 6 to 1 are a probability that float32 rounds to 1."""
    top = torch.tensor([0.85, 0.999, 0.95, 0.99999], dtype=torch.float64)
    rows = torch.stack([1 - top, top, torch.zeros_like(top)], dim=-1).float()
    network = FunctionNetwork(lambda z, t: rows.expand(len(z), -1, -1))
    session = Session(network, HybridSchedule(Vocab(3, mask_id=2), 0.2))
    corrector = SelfCorrectionStep(temperature=tau)
    request = Request(tokens=(0,) * 4, plan=corrector_plan(corrector, 6), protected=(False,) * 4)
    (sample,) = session.sample([request])
    assert [edit.position for edit in sample.edits] == [3, 1, 2, 0]


@pytest.mark.parametrize("tau", [0.1, 0.3, 0.9])
def test_scaled_log_odds_are_the_log_odds(tau):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(500, 7, generator=generator, dtype=torch.float64)
    token = torch.randint(7, (500, 1), generator=generator)
    q = (logits / tau).softmax(-1).gather(-1, token).squeeze(-1)
    precise = (q > 1e-25) & (q < 1 - 1e-6)  # elsewhere q is rounded
    assert precise.sum() > 300
    torch.testing.assert_close(
        scaled_log_odds(logits.softmax(-1), token, tau)[precise],
        tau * q.logit()[precise],
        rtol=0,
        atol=1e-8,
    )


def test_a_fixed_point_costs_one_call():
    """tau = 0 and nothing to change: one forward pass suffices, for any patience."""
    rows = torch.rand(1, LENGTH, 33, generator=torch.Generator().manual_seed(0)).softmax(-1)
    network = FunctionNetwork(lambda z, t: rows.expand(len(z), -1, -1))
    corrector = SelfCorrectionStep(temperature=0.0, patience=50)
    fixed_point = tuple(rows[0].argmax(-1).tolist())
    one_wrong = (0 if fixed_point[0] else 1, *fixed_point[1:])
    for tokens, forward_passes in ((fixed_point, 1), (one_wrong, 2)):
        request = Request(
            tokens=tokens, plan=corrector_plan(corrector, 60), protected=(False,) * LENGTH
        )
        (sample,) = Session(network, HYBRID).sample([request])
        assert (sample.tokens, sample.forward_passes) == (fixed_point, forward_passes)


def test_partly_denoised_text_and_protected_spans():
    """Masks are candidates like any token; self-accuracy is that of the free tokens."""
    model = random_denoiser(VOCAB, gain=0.0)
    tokens = (32, 5, 32, 7, 1, 2)
    protected = (False, True, False, True, True, True)
    corrector = SelfCorrectionStep(temperature=0.0, patience=8)
    request = Request(tokens=tokens, plan=corrector_plan(corrector, 16), protected=protected)
    (sample,) = Session(model, HYBRID).sample([request])
    assert [v for v, kept in zip(sample.tokens, protected, strict=True) if kept] == [5, 7, 1, 2]
    assert 32 not in sample.tokens


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"temperature": -0.1}, r"temperature .*\[0, .*got -0.1"),
        ({"distance": 0}, "distance .*at least 1.*got 0"),
        ({"num_tokens": 0}, "num_tokens .*at least 1.*got 0"),
        ({"patience": 0}, "patience .*at least 1.*got 0"),
        ({"patience": 2.5}, "patience .*an integer.*got 2.5"),
        ({"score": "gain"}, "score .*a function.*got 'gain'"),
    ],
)
def test_impossible_settings_are_refused(option, message):
    with pytest.raises(ConfigError, match=message):
        SelfCorrectionStep(**option)
