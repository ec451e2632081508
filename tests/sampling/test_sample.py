"""The engine: batch invariance, no needless forward passes, protected positions."""

import pytest
import torch
from support.random_requests import is_defined
from support.sampling_worlds import blank_state, random_denoiser
from support.session_runs import run_state

from gidd.common.config.components import component
from gidd.common.config.registry import builtin_components
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.diffusion.times import even_times, sine_times
from gidd.errors import ConfigError
from gidd.sampling import (
    CachedFeatures,
    FunctionNetwork,
    Gibbs,
    GibbsSweep,
    MinP,
    Plan,
    Request,
    SelfCorrectionStep,
    Session,
    Temperature,
    Threshold,
    TopK,
    ancestral,
    blanks,
    corrector_plan,
    prompt,
    sampling_plan,
)
from gidd.sampling.correctors.gibbs import top_spaced
from gidd.sampling.steps import MASK_FILLING_STEPS
from gidd.vocab import Vocab

STEPS = {name: component("step", name).build() for name in builtin_components("step")}
CORRECTORS = {
    name: component("corrector", name).build() for name in builtin_components("corrector")
}
VOCAB = Vocab(65, mask_id=64)
HYBRID = HybridSchedule(VOCAB, 0.2)
MASKED = MaskedSchedule(VOCAB)


class CountingNetwork:
    """A network that counts sequences and rows of the head."""

    def __init__(self, network):
        self.network = network
        self.forward_passes = 0
        self.rows = 0

    def hidden(self, z, t):
        self.forward_passes += len(z)
        return self.network.hidden(z, t)

    def distribution(self, hidden):
        self.rows += len(hidden)
        return self.network.distribution(hidden)


def mixed_requests(num: int = 64) -> list[Request]:
    """Lengths 4 to 32, 1 to 5 steps, prompts, seeds, plans and processors of all kinds."""
    generator = torch.Generator().manual_seed(1)
    lengths = [4, 7, 16, 31, 32]
    processors = [(), (Temperature(0.8),), (TopK(20), MinP(0.01))]
    finishes = [
        Plan(()),
        corrector_plan(Gibbs(distance=3), 2),
        corrector_plan(SelfCorrectionStep(temperature=0.5, patience=2, num_tokens=2), 3),
        corrector_plan(GibbsSweep(), 2, 0.1),
    ]
    requests = []
    for i in range(num):
        length = lengths[i % len(lengths)]
        given = torch.randint(64, (i % 4,), generator=generator).tolist()
        times = even_times(1 + i % 5) if i % 2 else sine_times(1 + i % 5)
        step = Threshold() if i % 11 == 0 else ancestral
        requests.append(
            Request(
                tokens=prompt(length, prefix=given[:2], suffix=given[2:]),
                plan=sampling_plan(times, step) + finishes[i % 4],
                seed=i // 3,
                sample_index=i,
                processors=processors[i % 3],
            )
        )
    return requests


@pytest.mark.parametrize(
    ("schedule", "batch_size"),
    [
        pytest.param(HYBRID, 1, id="hybrid-1"),
        pytest.param(MASKED, 1, id="masked-1", marks=pytest.mark.long),
        pytest.param(HYBRID, 8, id="hybrid-8", marks=pytest.mark.long),
    ],
)
def test_a_sequence_is_the_same_alone_and_in_any_batch(schedule, batch_size, device):
    """64 mixed requests, float32, a real network: bit-identical alone and by 2, 7 and 64."""
    network = random_denoiser(VOCAB).to(device)
    session = Session(network, schedule, batch_size=batch_size, device=device)
    requests = mixed_requests()
    alone = [session.sample([request])[0] for request in requests]
    assert len({sample.tokens for sample in alone}) > 60  # they are different sequences
    for size in (2, 7, 64):
        batches = [requests[i : i + size] for i in range(0, len(requests), size)]
        together = [sample for batch in batches for sample in session.sample(batch)]
        assert together == alone


@pytest.mark.slow
def test_processors_get_the_same_shapes_in_any_batch():
    """torch splits the sum of one long row over threads, of many rows not: other last bits."""
    vocab, shapes = Vocab(50258, mask_id=50257), set()

    def spy(rows, positions, request):
        shapes.add(tuple(rows.shape))
        return rows

    table = torch.full((16, 50258), 1 / 50257)
    table[:, -1] = 0
    schedule = MaskedSchedule(vocab)
    session = Session(
        FunctionNetwork(lambda z, t: table.expand(len(z), -1, -1)), schedule, batch_size=2
    )
    for number in range(6):
        plan, processors = sampling_plan(even_times(8)), (spy,)
        session.sample(
            [Request(tokens=blanks(16), plan=plan, sample_index=number, processors=processors)]
        )
    assert len(shapes) == 1


