"""Rows of several lengths in one forward pass: padding changes nothing at the tokens of a row."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from gidd.errors import ConfigError
from gidd.models.backbones.bidirectional import BidirectionalConfig
from gidd.models.backbones.dit_config import DiTConfig, TimeMappedConfig
from gidd.models.backbones.hf_config import CAUSAL, FAMILIES
from gidd.models.backbones.layers import LocalMixing
from gidd.models.backbones.scaled import GiddScalingConfig
from gidd.models.denoiser import Denoiser
from gidd.models.lora import LoraConfig, add_lora
from gidd.pipeline.precision import in_precision
from gidd.sampling import CachedFeatures, FunctionNetwork
from gidd.vocab import Vocab

VOCAB = Vocab(13, mask_id=12)
LENGTH = 40
LENGTHS = (40, 33, 17, 1)
"""Of the rows of a batch; the first has no padding."""

T = torch.tensor([0.1, 0.4, 0.7, 1.0])
SIZES = {"vocab_size": VOCAB.size, "max_length": LENGTH, "width": 32, "num_layers": 3}


def randomised(network):
    """Fill all parameters: a new DiT, for example, does not attend to anything."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.normal_(std=0.15, generator=generator)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.add_(1)
    return network.eval()


def dit(config=DiTConfig, **options):
    return randomised(config(**SIZES, num_heads=4, time_width=16, **options).build())


def bidirectional(**options):
    constants = {"mlp_width": 48, "rotary_base": 10_000.0, "norm_eps": 1e-6}
    heads = {"num_heads": 4, "num_kv_heads": 2}
    return randomised(BidirectionalConfig(**SIZES, **constants, **heads, **options).build())


def scaled():
    return randomised(GiddScalingConfig(**SIZES, num_heads=4).build())


def hf(family, fields=None, **options):
    pytest.importorskip("transformers", reason="needs the extra `hf`")
    fields = {"intermediate_size": 48} | (fields or {})
    fields |= {"num_key_value_heads": 2} if family in CAUSAL else {}
    config = FAMILIES[family](**SIZES, family=family, num_heads=4, hf=json.dumps(fields), **options)
    return randomised(config.build())


def lora():
    """A DiT with adapters; those of other networks replace linear layers in the same way."""
    pytest.importorskip("peft", reason="needs the extra `hf`")
    network = dit()
    add_lora(network, LoraConfig(rank=2, alpha=2.0))
    return randomised(network)


def narrow_window():
    """Padding farther from tokens than the window sees no token at all."""
    return hf("modernbert", {"local_attention": 4})


NETWORKS = {
    "dit": dit,
    "dit-mixing": lambda: dit(mixing_width=7),
    "dit-without-time": lambda: dit(TimeMappedConfig, time="zero", mixing_width=3),
    "bidirectional": bidirectional,
    "bidirectional-shifted": lambda: bidirectional(qkv_bias=True, shifted_mask_id=12),
    "scaled": scaled,
    "lora": lora,
    **{family: lambda family=family: hf(family) for family in FAMILIES},
    "llama-with-time": lambda: hf("llama", time_embedding=True),
    "modernbert-narrow": narrow_window,
}


@pytest.fixture(scope="module", params=NETWORKS)
def network(request):
    return NETWORKS[request.param]().requires_grad_(False)


def tokens(seed=0):
    """Without the mask, which a shifted network refuses as the first token."""
    return torch.randint(12, (4, LENGTH), generator=torch.Generator().manual_seed(seed))


VALID = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]


def unpadded(network, z):
    """Hidden states of each row alone, without padding and without a mask."""
    return [
        network.hidden(z[i : i + 1, :length], T[i : i + 1])[0] for i, length in enumerate(LENGTHS)
    ]


def relative_difference(padded, rows):
    """Largest difference at valid tokens, relative to the largest hidden state."""
    pairs = [(padded[i, :length].float(), rows[i]) for i, length in enumerate(LENGTHS)]
    difference = max(float((found - row).abs().max()) for found, row in pairs)
    return difference / max(float(row.abs().max()) for row in rows)


def test_a_padded_row_is_the_unpadded_one(network):
    z = tokens()
    assert network.accepts_padding
    rows, padded = unpadded(network, z), network.hidden(z, T, VALID)
    assert relative_difference(padded, rows) <= 1e-6
    assert padded.isfinite().all()  # an infinite number would spread: 0 times infinity is NaN
    assert all(row.abs().max() > 0.1 for row in rows)
    without_mask = network.hidden(z, T)
    assert (without_mask[1:] - padded[1:])[VALID[1:]].abs().max() > 1e-3  # the mask matters


def test_tokens_at_padding_change_nothing(network):
    z, other = tokens(), torch.where(VALID, tokens(), tokens(seed=1))
    assert (z != other).any()
    padded = network.hidden(z, T, VALID)
    assert torch.equal(padded[VALID], network.hidden(other, T, VALID)[VALID])
    other[~VALID] = VOCAB.mask_id
    assert torch.equal(padded[VALID], network.hidden(other, T, VALID)[VALID])


def test_full_rows_are_the_same_with_and_without_a_mask(network):
    z = tokens()
    expected = network.hidden(z, T)
    assert torch.equal(network.hidden(z, T, torch.ones_like(VALID)), expected)
    assert torch.equal(network.hidden(z, T, VALID)[0], expected[0])  # beside rows with padding


