"""The diffusion transformer: the authors' figures, and what a denoising network must do."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gidd.diffusion.schedules import HybridSchedule
from gidd.errors import ConfigError
from gidd.models import SIZES, DiT, DiTConfig, load, read_training
from gidd.models.backbones.layers import LocalMixing
from gidd.vocab import Vocab

GOLDEN = Path(__file__).parents[1] / "golden"
IO = {name: torch.from_numpy(array) for name, array in np.load(GOLDEN / "dit_tiny_io.npz").items()}
CHECKPOINTS = json.loads((GOLDEN / "checkpoint_tensors.json").read_text())
GPT2 = 50258


def randomised(config: DiTConfig, seed: int = 0) -> DiT:
    """A model without zero weights, so that every part has an effect."""
    torch.manual_seed(seed)
    model = DiT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2 and not parameter.any():
                parameter.normal_(std=0.1)
    return model.eval()


def nano(**changes) -> DiTConfig:
    sizes = dict(vocab_size=11, max_length=16, width=32, num_layers=2, num_heads=4, time_width=16)
    return DiTConfig(**(sizes | changes))


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(11, (3, 16), generator=generator), torch.tensor([0.1, 0.5, 0.9])


# ------------------------------------------------------------------------------- the authors' model


def on_meta(config: DiTConfig) -> DiT:
    with torch.device("meta"):
        return DiT(config)


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("size", "blocks", "total"),
    [
        ("tiny", 28_364_800, 80_061_266),
        ("small", 92_132_352, 169_627_218),
        ("base", 321_183_744, 424_477_010),
    ],
)
def test_parameters_of_the_paper(size, blocks, total):
    """28.4M, 92.1M and 321.2M without embeddings; 169.6M and 424.5M as published."""
    model = on_meta(SIZES[size](GPT2))
    golden = CHECKPOINTS[f"hf_{size}"]
    assert count(model.blocks) == blocks == golden["n_nonemb_blocks"]
    assert count(model) == total == golden["n_params"]


@pytest.mark.parametrize("size", SIZES)
def test_size_has_the_parameters_that_its_name_says(size):
    config = SIZES[size](GPT2)
    model = on_meta(config)
    assert count(model.blocks) == config.num_block_parameters
    named = {"nano": 1e6, "micro": 5e6, "1b": 1e9, "3b": 3e9, "10b": 10e9}
    assert config.num_block_parameters == pytest.approx(
        named.get(size, config.num_block_parameters), rel=0.1
    )


@pytest.mark.perf
def test_a_10b_model_on_meta_is_built_in_seconds():
    started = time.process_time()
    on_meta(SIZES["10b"](GPT2))
    assert time.process_time() - started < 10


def test_golden_logits_of_the_published_layout():
    model = load(GOLDEN / "dit_tiny_hf").denoiser.backbone
    z, t = IO["input_ids"], IO["timesteps"]
    with torch.no_grad():
        inside = {"embed": model.embedding(z)}
        for i, block in enumerate(model.blocks):
            block.register_forward_hook(
                lambda _, __, out, name=f"block{i}_out": inside.update({name: out})
            )
        logits = model(z, t)
    assert set(inside) == {"embed", "block0_out", "block1_out"}
    for name, actual in inside.items():
        torch.testing.assert_close(actual, IO[name], rtol=0, atol=5e-6)
    torch.testing.assert_close(logits, IO["logits"], rtol=0, atol=5e-6)
    torch.testing.assert_close(logits.double(), IO["logits_f64"], rtol=0, atol=1e-5)


def test_golden_logits_of_the_training_layout(tmp_path):
    """The same weights with the vocabulary rounded up from 258 to 384 rows."""
    tensors = load_file(GOLDEN / "dit_tiny_hf" / "model.safetensors")
    for name in ("vocab_embed.embedding", "output_layer.linear.weight", "output_layer.linear.bias"):
        extra = IO[
            "plain_extra_" + name.removeprefix("vocab_embed.").split("layer.")[-1].replace(".", "_")
        ]
        tensors[name] = torch.cat([tensors[name], extra])
    tensors["logit_bias"] = torch.zeros(1, 1, 1)
    listed = {entry["name"]: entry["shape"] for entry in CHECKPOINTS["tiny_random_plain"]}
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == listed
    save_file(tensors, tmp_path / "ema.safetensors")

    schedule = HybridSchedule(Vocab(258, mask_id=257), p_uniform=0.2)
    pretrained = read_training(tmp_path / "ema.safetensors", schedule)
    backbone = pretrained.denoiser.backbone
    with torch.no_grad():
        logits = backbone(IO["input_ids"], IO["timesteps"])
        x_theta = pretrained.denoiser(IO["input_ids"], IO["timesteps"])
    torch.testing.assert_close(logits[..., :258], IO["logits"], rtol=0, atol=5e-6)
    torch.testing.assert_close(logits[..., 258:], IO["plain_logits_extra"], rtol=0, atol=5e-6)
    expected = IO["logits_f64"][..., :257].softmax(-1)
    torch.testing.assert_close(x_theta[..., :257].double(), expected, rtol=1e-4, atol=1e-7)
    assert x_theta.shape[-1] == 258


# ---------------------------------------------------------------------------------------- behaviour


def test_logits_of_a_new_model_are_zero(inputs):
    """adaLN-zero: the logits are exactly 0, and the head alone has a gradient at first."""
    model = DiT(nano())
    logits = model(*inputs)
    assert (logits == 0).all()
    logits.logsumexp(-1).sum().backward()
    assert model.head.bias.grad.abs().max() > 0


@pytest.mark.parametrize("length", [1, 7, 16])
def test_any_length_up_to_the_longest(inputs, length):
    z, t = inputs
    model = randomised(nano())
    assert model.hidden(z[:, :length], t).shape == (3, length, 32)


def test_longer_sequences_are_refused():
    with pytest.raises(ConfigError, match=r"model.max_length = 16 .*got 17"):
        DiT(nano()).hidden(torch.zeros(1, 17, dtype=torch.long), torch.tensor([0.5]))


def test_sequences_of_a_batch_are_independent(inputs):
    z, t = inputs
    model = randomised(nano())
    together = model(z, t)
    for i in range(3):
        torch.testing.assert_close(model(z[i : i + 1], t[i : i + 1])[0], together[i])


def test_every_position_depends_on_every_other_and_on_the_time(inputs):
    """Attention is bidirectional: the gradient of any output reaches any input position."""
    z, t = inputs
    model = randomised(nano())
    embedded = []
    model.embedding.register_forward_hook(lambda _, __, out: embedded.append(out))
    out = model(z[:1], t[:1])
    for position in (0, 7, 15):
        (gradient,) = torch.autograd.grad(out[0, position].sum(), embedded[0], retain_graph=True)
        assert (gradient[0].abs().sum(-1) > 0).all()
    assert (model(z[:1], t[:1]) - model(z[:1], t[1:2])).abs().max() > 1e-3


def test_positions_matter_and_only_by_their_distance(inputs):
    """Rotary embedding: a repeated token is the same everywhere, an order is not."""
    z, t = inputs
    model = randomised(nano())
    same = model(torch.full((1, 16), 3), t[:1])
    torch.testing.assert_close(same[0, 0].expand(16, -1), same[0])
    reversed_order = model(z[:1].flip(1), t[:1]).flip(1)
    assert (reversed_order - model(z[:1], t[:1])).abs().max() > 1e-3


def gradients(model: DiT, z, t) -> list[torch.Tensor]:
    model.train()
    torch.manual_seed(5)
    loss = model(z, t).logsumexp(-1).square().mean()
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointed_activations_give_the_same_gradients(inputs, dropout):
    plain = randomised(nano(dropout=dropout))
    checkpointed = randomised(nano(dropout=dropout, checkpoint_activations=True))
    for a, b in zip(gradients(plain, *inputs), gradients(checkpointed, *inputs), strict=True):
        assert torch.equal(a, b)
    assert all(gradient.isfinite().all() for gradient in gradients(plain, *inputs))


def test_dropout_is_for_training_only(inputs):
    model = randomised(nano(dropout=0.5))
    assert torch.equal(model(*inputs), model(*inputs))
    assert torch.equal(model(*inputs), randomised(nano())(*inputs))
    model.train()
    assert not torch.equal(model(*inputs), model(*inputs))


def test_a_model_can_be_built_on_meta(inputs):
    """reset_parameters after to_empty overwrites all uninitialised memory."""
    model = on_meta(nano()).to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(torch.nan)
    torch.manual_seed(3)
    model.reset_parameters()
    other = DiT(nano())
    torch.manual_seed(3)
    other.reset_parameters()
    for name, parameter in model.state_dict().items():
        assert parameter.isfinite().all()
        assert torch.equal(parameter, other.state_dict()[name])
    assert (model(*inputs) == 0).all()
    assert model.hidden(*inputs).isfinite().all()


def test_state_dict_holds_parameters_only():
    model = DiT(nano())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_half_precision(inputs):
    """bf16 weights, and bf16 autocast, agree with float32 as well as bf16 can."""
    model = randomised(nano())
    exact = model(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(*inputs)
    assert (mixed.float() - exact).abs().max() < 0.05
    assert (model.bfloat16()(*inputs).float() - exact).abs().max() < 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compiles_to_one_graph(inputs, backend):
    model = randomised(nano())
    with torch.no_grad():
        expected = model(*inputs)
        compiled = torch.compile(model, fullgraph=True, backend=backend)(*inputs)
    torch.testing.assert_close(compiled, expected, rtol=0, atol=1e-5)


def test_all_problems_are_reported_at_once():
    with pytest.raises(ConfigError) as error:
        nano(width=30, dropout=1.5)
    assert "width must be an even multiple of num_heads = 4, got 30" in str(error.value)
    assert "dropout must be in [0, 1), got 1.5" in str(error.value)
    with pytest.raises(ConfigError) as error:
        nano(num_layers=0, width=-4, num_heads=2.0)
    for problem in ("num_layers must be an integer of at least 1, got 0", "-4", "2.0"):
        assert problem in str(error.value)


def test_local_mixing_adds_a_weighted_sum_of_neighbours():
    layer = LocalMixing(3, 5)
    torch.nn.init.normal_(layer.weight)
    x = torch.randn(2, 7, 3)
    padded = torch.nn.functional.pad(x, (0, 0, 2, 2))
    expected = x + sum(padded[:, k : k + 7] * layer.weight[k] for k in range(5))
    torch.testing.assert_close(layer(x), expected)


def test_local_mixing_is_an_option_that_changes_nothing_else():
    sizes = dict(vocab_size=11, max_length=6, width=16, num_layers=2, num_heads=2, time_width=8)
    plain, mixed = DiTConfig(**sizes), DiTConfig(**sizes, mixing_width=7)
    assert count(on_meta(mixed).blocks) == mixed.num_block_parameters
    assert mixed.num_block_parameters - plain.num_block_parameters == 2 * 7 * 16
    names = set(on_meta(mixed).state_dict()) - set(on_meta(plain).state_dict())
    assert names == {"blocks.0.mixing.weight", "blocks.1.mixing.weight"}
    torch.manual_seed(0)
    model = mixed.build()
    assert 0 < float(model.blocks[0].mixing.weight.detach().abs().max()) <= 0.2
    with pytest.raises(ConfigError, match=r"mixing_width must be 0 or an odd number, got 4"):
        DiTConfig(**sizes, mixing_width=4)
