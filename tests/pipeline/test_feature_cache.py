"""Networks without time: samplers reuse their features while nothing changes."""

import pytest
import torch

from gidd.data.tokenizers import character_level
from gidd.diffusion.schedules import MaskedSchedule
from gidd.models import Denoiser
from gidd.models.backbones import (
    BidirectionalConfig,
    DiTConfig,
    GiddScalingConfig,
    TimeMappedConfig,
)
from gidd.pipeline import Pipeline

TOKENIZER = character_level("abcdefgh")
SIZES = {"vocab_size": TOKENIZER.vocab.size, "max_length": 8, "width": 16}
SIZES |= {"num_layers": 1, "num_heads": 2}
WITHOUT_TIME = {
    "bidirectional": BidirectionalConfig(
        **SIZES, num_kv_heads=2, mlp_width=16, rotary_base=10_000.0, norm_eps=1e-6
    ),
    "scaled": GiddScalingConfig(**SIZES),
    "time is always 0": TimeMappedConfig(**SIZES, time_width=8, time="zero"),
}


def pipeline(network):
    denoiser = Denoiser(network, TOKENIZER.vocab)
    return Pipeline(denoiser, MaskedSchedule(TOKENIZER.vocab), TOKENIZER, context=8)


def counted(network):
    """The calls of the network's `hidden` are counted in the list."""
    calls, hidden = [], network.hidden

    def count(z, t):
        calls.append(len(z))
        return hidden(z, t)

    network.hidden = count
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("config", WITHOUT_TIME.values(), ids=list(WITHOUT_TIME))
def test_features_are_reused_and_samples_stay_the_same(config):
    torch.manual_seed(0)
    network = config.build()
    options = {"length": 8, "steps": 40, "sampler": "confidence"}
    cached = pipeline(network)
    calls = counted(cached.denoiser.backbone)
    (ours,) = cached.generate(**options)
    num_cached = len(calls)
    network.uses_time = True
    plain = pipeline(network)
    calls_without = counted(plain.denoiser.backbone)
    (theirs,) = plain.generate(**options)
    assert ours.tokens == theirs.tokens
    assert num_cached <= 9  # one per state: 8 tokens are filled
    assert len(calls_without) > 2 * num_cached


def test_a_network_with_time_is_called_at_every_time():
    assert DiTConfig(**SIZES, time_width=8).build().uses_time
    assert TimeMappedConfig(**SIZES, time_width=8, time="sigma").build().uses_time
