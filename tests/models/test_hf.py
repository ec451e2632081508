"""Networks of transformers as backbones: bidirectional, trained, and read from their own files."""

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from support.cases import few
from support.small_networks import MARKOV_VOCAB, markov_losses
from torch import nn

from gidd.errors import CheckpointError, ConfigError
from gidd.models.backbones.bidirectional import BidirectionalConfig, BidirectionalTransformer
from gidd.models.backbones.hf_config import CAUSAL, FAMILIES as CONFIGS, BidirectionalLMConfig
from gidd.models.denoiser import Denoiser
from gidd.models.networks import Initializer, network_from_tensors
from gidd.models.weights import write_safetensors
from gidd.vocab import Vocab

transformers = pytest.importorskip("transformers", reason="needs the extra `hf`")

hf = pytest.importorskip("gidd.models.importers.hf")

FAMILIES = tuple(CONFIGS)
ROWS, LENGTH = 13, 12


def config_of(family="llama", tied=False, hf=None, **changes):
    # weights large enough that every layer matters in the comparisons
    fields = {"initializer_range": 0.3, "intermediate_size": 48, "tie_word_embeddings": tied}
    fields |= {"num_key_value_heads": 2} if family in CAUSAL else {}
    sizes = {"vocab_size": ROWS, "max_length": LENGTH, "width": 32, "num_layers": 4, "num_heads": 4}
    return CONFIGS[family](family=family, hf=json.dumps(fields | (hf or {})), **sizes | changes)


def network_of(family="llama", seed=0, **changes):
    network = config_of(family, **changes).build()
    network.reset_parameters(Initializer(seed))
    return network.eval()


def tokens(num=2, length=LENGTH, seed=0):
    return torch.randint(ROWS, (num, length), generator=torch.Generator().manual_seed(seed))


T = torch.tensor([0.2, 0.9])


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_network_has_the_interface_of_a_backbone(family, tied):
    network = network_of(family, tied=tied)
    z = tokens()
    with torch.no_grad():
        hidden, logits = network.hidden(z, T), network(z, T)
        torch.testing.assert_close(network.head(hidden), logits)
        rows = Denoiser(network, Vocab(ROWS - 1, mask_id=3))(z, T)
    assert hidden.shape == (2, LENGTH, 32) and logits.shape == (2, LENGTH, ROWS)
    assert isinstance(network.head, nn.Linear) and network.head.out_features == ROWS
    assert isinstance(network.blocks, nn.ModuleList) and len(network.blocks) == 4
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, LENGTH))
    assert not network.uses_time
    assert network.config == type(network.config)(**json.loads(json.dumps(asdict(network.config))))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_position_sees_every_token(family):
    network, z = network_of(family), tokens(1)
    with torch.no_grad():
        before = network(z, T[:1])
        for changed in (0, LENGTH - 1):
            other = z.clone()
            other[0, changed] = (z[0, changed] + 1) % ROWS
            difference = (network(other, T[:1]) - before).abs().amax(-1)[0]
            assert difference.min() > 1e-6, changed


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("start_id", [None, 3])
def test_causal_network_is_our_bidirectional_transformer(family, tied, start_id):
    network, z = network_of(family, tied=tied, start_id=start_id), tokens()
    ours = BidirectionalTransformer(
        BidirectionalConfig(
            vocab_size=ROWS,
            max_length=LENGTH,
            width=32,
            mlp_width=48,
            num_layers=4,
            num_heads=4,
            num_kv_heads=2,
            rotary_base=10_000.0,
            norm_eps=1e-6,
            qkv_bias=family == "qwen2",
            tied_head=tied,
            start_id=start_id,
        )
    )
    weights = {name.removeprefix("body."): p for name, p in network.state_dict().items()}
    ours.load_state_dict({"head.weight": network.head.weight, **weights})
    with torch.no_grad():
        torch.testing.assert_close(network(z, T), ours(z, T), rtol=0, atol=1e-5)
        valid = torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]])
        padded = network.hidden(z, T, valid), ours.hidden(z, T, valid)
        torch.testing.assert_close(*padded, rtol=0, atol=1e-5)
    assert ours.accepts_segments == (start_id is None)  # a shift crosses documents
    for name, message in ((ROWS, "below vocab_size"), (3, "exclude each other")):
        with pytest.raises(ConfigError, match=message):
            replace(ours.config, start_id=name, shifted_mask_id=5)