@pytest.mark.slow
def test_shapes_of_forward_passes_are_fixed():
    """Batch invariance relies on it: the same number of sequences of one length every time."""
    shapes = set()

    def x_theta(z, t):
        shapes.add(tuple(z.shape))
        return torch.full((*z.shape, 65), 1 / 64)

    session = Session(FunctionNetwork(x_theta), HYBRID, batch_size=4)
    session.sample(mixed_requests(32))
    assert shapes == {(4, length) for length in (4, 7, 16, 31, 32)}


def test_equal_requests_give_equal_samples():
    session = Session(random_denoiser(VOCAB), HYBRID)
    request = Request(tokens=blanks(16), plan=sampling_plan(even_times(4)), seed=5)
    again, other_seed, other_index = session.sample(
        [
            request,
            Request(tokens=blanks(16), plan=sampling_plan(even_times(4)), seed=6),
            Request(tokens=blanks(16), plan=sampling_plan(even_times(4)), seed=5, sample_index=1),
        ]
    )
    assert again == session.sample([request])[0]
    assert len({again.tokens, other_seed.tokens, other_index.tokens}) == 3


@pytest.mark.slow
def test_masked_diffusion_runs_the_head_only_where_tokens_unmask():
    """p_u = 0: one row of the head per token, no forward pass for a step that fills nothing."""
    network = CountingNetwork(random_denoiser(VOCAB))
    (sample,) = Session(network, MASKED).sample(
        [Request(tokens=blanks(16), plan=sampling_plan(even_times(100)))]
    )
    assert network.rows == 16
    assert network.forward_passes == sample.forward_passes <= 16
    assert len(sample.edits) == 16


@pytest.mark.slow
def test_uniform_noise_needs_the_head_at_few_tokens():
    """The head does not run for tokens that are kept for any x_theta."""
    network = CountingNetwork(random_denoiser(VOCAB))
    steps = 100
    Session(network, HYBRID).sample(
        [Request(tokens=blanks(32), plan=sampling_plan(even_times(steps)))]
    )
    assert network.rows < 0.1 * 32 * steps
    assert network.forward_passes < steps


@pytest.mark.slow
def test_a_network_that_ignores_time_is_not_called_twice_for_the_same_tokens():
    """Uniform noise reads visible tokens too; features are cached while nothing changes."""
    model = random_denoiser(VOCAB)
    plain, cached = CountingNetwork(model), CountingNetwork(model)
    time_free = FunctionNetwork(
        lambda z, t: plain.distribution(plain.hidden(z, torch.zeros_like(t)))
    )
    plan = sampling_plan(even_times(60)) + corrector_plan(Gibbs(), 2)
    requests = [Request(tokens=blanks(12), plan=plan, seed=s) for s in range(2)]
    expected = Session(time_free, HYBRID).sample(requests)
    found = Session(CachedFeatures(cached), HYBRID).sample(requests)
    assert [s.tokens for s in found] == [s.tokens for s in expected]
    changed = sum(len({edit.step_index for edit in sample.edits}) for sample in found)
    assert cached.forward_passes <= changed + len(requests)
    assert cached.forward_passes < 0.8 * plain.forward_passes


def test_cached_features_are_evicted_oldest_first():
    counted = CountingNetwork(random_denoiser(VOCAB))
    network = CachedFeatures(counted, capacity=2)
    tokens, t = torch.arange(12).reshape(3, 4), torch.ones(1)
    for row in (0, 1, 0, 2, 0, 1):  # 1 is the oldest when 2 is added
        features = network.hidden(tokens[row : row + 1], t)
        expected = counted.network.hidden(tokens[row : row + 1], torch.zeros(1))
        assert torch.equal(features, expected)
    assert counted.forward_passes == 4


UNIFORM = UniformSchedule(VOCAB)
EVERYWHERE = [
    pytest.param(step, schedule, id=f"{step}-{type(schedule).__name__}")
    for step in (*STEPS, *CORRECTORS)
    for schedule in (HYBRID, MASKED, UNIFORM)
    if step in CORRECTORS or is_defined(STEPS[step], schedule)
]