def test_local_mixing_counts_padding_as_0():
    layer = LocalMixing(1, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [10.0], [100.0]]))
        x, valid = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[True, True, False]])
        # x_i + x_{i-1} + 10 x_i + 100 x_{i+1}, and the third number is 0 for its neighbours
        assert layer(x, valid).flatten().tolist() == [1 + 10 + 200, 2 + 1 + 20, 3 + 2]
        assert layer(x).flatten().tolist() == [1 + 10 + 200, 2 + 1 + 20 + 300, 3 + 2 + 30]


def test_gradients_ignore_padding_and_survive_recomputed_activations():
    z, weights = tokens(), VALID[..., None].float()
    gradients = []
    for options in ({}, {"checkpoint_activations": True}):
        model = dit(mixing_width=3, **options).train()
        (model.hidden(z, T, VALID).square() * weights).sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    alone = dit(mixing_width=3).train()
    for i, length in enumerate(LENGTHS):
        alone.hidden(z[i : i + 1, :length], T[i : i + 1]).square().sum().backward()
    gradients.append([p.grad for p in alone.parameters() if p.grad is not None])
    for kept, again, apart in zip(*gradients, strict=True):
        assert torch.equal(kept, again)
        torch.testing.assert_close(kept, apart, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_bf16_accepts_padding():
    denoiser, z = Denoiser(dit(mixing_width=3), VOCAB), tokens()
    exact, rounded = unpadded(denoiser, z), in_precision(denoiser, "bf16", torch.device("cpu"))
    assert rounded.accepts_padding
    padded = rounded.hidden(z, T, VALID)
    other = torch.where(VALID, z, tokens(seed=1))
    assert torch.equal(padded[VALID], rounded.hidden(other, T, VALID)[VALID])
    assert 1e-4 < relative_difference(padded, exact) < 0.03  # it is not computed in float32


class Average(nn.Module):
    """A user's backbone with the two arguments that are required: tokens and their average."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB.size, 6)
        self.head = nn.Linear(6, VOCAB.size)

    def hidden(self, z, t):
        return self.embedding(z) + self.embedding(z).mean(1, keepdim=True)


def test_a_backbone_with_two_arguments_works_and_is_not_padded():
    backbone = Average()
    denoiser, z = Denoiser(backbone, VOCAB), tokens()
    for network in (
        denoiser,
        in_precision(denoiser, "bf16", torch.device("cpu")),
        CachedFeatures(denoiser),
    ):
        assert not network.accepts_padding
        assert torch.equal(network.hidden(z, T), backbone.hidden(z, T))
        assert torch.equal(network.hidden(z, T, None), backbone.hidden(z, T))
        with pytest.raises(ConfigError, match=r"Average .*accepts_padding.*valid"):
            network.hidden(z, T, VALID)


def test_a_function_is_not_padded():
    network, z = FunctionNetwork(lambda z, t: torch.ones(*z.shape, VOCAB.size)), tokens()
    assert not network.accepts_padding
    assert network.hidden(z, T, None).shape == (4, LENGTH, VOCAB.size)
    with pytest.raises(ConfigError, match=r"accepts_padding"):
        network.hidden(z, T, VALID)


# ------------------------------------------------------------------------------- cached features


class Counted:
    """Counts the forward passes of a network that ignores the time."""

    accepts_padding = True

    def __init__(self):
        self.network = Denoiser(bidirectional(), VOCAB)
        self.calls = 0

    def hidden(self, z, t, valid=None):
        self.calls += 1
        return self.network.hidden(z, t, valid)

    def distribution(self, hidden):
        return self.network.distribution(hidden)


@torch.no_grad()
def test_cached_features_depend_on_the_number_of_valid_tokens():
    counted, z = Counted(), tokens()
    cached = CachedFeatures(counted)
    assert cached.accepts_padding
    expected = counted.network.hidden(z, T, VALID)
    for _ in range(2):
        assert torch.equal(cached.hidden(z, T, VALID), expected)
    assert counted.calls == 1
    # the same tokens, one of them more
    longer = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None] + 1
    found = cached.hidden(z, T, longer)
    assert counted.calls == 2
    assert torch.equal(found, counted.network.hidden(z, T, longer))
    assert not torch.equal(found[1, :17], expected[1, :17])
    # a row without padding is the same with and without a mask
    first = z[:1].expand_as(z).contiguous()
    torch.testing.assert_close(cached.hidden(first, T), expected[:1].expand_as(expected))
    assert counted.calls == 2
    cached.hidden(z, T)  # rows with padding are not
    assert counted.calls == 3


def test_threads_can_share_cached_features():
    """More rows than the cache keeps: threads evict each other's rows all the time."""
    threads, table = 4, torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    network = FunctionNetwork(lambda z, t: table[z])
    cached, started = CachedFeatures(network, capacity=3), threading.Barrier(threads)
    z = torch.arange(6)[:, None].expand(6, 4).contiguous()

    def read(thread):
        started.wait()
        generator = torch.Generator().manual_seed(thread)
        pairs = torch.randint(6, (250, 2), generator=generator)
        return [(pair, cached.hidden(z[pair], torch.ones(2))) for pair in pairs]

    with ThreadPoolExecutor(threads) as pool:
        results = [result for part in pool.map(read, range(threads)) for result in part]
    assert len(results) == 1000
    assert all(torch.equal(features, table[z[pair]]) for pair, features in results)
    assert len(cached._cache) == 3
