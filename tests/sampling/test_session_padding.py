"""Sequences of different lengths in one forward pass."""

import pytest
import torch
from support.sampling_worlds import chi_square_p, counts, index_of, random_denoiser, world_of
from torch import Tensor

from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.sampling import (
    GibbsSweep,
    Request,
    SelfCorrectionStep,
    Session,
    Threshold,
    ancestral,
    blanks,
    corrector_plan,
    sampling_plan,
)
from gidd.sources.enumeration import SmallWorld
from gidd.vocab import Vocab

VOCAB = Vocab(4, mask_id=3)


class PaddedTable:
    """The exact denoiser of a small world, for rows with padding."""

    accepts_padding = True

    def __init__(self, world: SmallWorld) -> None:
        self.world, self.num_padded = world, 0

    def hidden(self, z: Tensor, t: Tensor, valid: Tensor | None = None) -> Tensor:
        world, length = self.world, self.world.length
        assert valid is not None and valid.sum(-1).eq(length).all()
        self.num_padded += 1
        table = world.leave_one_out(world.noisy, world.times(t[0].clamp_max(1 - 1e-9)))
        x_theta = torch.full((*z.shape, world.schedule.vocab.size), torch.nan, dtype=torch.float64)
        x_theta[:, :length] = table[index_of(world, z[:, :length])]  # padding is never read
        return x_theta

    def distribution(self, hidden: Tensor) -> Tensor:
        return hidden


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "plan"),
    [
        (MaskedSchedule(VOCAB), sampling_plan(even_times(8), ancestral)),
        (HybridSchedule(VOCAB, 0.3), sampling_plan(even_times(8), ancestral)),
        (MaskedSchedule(VOCAB), sampling_plan(even_times(6), Threshold(fill=1.0))),
        (
            HybridSchedule(VOCAB, 0.3),
            sampling_plan(even_times(8)) + corrector_plan(GibbsSweep(distance=2), 8),
        ),
    ],
    ids=["masked", "hybrid", "threshold", "gibbs"],
)
def test_padded_sequences_are_samples_of_the_same_law(schedule, plan):
    world, num = world_of(schedule), 3000
    network = PaddedTable(world)
    padded = Session(network, schedule, batch_size=num, pad_to_multiple_of=8)
    requests = [Request(tokens=blanks(world.length), plan=plan, sample_index=i) for i in range(num)]
    samples = torch.tensor([sample.tokens for sample in padded.sample(requests)])
    assert samples.shape == (num, world.length) and network.num_padded > 1
    law = world.data_distribution
    if plan.steps[-1].step is ancestral:  # eight steps are not exact; the law of the chain is known
        law = world.reverse_distribution(world.leave_one_out, even_times(8))
    assert chi_square_p(counts(world, samples), law) > 1e-3


def test_a_padded_prediction_is_that_of_the_sequence_alone():
    vocab = Vocab(17, mask_id=16)
    network, schedule = random_denoiser(vocab, 32, gain=0.0), HybridSchedule(vocab, 0.2)
    plan = corrector_plan(SelfCorrectionStep(), 2, 1e-4)
    requests = [
        Request(tokens=tuple(range(1, n)), plan=plan, protected=(False,) * (n - 1))
        for n in (3, 9, 14, 17)
    ]
    alone = Session(network, schedule).sample(requests, record_frames=True)
    session = Session(network, schedule, batch_size=4, pad_to_multiple_of=16)
    for one, padded in zip(alone, session.sample(requests, record_frames=True), strict=True):
        assert one.tokens == padded.tokens and one.forward_passes == padded.forward_passes
        for a, b in zip(one.frames, padded.frames, strict=True):
            assert torch.equal(a.tokens, b.tokens)
            torch.testing.assert_close(a.probability, b.probability, rtol=0, atol=1e-6)
            torch.testing.assert_close(a.entropy, b.entropy, rtol=0, atol=1e-5)