@pytest.mark.parametrize("num", [500, pytest.param(33_334, marks=pytest.mark.long)])
@pytest.mark.parametrize(("step", "schedule"), EVERYWHERE)
def test_protected_positions_do_not_change(step, schedule, num):
    """Random runs of three steps, 100,000 in all at full size; protected tokens anywhere."""
    length = 6
    generator = torch.Generator().manual_seed(7)
    table = torch.rand(VOCAB.size, VOCAB.size, generator=generator).softmax(-1)
    table[:, 64] = 0
    state = blank_state(schedule, num, length)
    state.tokens[:] = torch.randint(65, (num, length), generator=generator)
    state.protected[:] = torch.rand(num, length, generator=generator) < 0.5
    before, protected = state.tokens.clone(), state.protected.clone()
    times = even_times(3)
    session = Session(FunctionNetwork(lambda z, t: table[z.roll(1, -1)]), schedule, batch_size=2500)
    if step in CORRECTORS:
        plan = corrector_plan(CORRECTORS[step], 3, 0.3)
    else:
        plan = sampling_plan(times, STEPS[step])
    run_state(session, state, plan)
    assert (state.tokens == before)[protected].all()
    assert (state.tokens != before)[~protected].any()
    assert (state.protected == protected).all()


def test_edits_reproduce_the_sample():
    """Replaying the log on the first state gives the last; steps are named."""
    session = Session(random_denoiser(VOCAB), HYBRID)
    correct = SelfCorrectionStep(temperature=1.0, patience=2)
    requests = [
        Request(
            tokens=blanks(16),
            plan=sampling_plan(even_times(6)) + corrector_plan(correct, 6),
            seed=s,
        )
        for s in range(4)
    ]
    names = set()
    for sample in session.sample(requests):
        tokens = [64] * 16  # the prior of hybrid noise is all masks
        for edit in sample.edits:
            assert tokens[edit.position] == edit.old != edit.new
            assert 0 <= edit.probability <= 1
            tokens[edit.position] = edit.new
            names.add(edit.step)
        assert tuple(tokens) == sample.tokens
        indices = [edit.step_index for edit in sample.edits]
        assert indices == sorted(indices)
    assert names == {"ancestral", "self_correction"}


@pytest.mark.slow
def test_recording_frames_changes_nothing():
    """Frames hold the state before each step, with the predictions for every token."""
    model = random_denoiser(VOCAB)
    session = Session(model, HYBRID)
    requests = mixed_requests(12)
    plain, recorded = session.sample(requests), session.sample(requests, record_frames=True)
    for request, a, b in zip(requests, plain, recorded, strict=True):
        assert (a.tokens, a.edits, a.forward_passes) == (b.tokens, b.edits, b.forward_passes)
        assert [frame.step_index for frame in b.frames] == list(range(len(b.frames)))
        assert len(b.frames) <= len(request.plan)
        frame = b.frames[-1]
        x_theta = model(frame.tokens[None], torch.tensor([frame.time]))[0]
        for processor in request.processors:
            x_theta = processor(x_theta)
        current = x_theta.gather(-1, frame.tokens[:, None]).squeeze(-1)
        torch.testing.assert_close(frame.probability, current)
        torch.testing.assert_close(frame.entropy, torch.special.entr(x_theta).sum(-1))
        free = ~torch.tensor(b.protected)
        assert 0 <= frame.self_accuracy(free) <= 1
        assert frame.mean_entropy(free) >= 0


def test_on_step_is_called_after_every_step():
    """Sequences are dropped when their plan is done; the others continue, and waiting ones join."""
    session = Session(random_denoiser(VOCAB), HYBRID, batch_size=2)
    plans = [sampling_plan(even_times(num)) for num in (1, 3, 2)]
    requests = [Request(tokens=blanks(8), plan=plan) for plan in plans]
    rounds = []
    session.sample(
        requests,
        on_step=lambda events: rounds.append([(e.index, e.steps_done) for e in events]),
    )
    assert rounds == [[(0, 1), (1, 1)], [(2, 1), (1, 2)], [(2, 2), (1, 3)]]


def test_times_end_where_the_plan_ends():
    session = Session(random_denoiser(VOCAB), HYBRID)
    plans = [sampling_plan(even_times(2)), sampling_plan(torch.tensor([1.0, 0.5])), Plan(())]
    times: dict[int, list[float]] = {}

    def see(events):
        for event in events:
            times.setdefault(event.index, []).append(event.time)

    session.sample([Request(tokens=blanks(8), plan=plan) for plan in plans], on_step=see)
    assert times == {0: [0.5, 0.0], 1: [0.5], 2: [0.0]}


@pytest.mark.parametrize("step", STEPS)
def test_one_step_and_one_token(step):
    """The smallest request: one token, one step; no mask is left."""
    schedule = MASKED if is_defined(STEPS[step], MASKED) else HYBRID
    (sample,) = Session(random_denoiser(VOCAB), schedule).sample(
        [Request(tokens=blanks(1), plan=sampling_plan(even_times(1), STEPS[step]))]
    )
    assert 0 <= sample.tokens[0] < 64
    assert sample.forward_passes == 1


