"""Classifier-free guidance: p_c^w p_u^(1 - w), two rows of one forward pass."""

import random
from dataclasses import dataclass, field, replace

import pytest
import torch
from support.random_requests import random_request
from support.sampling_worlds import random_denoiser, tabulated, world_of
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError, DataError
from gidd.sampling import (
    CachedFeatures,
    Guidance,
    Request,
    Sample,
    Session,
    State,
    Threshold,
    TopK,
    corrector_plan,
    sampling_plan,
)
from gidd.sampling.guidance import guide
from gidd.vocab import Vocab

SMALL = Vocab(4, mask_id=3)
VOCAB = Vocab(17, mask_id=16)
MODEL = random_denoiser(VOCAB, max_length=40)
SHAPES = {"batch_size": 4, "pad_to_multiple_of": 16, "max_length": 40}


def without_given(tokens) -> tuple[int | None, ...]:
    """Masks in place of the given tokens."""
    return tuple(None if v is None else VOCAB.mask_id for v in tokens)


@dataclass(eq=False)
class Read:
    """A step that reads all of x_theta and changes nothing."""

    rows: list[Tensor] = field(default_factory=list)

    def __call__(self, schedule, s, t, state, predict) -> State:
        self.rows.append(predict(state, t, torch.ones_like(state.protected)).dense)
        return state


@pytest.mark.parametrize("schedule", [MaskedSchedule(SMALL), HybridSchedule(SMALL, 0.3)])
@pytest.mark.parametrize("scale", [0, 0.5, 1, 2.5])
@pytest.mark.parametrize("without", [(3, None, 3), (1, None, None)])
def test_x_theta_of_an_exact_denoiser_is_the_formula(schedule, scale, without):
    world, time = world_of(schedule), 0.6
    tokens = (0, 3 if isinstance(schedule, MaskedSchedule) else 1, 2)
    step, network = Read(), tabulated(world)
    request = Request(
        tokens=tokens,
        plan=corrector_plan(step, 1, time),
        protected=(True, False, True),
        guidance=Guidance(scale, without),
        processors=(TopK(3),),  # keeps all data tokens
    )
    Session(network, schedule).sample([request])
    other = [v if w is None else w for v, w in zip(tokens, without, strict=True)]
    times = torch.tensor([time] * 2, dtype=torch.float64)
    c, u = network.x_theta(torch.tensor([tokens, other]), times)
    expected = torch.where(c + u > 0, c**scale * u ** (1 - scale), 0)
    expected /= expected.sum(-1, keepdim=True)
    torch.testing.assert_close(step.rows[0][0], expected, rtol=0, atol=1e-6)
    if scale == 0:
        torch.testing.assert_close(step.rows[0][0], u, rtol=0, atol=1e-6)


def test_excluded_tokens_stay_excluded():
    c, u = torch.tensor([0.5, 0.5, 0.0, 0.0]), torch.tensor([0.25, 0.0, 0.75, 0.0])
    for scale, expected in {0: u, 0.5: [1.0, 0, 0, 0], 1: c, 2: [0.0, 1, 0, 0]}.items():
        found = guide(c[None], u[None], torch.tensor([[float(scale)]]))[0]
        torch.testing.assert_close(found, torch.as_tensor(expected))
    assert guide(c[None] * torch.nan, u[None], torch.ones(1, 1)).isnan().all()


def test_guidance_comes_before_processors():
    step = Read()
    request = Request(
        tokens=(5, None), plan=corrector_plan(step, 1, 0.5), guidance=Guidance(3.0, (16, None))
    )
    top = replace(request, processors=(TopK(1),))
    for each in (request, top):
        Session(MODEL, MaskedSchedule(VOCAB)).sample([each])
    guided, greedy = (rows[0] for rows in step.rows)
    assert torch.equal(greedy.argmax(-1), guided.argmax(-1)) and (greedy.amax(-1) == 1).all()