@pytest.mark.parametrize("family", FAMILIES)
def test_time_embedding_starts_without_effect(family):
    plain, timed = network_of(family), network_of(family, time_embedding=True)
    added = {n for n in timed.state_dict() if n.startswith(("time.", "time_projection."))}
    assert plain.state_dict().keys() == timed.state_dict().keys() - added
    timed.load_state_dict(plain.state_dict(), strict=False)
    z = tokens()
    assert timed.uses_time
    with torch.no_grad():
        assert torch.equal(plain(z, T), timed(z, T))
    timed(z, T).square().sum().backward()
    assert timed.time_projection.weight.grad.abs().max() > 0
    with torch.no_grad():
        Initializer(3).normal(timed.time_projection.weight, 1.0)
        difference = (timed(z, T) - timed(z, 1 - T)).abs().amax(-1)
    assert difference.min() > 1e-4  # at every position


@pytest.mark.slow
@pytest.mark.parametrize("family", few(FAMILIES, every=3))
def test_training_lowers_the_loss(family):
    config = CONFIGS[family](
        vocab_size=MARKOV_VOCAB.size,
        max_length=16,
        family=family,
        width=32,
        num_layers=2,
        num_heads=2,
        time_embedding=True,
    )
    network = config.build()
    network.reset_parameters(Initializer(0))
    losses = markov_losses(network, steps=50)
    assert losses[-10:].mean() < 0.85 * losses[:10].mean()
    assert network.time_projection.weight.abs().max() > 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_network_of_the_meta_device_is_initialised_completely(family, tied):
    """Parameters and buffers hold anything after `to_empty`."""
    config = config_of(family, tied=tied, time_embedding=True)
    with torch.device("meta"):
        network = config.build()
    network.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.fill_(torch.nan if tensor.is_floating_point() else 7)
    network.reset_parameters(Initializer(5))
    network.eval()
    same = network_of(family, seed=5, tied=tied, time_embedding=True)
    other = network_of(family, seed=6, tied=tied, time_embedding=True)
    z = tokens()
    with torch.no_grad():
        assert torch.equal(network(z, T), same(z, T))
        assert not torch.equal(network(z, T), other(z, T))
    for (name, left), (_, right) in zip(network.named_buffers(), same.named_buffers(), strict=True):
        assert torch.equal(left, right), name


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_tied_head_stays_tied_and_is_saved_once(family, tmp_path):
    network = network_of(family, tied=True)
    write_safetensors(tmp_path / "model.safetensors", dict(network.named_parameters()))
    tensors = load_file(tmp_path / "model.safetensors")
    assert "head.weight" not in tensors
    loaded = network_from_tensors(network.config, tensors).to(torch.float64)
    assert loaded.head.weight is loaded.embedding.weight
    assert loaded.head.weight.dtype == torch.float64


@pytest.mark.parametrize("family", FAMILIES)
def test_constants_survive_any_conversion(family):
    """Rotary frequencies in bf16 would rotate tokens by other angles."""
    network = network_of(family)
    expected = {name: buffer.clone() for name, buffer in network.named_buffers()}
    with torch.device("meta"):
        loaded = network.config.build()
    loaded.load_state_dict(network.state_dict(), assign=True)
    for converted in (network.to(torch.bfloat16), network.float(), loaded.float()):
        found = dict(converted.named_buffers())
        assert found.keys() == expected.keys()
        for name, buffer in found.items():
            assert buffer.dtype == expected[name].dtype and torch.equal(buffer, expected[name])