@pytest.mark.parametrize("step", STEPS)
def test_no_mask_is_left_at_time_zero(step):
    schedule = HYBRID if is_defined(STEPS[step], HYBRID) else MASKED
    session = Session(random_denoiser(VOCAB), schedule)
    requests = [
        Request(tokens=blanks(16), plan=sampling_plan(even_times(5), STEPS[step]), seed=s)
        for s in range(8)
    ]
    assert all(64 not in sample.tokens for sample in session.sample(requests))


def test_a_request_without_blanks_needs_no_forward_pass():
    network = CountingNetwork(random_denoiser(VOCAB))
    session = Session(network, HYBRID)
    (sample,) = session.sample([Request(tokens=(1, 2, 3), plan=sampling_plan(even_times(5)))])
    assert sample.tokens == (1, 2, 3)
    assert network.forward_passes == 0
    assert session.sample([]) == []


def test_text_ends_before_the_first_generated_stop_token():
    """A stop token in the prompt, such as a start-of-text token, does not end it."""
    table = torch.zeros(4, 65)
    table[[0, 1, 2, 3], [7, 8, 9, 9]] = 1
    network = FunctionNetwork(lambda z, t: table.expand(len(z), -1, -1))
    plan = sampling_plan(even_times(2))
    stops = [
        Request(tokens=(9, None, None, None), plan=plan, stop=(5, 9)),
        Request(tokens=(9, None, None, None), plan=plan, stop=(5,)),
        Request(tokens=(9, None, None, None), plan=plan),
    ]
    texts = [sample.text for sample in Session(network, MASKED).sample(stops)]
    assert texts == [(9, 8), (9, 8, 9, 9), (9, 8, 9, 9)]


def test_impossible_requests_are_refused():
    """Others: tests/sampling/test_session_requests.py."""
    plan = sampling_plan(even_times(2))
    with pytest.raises(ConfigError, match="max_length = 32"):  # refused by the model itself
        Session(random_denoiser(VOCAB), HYBRID).sample([Request(tokens=blanks(33), plan=plan)])
    with pytest.raises(ConfigError, match="step 0 .*0 <= s <= t <= 1, got t = 0.5 and s = 0.75"):
        sampling_plan(torch.tensor([0.5, 0.75]))
    with pytest.raises(ConfigError, match="num_steps .*at least 0, got -1"):
        corrector_plan(Gibbs(), -1)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("vocab", [Vocab(65), VOCAB], ids=["no-mask", "unused-mask"])
def test_mask_filling_steps_refuse_other_schedules(step, vocab):
    session = Session(random_denoiser(vocab), UniformSchedule(vocab))
    request = Request(tokens=blanks(4), plan=sampling_plan(even_times(3), STEPS[step]))
    if step in (*MASK_FILLING_STEPS, "remdm", "remask_suspects"):
        with pytest.raises(ConfigError, match="masks at t = 1, got .*% masks"):
            session.sample([request])
    else:
        assert len(session.sample([request])[0].tokens) == 4


def test_threshold_edits_given_tokens_under_any_noise():
    """A plan from t < 1 has no masks to fill, so a schedule without masks is accepted."""
    certain = torch.nn.functional.one_hot(torch.tensor(7), 65).float()
    session = Session(FunctionNetwork(lambda z, t: certain.expand(*z.shape, -1)), UNIFORM)
    plan = sampling_plan(torch.tensor([0.2, 0.0]), Threshold())
    request = Request(tokens=(1, 2, 3), plan=plan, protected=(True, False, False))
    assert session.sample([request])[0].tokens == (1, 7, 7)


def test_editing_starts_from_the_given_tokens():
    """Given tokens that are not protected are the initial state, instead of the prior."""
    session = Session(random_denoiser(VOCAB), HYBRID)
    request = Request(tokens=(1, 2, 3, None), plan=Plan(()), protected=(False,) * 4)
    assert session.sample([request])[0].tokens == (1, 2, 3, 64)


@pytest.mark.parametrize("number", [1, 3, 10])
@pytest.mark.parametrize("distance", [1, 2, 5])
def test_top_spaced_is_a_greedy_choice_by_score(number, distance):
    """Compared with a plain loop over positions in the order of their score."""
    generator = torch.Generator().manual_seed(number * distance)
    score = torch.rand(20, 16, generator=generator)
    allowed = torch.rand(20, 16, generator=generator) < 0.6
    allowed[0] = False
    chosen = top_spaced(score, allowed, number, distance)
    for row in range(20):
        taken: list[int] = []
        for position in score[row].argsort(descending=True).tolist():
            far = all(abs(position - other) >= distance for other in taken)
            if allowed[row, position] and far and len(taken) < number:
                taken.append(position)
        assert chosen[row].nonzero().squeeze(-1).tolist() == sorted(taken)
