"""LoRA: few trained parameters, no effect at first, and merged without a trace."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from support.cases import few
from support.small_networks import MARKOV_VOCAB, markov_losses
from torch import nn

from gidd.common.config.allowed import problems_of
from gidd.errors import ConfigError
from gidd.models import DiT, DiTConfig
from gidd.models.backbones.hf_config import FAMILIES, BidirectionalLMConfig
from gidd.models.lora import LoraConfig, add_lora, merge_lora, reset_lora
from gidd.models.networks import Initializer, name_without_lora

pytest.importorskip("peft", reason="needs the extra `hf`")

RANK4 = LoraConfig(rank=4)
Z, T = torch.randint(8, (2, 16), generator=torch.Generator().manual_seed(0)), torch.rand(2)


def dit(width=64):
    sizes = {"vocab_size": MARKOV_VOCAB.size, "max_length": 16, "time_width": 16}
    network = DiT(DiTConfig(width=width, num_layers=2, num_heads=4, **sizes))
    initial = Initializer(0)
    with torch.no_grad():
        for parameter in network.parameters():  # a fresh head predicts nothing
            initial.normal(parameter, 0.2)
    return network


def hf(family="llama", width=64, tied=False, **changes):
    sizes = {"vocab_size": MARKOV_VOCAB.size, "max_length": 16, "num_layers": 2, "num_heads": 4}
    # a frozen head of small weights could not be trained
    fields = json.dumps({"initializer_range": 0.1, "tie_word_embeddings": tied})
    network = FAMILIES[family](family=family, width=width, hf=fields, **sizes, **changes).build()
    network.reset_parameters(Initializer(0))
    return network


NETWORKS = {
    "dit": dit,
    "llama": hf,
    "bert": lambda: hf("bert"),
    "modernbert": lambda: hf("modernbert"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(NETWORKS, every=3))
def test_adapters_start_without_effect_train_and_merge(kind):
    network = NETWORKS[kind]()
    names = list(network.state_dict())
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with torch.no_grad():
        logits = network(Z, T)
    add_lora(network, RANK4)
    reset_lora(network, Initializer(1))
    with torch.no_grad():
        assert torch.equal(network(Z, T), logits)

    losses = markov_losses(network, steps=50, lr=1e-2)
    assert losses[-10:].mean() < 0.9 * losses[:10].mean()
    for name, tensor in network.state_dict().items():
        if (plain := name_without_lora(name)) is not None:
            assert torch.equal(tensor, before[plain]), name

    network.eval()
    with torch.no_grad():
        trained = network(Z, T)
        assert (trained - logits).abs().max() > 0.1
        merge_lora(network)
        torch.testing.assert_close(network(Z, T), trained, rtol=0, atol=1e-5)
    assert list(network.state_dict()) == names
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_few_parameters_are_trained():
    network = hf(width=512)
    add_lora(network, RANK4)
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert trained < 0.05 * sum(p.numel() for p in network.parameters())
    outside = {
        name for name, p in network.named_parameters() if p.requires_grad and ".lora_" not in name
    }
    assert outside == set()


@pytest.mark.parametrize("kind", NETWORKS)
def test_embeddings_and_head_are_trained_if_asked_for(kind):
    network = NETWORKS[kind]()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    add_lora(network, replace(RANK4, embeddings=True))
    reset_lora(network, Initializer(1))
    markov_losses(network, steps=2)
    changed = {
        plain
        for name, tensor in network.state_dict().items()
        if (plain := name_without_lora(name)) is not None and not torch.equal(tensor, before[plain])
    }
    assert any("embed" in name for name in changed) and "head.weight" in changed
    assert not any("layer" in name or "block" in name for name in changed)


def test_time_embedding_is_trained_too():
    network = hf(time_embedding=True)
    add_lora(network, RANK4)
    trained = {name.partition(".")[0] for name, p in network.named_parameters() if p.requires_grad}
    assert trained == {"body", "time", "time_projection"}
    markov_losses(network, steps=2)
    assert network.time_projection.weight.abs().max() > 0


@pytest.mark.slow
def test_adapters_of_the_meta_device_are_initialised_from_the_seed():
    def built(seed):
        with torch.device("meta"):
            network = BidirectionalLMConfig(
                vocab_size=9, max_length=16, width=32, num_heads=2
            ).build()
            add_lora(network, RANK4)
        network.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(torch.nan)
        network.reset_parameters(Initializer(0))
        reset_lora(network, Initializer(seed))
        return network.state_dict()

    one, same, other = built(1), built(1), built(2)
    assert all(torch.equal(one[name], same[name]) for name in one)
    first = [name for name in one if ".lora_A." in name]
    assert len(first) == 12 * 7
    for name in first:
        assert not torch.equal(one[name], other[name])
        assert 0 < one[name].abs().max() <= one[name].shape[1] ** -0.5
        assert not one[name.replace("lora_A", "lora_B")].any()


def test_layers_are_chosen_by_name():
    network = hf()
    add_lora(network, LoraConfig(rank=2, targets="q_proj, v_proj"))
    adapted = {name.split(".lora_A.")[0] for name in network.state_dict() if ".lora_A." in name}
    assert {name.rpartition(".")[2] for name in adapted} == {"q_proj", "v_proj"}
    assert len(adapted) == 4
    with pytest.raises(ConfigError, match=r"(?s)lora.targets.*lm_head.*down_proj, gate_proj"):
        add_lora(hf(), LoraConfig(rank=2, targets="lm_head"))


class Plain(nn.Module):
    """A network that declares no blocks."""

    def __init__(self, size=9, width=16):
        super().__init__()
        self.embedding = nn.Embedding(size, width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, size)

    def hidden(self, z, t):
        x = self.embedding(z)
        return x + self.mix(x.mean(1, keepdim=True))


def test_a_network_without_blocks_has_adapters_on_all_layers_but_the_head():
    network = Plain()
    before = network.hidden(Z, T)
    add_lora(network, RANK4)
    reset_lora(network, Initializer(0))
    torch.testing.assert_close(network.hidden(Z, T), before)
    adapted = {name for name, p in network.named_parameters() if p.requires_grad}
    assert adapted == {f"mix.lora_{x}.default.weight" for x in "AB"}
    merge_lora(network)
    torch.testing.assert_close(network.hidden(Z, T), before)


def test_a_network_without_linear_layers_is_refused():
    network = Plain()
    network.mix = nn.Identity()
    with pytest.raises(ConfigError, match=r"lora.rank.*no linear layers.*Plain"):
        add_lora(network, RANK4)


def test_head_and_embedding_are_not_adapted():
    network = hf("bert", tied=True)
    add_lora(network, RANK4)
    assert type(network.head) is nn.Linear and type(network.embedding) is nn.Embedding
    assert not network.embedding.weight.requires_grad


def test_rank_0_changes_nothing():
    network = hf()
    add_lora(network, LoraConfig())
    assert all(p.requires_grad and ".lora_" not in n for n, p in network.named_parameters())


def test_all_problems_of_a_config_are_reported():
    wrong = LoraConfig(rank=-1, alpha=0.0, dropout=1.0, targets="a,,b")
    problems = list(problems_of(wrong, "lora."))
    fields = ("lora.rank", "lora.alpha", "lora.dropout", "lora.targets")
    assert len(problems) == 4
    assert all(field in problem for field, problem in zip(fields, problems, strict=True))


def test_missing_peft_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r'peft is required.*pip install "gidd\[hf\]"'):
        add_lora(dit(), RANK4)