def test_recomputed_activations_change_no_gradient(capfd):
    z = tokens()
    for family in ("llama", "bert", "modernbert"):
        kept = network_of(family).train()
        again = network_of(family, checkpoint_activations=True).train()
        calls = []
        layer = next(again.blocks[0].children())  # hooks of a block itself may run only once
        layer.register_forward_pre_hook(lambda *_, calls=calls: calls.append("forward"))
        for network in (kept, again):
            network(z, T).square().sum().backward()
        assert len(calls) == 2  # in the forward pass, and again in the backward pass
        for (name, one), two in zip(kept.named_parameters(), again.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, msg=name)
    assert capfd.readouterr() == ("", "")  # transformers has nothing to warn about


def test_sequence_longer_than_the_context_is_refused():
    with pytest.raises(ConfigError, match=r"max_length = 12.*got 13"):
        network_of()(tokens(length=LENGTH + 1), T)


def test_problems_of_a_config_are_reported():
    with pytest.raises(ConfigError) as caught:
        BidirectionalLMConfig(vocab_size=9, max_length=0, family="gpt", width=0)
    for problem in ("family", "'gpt'", "qwen3", "width", "max_length"):
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hf": {"auto_map": {}}}, r"hf has \['auto_map'\], which cannot be set.*rms_norm_eps"),
        ({"hf": {"num_labels": 10**9}}, r"'num_labels'"),
        ({"hf": {"hidden_size": 64}}, r"'hidden_size'"),
        ({"hf": {"head_dim": 7}}, r"head_dim of hf, must be even"),
        ({"hf": {"num_key_value_heads": 3}}, r"multiple of num_key_value_heads"),
        ({"hf": {"num_key_value_heads": "x"}}, r"hf = .*TypeError"),
        ({"hf": {"max_position_embeddings": 8}}, r"max_position_embeddings = 8.*got 12"),
        ({"hf": {"hidden_act": "no-such-activation"}}, r"hf.*no-such-activation"),
        ({"width": 30}, r"30 / 4"),
    ],
)
def test_fields_that_a_network_cannot_have_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        config_of(**changes).build()
    for text in ("[1]", "{", "1"):
        with pytest.raises(ConfigError, match=r"hf must be a JSON object"):
            replace(config_of(), hf=text).build()


def test_config_needs_neither_torch_nor_transformers():
    code = (
        "import sys; from gidd.models.backbones.hf_config import BidirectionalLMConfig; "
        "BidirectionalLMConfig(vocab_size=9, max_length=4); "
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_transformers_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r'pip install "gidd\[hf\]"'):
        config_of().build()


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
SAVED = {
    "llama": {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3},
    "mistral": {"rms_norm_eps": 1e-3, "sliding_window": 8},
    "qwen2": {"tie_word_embeddings": True, "hidden_act": "gelu"},
    "qwen3": {"head_dim": 6, "attention_bias": True},
    "bert": {"type_vocab_size": 3, "layer_norm_eps": 1e-3, "pad_token_id": 5},
    "modernbert": {"local_attention": 4, "norm_bias": True, "classifier_activation": "silu"},
}
"""Fields in which the saved networks differ from the defaults of transformers."""