@dataclass
class ShapeNetwork:
    """A denoiser that records the shapes of its forward passes."""

    shapes: list[tuple[int, int]] = field(default_factory=list)
    accepts_padding = True

    def hidden(self, z, t, valid=None):
        self.shapes.append(tuple(z.shape))
        return MODEL.hidden(z, t, valid)

    def distribution(self, hidden):
        return MODEL.distribution(hidden)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_both_rows_are_one_forward_pass(batch_size):
    tokens = (1, 2, None, None, None, None)
    plain = Request(tokens=tokens, plan=sampling_plan(even_times(4), Threshold(fill=1.0)))
    found: dict[float | None, tuple[list, Sample]] = {}
    for scale in (None, 1, 2):
        network = ShapeNetwork()
        guidance = None if scale is None else Guidance(scale, without_given(tokens))
        session = Session(network, MaskedSchedule(VOCAB), batch_size=batch_size)
        (sample,) = session.sample([replace(plain, guidance=guidance)])
        assert len(network.shapes) == sample.forward_passes == 4
        assert sample.tokens[:2] == (1, 2)
        found[scale] = network.shapes, sample
    assert set(found[2][0]) == {(2 * batch_size, 6)}
    assert found[1] == found[None] and found[2][1] != found[1][1]


def mixed_requests(num: int, schedule: MixingSchedule, seed: int = 0) -> list[Request]:
    """Requests of every kind; about a half are guided, with different scales."""
    rng, requests = random.Random(seed), list[Request]()
    for index in range(num):
        request = random_request(rng, VOCAB, 40, index=index, schedule=schedule)
        others = [rng.choice((16, 3)) if v is not None else None for v in request.tokens]
        guidance = Guidance(rng.choice((0, 0.5, 1, 2, 7.5)), tuple(others))
        requests.append(replace(request, guidance=guidance) if rng.random() < 0.5 else request)
    return requests


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap", [CachedFeatures, pytest.param(lambda network: network, marks=pytest.mark.long)]
)
def test_guided_samples_are_the_same_alone_and_in_any_batch(wrap):
    schedule = MaskedSchedule(VOCAB)
    requests = mixed_requests(24, schedule)
    together = Session(wrap(MODEL), schedule, **SHAPES).sample(requests)
    assert sum(request.is_guided for request in requests) > 6
    for request, sample in zip(requests, together, strict=True):
        assert Session(wrap(MODEL), schedule, **SHAPES).sample([request]) == [sample]


def test_a_cache_has_the_features_of_one_batch_size():
    network, z = ShapeNetwork(), torch.arange(8)[None]
    cached = CachedFeatures(network)
    for rows in (z, z, z.repeat(2, 1), z):
        cached.hidden(rows, torch.zeros(len(rows)))
    assert network.shapes == [(1, 8), (2, 8)]


def test_unguided_samples_do_not_depend_on_guided_ones():
    schedule = HybridSchedule(VOCAB, 0.2)
    requests = mixed_requests(12, schedule, seed=1)
    requests = [replace(r, plan=sampling_plan(even_times(3))) for r in requests]
    plain = [r for r in requests if not r.is_guided]
    assert 0 < len(plain) < 12
    together = dict(zip(requests, Session(MODEL, schedule, **SHAPES).sample(requests), strict=True))
    assert [together[r] for r in plain] == Session(MODEL, schedule, **SHAPES).sample(plain)


@pytest.mark.parametrize(
    "tokens, guidance, error, match",
    [
        ((1, None), (2.0, (16,)), ConfigError, "guidance must have .* 2 tokens, got 1"),
        ((1, None), (2.0, (17, None)), DataError, r"in \[0, 17\).*got \[17\]"),
    ],
)
def test_wrong_guidance_is_refused(tokens, guidance, error, match):
    request = Request(
        tokens=tokens, plan=sampling_plan(even_times(2)), guidance=Guidance(*guidance)
    )
    with pytest.raises(error, match=match):
        Session(MODEL, MaskedSchedule(VOCAB)).sample([request])


@pytest.mark.parametrize("scale", [-1, 101, float("nan"), "2"])
def test_wrong_scales_are_refused(scale):
    with pytest.raises(ConfigError, match="Guidance.scale must be"):
        Guidance(scale, (None,))