def saved_network(family, folder, max_shard_size="5GB", **changes):
    """Save a network with transformers, as a user has it."""
    fields = {"vocab_size": ROWS, "hidden_size": 32, "intermediate_size": 48}
    fields |= {"num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 16}
    fields |= {"initializer_range": 0.3, "pad_token_id": None}
    if family in CAUSAL:
        fields["num_key_value_heads"] = 2
    config = transformers.AutoConfig.for_model(family, **fields | SAVED[family] | changes)
    is_causal = family in CAUSAL
    kind = transformers.AutoModelForCausalLM if is_causal else transformers.AutoModelForMaskedLM
    torch.manual_seed(1)
    model = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def loaded_network(folder, **changes):
    config, tensors, digest = hf.read_hf(folder)
    assert len(digest) == 64
    return network_from_tensors(replace(config, **changes), tensors).eval()


def their_logits(model, z):
    no_mask = torch.zeros(1, 1, z.shape[1], z.shape[1])
    is_causal = model.config.model_type in CAUSAL
    with torch.no_grad():
        return model(input_ids=z, attention_mask=no_mask if is_causal else None).logits


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_network_saved_by_transformers_gives_the_same_logits(family, tmp_path):
    model = saved_network(family, tmp_path)
    network, z = loaded_network(tmp_path), tokens(length=8)
    with torch.no_grad():
        torch.testing.assert_close(network(z, T), their_logits(model, z), rtol=0, atol=1e-5)
    assert network.config.max_length == (8 if family == "mistral" else 16)  # its window
    shorter = loaded_network(tmp_path, max_length=4)
    with torch.no_grad():
        z = tokens(length=4)
        torch.testing.assert_close(shorter(z, T), their_logits(model, z), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", CAUSAL)
def test_shifted_network_that_reads_nothing_later_is_the_causal_model(family, tmp_path):
    model, z = saved_network(family, tmp_path), tokens(length=8)
    network = loaded_network(tmp_path, start_id=3).train()
    network.visible_future = 0.0
    started = F.pad(z, (1, 0), value=3)
    valid = torch.arange(8) < torch.tensor([[8], [5]])
    with torch.no_grad():
        causal, closed = model(input_ids=started).logits, network(z, T)
        torch.testing.assert_close(closed, causal[:, :-1], rtol=0, atol=1e-5)
        opened = network.eval()(z, T)  # evaluations read all
        torch.testing.assert_close(opened, their_logits(model, started)[:, :-1], rtol=0, atol=1e-5)
        padded, shorter = network.hidden(z, T, valid), network.hidden(z[1:, :5], T[1:])
    torch.testing.assert_close(padded[1:, :5], shorter, rtol=0, atol=1e-5)


def test_visible_future_is_how_far_a_layer_reads(tmp_path):
    saved_network("llama", tmp_path, num_hidden_layers=1)
    network, z = loaded_network(tmp_path).train(), tokens(num=1, length=8)
    network.visible_future = 0.25  # 2 of 8 tokens
    with torch.no_grad():
        before = network(z, T[:1])
        z[0, 5] = (z[0, 5] + 1) % ROWS
        changed = (network(z, T[:1]) != before).any(-1)[0]
    assert changed.tolist() == [False, False, False, True, True, True, True, True]


@pytest.mark.parametrize("family", FAMILIES)
def test_tied_and_untied_heads_are_read(family, tmp_path):
    for tied in (False, True):
        folder = tmp_path / str(tied)
        model = saved_network(family, folder, tie_word_embeddings=tied)
        network, z = loaded_network(folder), tokens(length=8)
        assert (network.head.weight is network.embedding.weight) == tied
        with torch.no_grad():
            torch.testing.assert_close(network(z, T), their_logits(model, z), rtol=0, atol=1e-5)


def test_several_files_are_read(tmp_path):
    model = saved_network("llama", tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    z = tokens()
    with torch.no_grad():
        logits = loaded_network(tmp_path)(z, T)
    torch.testing.assert_close(logits, their_logits(model, z), rtol=0, atol=1e-5)


def test_old_names_and_unused_tensors_of_bert_are_read(tmp_path):
    model, z = saved_network("bert", tmp_path), tokens()
    weights = load_file(tmp_path / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for now, before in old.items():
        weights = {name.replace(now, before): tensor for name, tensor in weights.items()}
    weights |= {"bert.pooler.dense.weight": torch.ones(32, 32)}
    weights |= {"cls.seq_relationship.bias": torch.ones(2)}
    save_file(weights, tmp_path / "model.safetensors")
    with torch.no_grad():
        logits = loaded_network(tmp_path)(z, T)
    torch.testing.assert_close(logits, their_logits(model, z), rtol=0, atol=1e-5)


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_fields_without_a_meaning_for_the_network_are_ignored(tmp_path):
    model, z = saved_network("llama", tmp_path), tokens()
    code = {"auto_map": {"AutoModelForCausalLM": "owner/name--module.Class"}}
    labels = {"num_labels": 10**9, "id2label": {"0": "zero"}}
    change_config(tmp_path, **code, **labels, attn_implementation="owner/kernel", unknown=[1])
    with torch.no_grad():
        logits = loaded_network(tmp_path)(z, T)
    torch.testing.assert_close(logits, their_logits(model, z), rtol=0, atol=1e-5)


def test_fields_of_older_versions_are_read(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    theta = {"rope_type": "default", "rope_theta": 500.0}
    for family in ("llama", "modernbert"):
        per_layer = {"full_attention": theta, "sliding_attention": theta}
        rope = {"rope_parameters": theta if family == "llama" else per_layer}
        for folder in (old, new):
            saved_network(family, folder, **rope)
        fields = json.loads((old / "config.json").read_text())
        del fields["rope_parameters"]
        names = ("rope_theta",) if family == "llama" else ("global_rope_theta", "local_rope_theta")
        fields |= dict.fromkeys(names, 500.0)
        (old / "config.json").write_text(json.dumps(fields))
        assert hf.read_hf(old)[0] == hf.read_hf(new)[0]


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"model_type": "gpt2"}, r"model_type must be 'llama'.*'gpt2'"),
        ("llama", {"num_hidden_layers": 10**9}, r"num_hidden_layers must be at most \d+"),
        ("llama", {"num_hidden_layers": 3}, r"layers.3.*not part of this model"),
        ("llama", {"vocab_size": 14}, r"embed_tokens.*must have shape \[14, 32\]"),
        ("llama", {"vocab_size": None}, r"vocab_size must be an integer"),
        ("llama", {"hidden_size": 10**12}, r"config.json.*width must be an integer"),
        ("llama", {"intermediate_size": 10**12}, r"must have shape \[1000000000000, 32\]"),
        ("llama", {"num_key_value_heads": 10**30}, r"config.json"),
        ("llama", {"hidden_act": "no-such"}, r"config.json.*no-such"),
        ("llama", {"max_position_embeddings": 10**8}, r"GIDD_MAX_CONTEXT_TOKENS"),
        ("llama", {"rope_parameters": {"rope_type": "no-such"}}, r"config.json"),
        ("bert", {"is_decoder": True}, r"is_decoder must be False"),
        ("bert", {"type_vocab_size": 10**12}, r"token_type.*must have shape \[1000000000000, 32\]"),
        ("bert", {"position_embedding_type": "relative_key"}, r"position_embedding_type"),
    ],
)
def test_network_that_would_not_be_reproduced_is_refused(family, changes, message, tmp_path):
    saved_network(family, tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=message):
        hf.read_hf(tmp_path)


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_a_window_limits_the_context(family, tmp_path):
    window = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 2}
    scaled = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
    changes = window if family == "qwen2" else {"sliding_window": 4, "rope_parameters": scaled}
    model = saved_network(family, tmp_path, **changes)
    network, z = loaded_network(tmp_path), tokens(length=4)
    assert network.config.max_length == 4
    with torch.no_grad():
        torch.testing.assert_close(network(z, T), their_logits(model, z), rtol=0, atol=1e-5)


def test_pickles_are_not_read(tmp_path):
    model = saved_network("llama", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "model.ckpt")
    with pytest.raises(CheckpointError, match=r"model.ckpt in the same folder is a pickle"):
        hf.read_hf(tmp_path)
