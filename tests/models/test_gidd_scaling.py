"""The authors' 3B and 10B models: their numbers, their types, and the memory that they need.

tests/golden/foreign/gidd_scaling holds a toy checkpoint with outputs of the authors' own class.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.cases import few

from gidd import models
from gidd.cli import main
from gidd.diffusion.elbo import elbo_terms
from gidd.diffusion.process import posterior
from gidd.diffusion.weighting import TightWeighting
from gidd.errors import ConfigError
from gidd.models.backbones import GiddScalingConfig, scaled
from gidd.models.backbones.layers import rotation
from gidd.models.importers.checkpoint import ForeignCheckpoint, Weights
from gidd.pipeline.precision import in_precision
from gidd.planning.counters import MemoryTracker

GOLDEN = Path(__file__).parents[1] / "golden" / "foreign"
TOY = GOLDEN / "gidd_scaling"
PUBLISHED = json.loads((TOY / "published.json").read_text())
CPU = torch.device("cpu")
SIZES = {"vocab_size": 40, "max_length": 600, "width": 32, "num_layers": 2, "num_heads": 4}


def arrays(project: str = "gidd_scaling") -> dict[str, torch.Tensor]:
    with np.load(GOLDEN / project / "io.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


@pytest.fixture
def toy():
    """The toy in float32, as a CPU computes with it."""
    return models.load(TOY).denoiser.float().requires_grad_(False)


# ------------------------------------------------------------------------------- the same numbers


def test_hidden_states_of_every_layer_are_those_of_the_authors_code(toy):
    golden, outputs = arrays(), {}
    for i, layer in enumerate(toy.backbone.layers):
        layer.register_forward_hook(lambda _, __, x, i=i: outputs.update({f"block{i}_out": x}))
    hidden = toy.hidden(golden["input_ids"], torch.ones(4))
    outputs["final_norm"] = hidden / toy.backbone.config.head_scale
    assert len(outputs) == 3
    for name, value in outputs.items():
        torch.testing.assert_close(value, golden[name], atol=2e-5, rtol=0)


CONSTANTS = ("residual_scale", "head_scale", "soft_cap", "rotary_base", "norm_eps")


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_constant_has_an_effect_on_the_toy(toy, name):
    config, golden = toy.backbone.config, arrays()
    other = replace(config, **{name: 2 * getattr(config, name)}).build()
    other.load_state_dict(toy.backbone.state_dict())
    with torch.no_grad():
        logits = other(golden["input_ids"], torch.ones(4))
    assert (logits - golden["logits"]).abs().max() > 1e-4


def test_the_first_key_and_value_are_one_more_token(toy):
    """Against torch's attention over one more row, with a cap that has no effect."""
    attention = toy.backbone.layers[0].self_attn
    attention.soft_cap = 1e6
    x, angles = torch.randn(3, 7, 32, generator=torch.manual_seed(0)), rotation(7, 8, CPU)
    q, k, v = (
        part.unflatten(-1, (4, 8)).transpose(1, 2)
        for part in (
            attention.q_norm(attention.q_proj(x)),
            attention.k_norm(attention.k_proj(x)),
            attention.v_proj(x),
        )
    )
    q, k = scaled.rotate(q, angles), scaled.rotate(k, angles)
    k, v = (
        torch.cat([first[:, None].expand(3, -1, -1, -1), rows], dim=2)
        for first, rows in ((attention.k_bias, k), (attention.v_bias, v))
    )
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    expected = attention.o_proj(expected.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, angles, None), expected, atol=1e-5, rtol=0)
    hidden = attention(x, angles, torch.zeros(3, 1, 1, 7, dtype=torch.bool))
    alone = attention.o_proj(attention.v_bias.flatten())  # all tokens are hidden
    torch.testing.assert_close(hidden, alone.expand(3, 7, -1), atol=1e-6, rtol=0)


def test_with_the_mask_of_a_prompt_the_logits_are_theirs(toy, monkeypatch):
    """Their sampler's mask: tokens of a prompt read the prompt, and noisy tokens read all."""
    golden = arrays()
    noisy = golden["prompt_is_noisy"]
    mask = (noisy[:, :, None] >= noisy[:, None, :])[:, None]
    monkeypatch.setattr(scaled, "attention_mask", lambda *_: mask)
    logits = toy.backbone(golden["prompt_input_ids"], torch.ones(4))
    torch.testing.assert_close(logits, golden["prompt_logits"], atol=3e-5, rtol=0)


def test_a_long_text_is_computed_in_parts(monkeypatch):
    torch.manual_seed(0)
    network = GiddScalingConfig(**SIZES).build().requires_grad_(False)
    z, valid = torch.randint(40, (2, 600)), torch.arange(600) < torch.tensor([[600], [301]])
    assert scaled._QUERIES < 300
    in_parts = network.hidden(z, torch.ones(2), valid)
    monkeypatch.setattr(scaled, "_QUERIES", 600)
    at_once = network.hidden(z, torch.ones(2), valid)
    torch.testing.assert_close(in_parts, at_once, atol=1e-6, rtol=0)


@pytest.mark.parametrize("project", ["gidd_scaling", "gidd_scaling_mask"])
def test_reverse_steps_bound_and_loss_weights_are_theirs(project, tmp_path):
    """Their loss weights are the tight ones: x_theta is the distribution given all other tokens."""
    (tmp_path / "config.json").write_text((GOLDEN / project / "config.json").read_text())
    (tmp_path / "model.safetensors").symlink_to(TOY / "model.safetensors")
    golden, schedule = arrays(project), models.load(tmp_path).schedule
    x, z, x_theta = golden["x0"], golden["input_ids"], golden["x_theta_of_step"]
    t, s = torch.sigmoid(-golden["log_snr"]), torch.sigmoid(-golden["log_snr"] - 1.5)
    steps = posterior(schedule, s, t, z, x_theta)
    torch.testing.assert_close(steps, golden["reverse_probs"], atol=1e-9, rtol=0)
    terms = elbo_terms(schedule, t, x, z, x_theta)
    bound = terms.weight * terms.divergence
    torch.testing.assert_close(bound, golden["elbo_per_token"], atol=1e-9, rtol=1e-9)
    weights = TightWeighting(schedule)(t, x, z) / (2 if "mask" in project else 1)
    torch.testing.assert_close(weights, golden["loss_weight"], atol=1e-9, rtol=1e-9)


# -------------------------------------------------------------------------------------- their files


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tensors_are_accepted_and_their_types_are_kept(monkeypatch, tmp_path, name):
    """All names, shapes and types of the published files, on the meta device."""
    published, tensors = PUBLISHED[name], {}
    for tensor, shape, dtype in published["tensors"]:
        for i in range(published["n_layers"] if "layers.0." in tensor else 1):
            value = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
            tensors[tensor.replace("layers.0.", f"layers.{i}.")] = value
    shapes = {tensor: tuple(value.shape) for tensor, value in tensors.items()}
    weights = Weights(tmp_path / "model.safetensors", shapes, lambda: tensors, "0" * 64)
    monkeypatch.setattr(ForeignCheckpoint, "safetensors", lambda _: weights)
    config = published["config"] | {"model_type": "gidd"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = models.load(tmp_path)
    parameters = list(loaded.denoiser.parameters())
    assert sum(p.numel() for p in parameters) == published["n_params"]
    norms = {p.dtype for n, p in loaded.denoiser.named_parameters() if "norm" in n}
    others = {p.dtype for n, p in loaded.denoiser.named_parameters() if "norm" not in n}
    assert (norms, others) == ({torch.float32}, {torch.bfloat16})
    assert loaded.denoiser.vocab.mask_id == 3
    assert loaded.schedule.vocab.size == 131072


def test_types_are_kept_in_our_layout_too(tmp_path):
    loaded = models.load(TOY)
    models.save(tmp_path, loaded.denoiser, loaded.schedule)
    again = models.load(tmp_path)
    for (name, ours), theirs in zip(
        again.denoiser.named_parameters(), loaded.denoiser.parameters(), strict=True
    ):
        assert ours.dtype == theirs.dtype == (torch.float32 if "norm" in name else torch.bfloat16)
        assert torch.equal(ours, theirs)


def test_weights_of_several_types_compute_in_bf16(toy):
    """Matrix products in bf16, norms and softmax in float32."""
    golden, mixed = arrays(), models.load(TOY).denoiser
    network = in_precision(mixed, "bf16", CPU)
    assert {p.dtype for p in mixed.parameters()} == {torch.bfloat16, torch.float32}
    z, t = golden["input_ids"], torch.ones(4)
    with torch.no_grad():
        rough, exact = network.hidden(z, t), toy.hidden(z, t)
    assert rough.dtype == torch.bfloat16
    assert 1e-4 < (rough - exact).norm() / exact.norm() < 0.02


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "1", None])
def test_constants_must_be_positive(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be a number above 0"):
        GiddScalingConfig(**SIZES, **{name: value})


def test_sizes_must_fit():
    with pytest.raises(ConfigError, match="num_layers must be an integer of at least 1, got 0"):
        GiddScalingConfig(**(SIZES | {"num_layers": 0}))
    with pytest.raises(ConfigError, match="width must be an even multiple of num_heads = 3"):
        GiddScalingConfig(**(SIZES | {"num_heads": 3}))


# ------------------------------------------------------------------------------------------- memory

CHILD = """
import sys
from pathlib import Path
import torch
from gidd import models
from gidd.pipeline.precision import in_precision

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

models.load(sys.argv[1])  # imports
before = memory("VmRSS")
loaded = models.load(sys.argv[2])
network = in_precision(loaded.denoiser, "bf16", torch.device("cpu"))
print(memory("VmHWM") - before)
in_precision(loaded.denoiser, "float32", torch.device("cpu"))
print(memory("VmRSS") - before)
"""


def write_checkpoint(folder: Path, width: int, num_layers: int, vocab_size: int) -> int:
    """Write a checkpoint in the layout of the 3B model, a layer per file; return its bytes."""
    published = PUBLISHED["dvruette/gidd-unif-3b"]
    values = torch.randn(1 << 20, generator=torch.manual_seed(0)).bfloat16() / 64
    sizes = {3072: width, 12288: 4 * width, 131072: vocab_size, 24: width // 128}
    shards = [{} for _ in range(num_layers + 1)]
    for name, shape, dtype in published["tensors"]:
        shape = [sizes.get(size, size) for size in shape]
        count = int(np.prod(shape))
        tensor = values.repeat(-(-count // len(values)))[:count].view(shape)
        for i in range(num_layers if "layers.0." in name else 1):
            shard = shards[i + 1 if "layers.0." in name else 0]
            key = name.replace("layers.0.", f"layers.{i}.")
            shard[key] = tensor.to(getattr(torch, dtype))
    weight_map = {}
    for i, shard in enumerate(shards, start=1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file)
        weight_map |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = published["config"] | {"model_type": "gidd", "vocab_size": vocab_size}
    config |= {"hidden_size": width, "intermediate_size": 4 * width}
    config |= {"num_hidden_layers": num_layers, "num_attention_heads": width // 128}
    (folder / "config.json").write_text(json.dumps(config))
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("width", "num_layers", "vocab_size"),
    [
        pytest.param(768, 3, 8192, marks=pytest.mark.slow, id="68 MB"),
        pytest.param(3072, 3, 32768, marks=pytest.mark.long, id="1.1 GB"),
    ],
)
def test_loading_takes_the_memory_of_the_files(tmp_path, width, num_layers, vocab_size):
    """Resident memory grows by the files, which are mapped: nothing is widened or copied.

    In float32, which is twice as wide, nothing else remains: the files are closed.
    """
    size = write_checkpoint(tmp_path, width, num_layers, vocab_size)
    child = [sys.executable, "-c", CHILD, str(TOY), str(tmp_path)]
    done = subprocess.run(child, capture_output=True, text=True, check=True)
    peak, in_float32 = map(int, done.stdout.split())
    noise = 30e6 if size < 1e8 else 0  # of a child process
    assert 0.9 * size < peak < 1.15 * size + noise
    assert 1.8 * size < in_float32 < 2.15 * size + noise


@pytest.mark.slow
@pytest.mark.parametrize("name", few(PUBLISHED, every=3))
def test_a_forward_pass_needs_little_more_than_the_weights(name):
    """2,048 tokens in bf16: the figures of docs/importers.md, in GB."""
    config, sizes = PUBLISHED[name]["config"], ("vocab_size", "num_layers", "num_heads", "width")
    theirs = ("vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size")
    values = {ours: config[name] for ours, name in zip(sizes, theirs, strict=True)}
    with torch.device("meta"), torch.no_grad():
        network = GiddScalingConfig(max_length=2048, **values).build().bfloat16()
        tracker = MemoryTracker(2048)
        tracker.add("parameters", list(network.parameters()))
        with tracker.track("forward"):
            network.hidden(torch.zeros(1, 2048, dtype=torch.long), torch.ones(1))
    held = tracker.phases()["forward"]
    weights, rest = held.pop("parameters"), sum(held.values())
    needed = {"unif-3b": (5.92, 0.25), "mask-3b": (5.69, 0.25), "unif-10b": (19.75, 0.38)}
    expected = needed[name.partition("gidd-")[2]]
    assert (weights / 1e9, rest / 1e9) == pytest.approx(expected, abs=0.01)


@pytest.mark.slow
@pytest.mark.long
def test_a_plan_follows_from_the_name(forked_traces, capsys):
    main([
        "plan", "nano", "--backbone", "scaled", "--backbone.width", "64", "--backbone.num-layers",
        "3", "--backbone.num-heads", "4", "--noise", "uniform", "--weighting", "tight",
        "--vocab-size", "512", "--json",
    ])  # fmt: skip
    plan = json.loads(capsys.readouterr().out)
    with torch.device("meta"):
        network = GiddScalingConfig(
            vocab_size=512, max_length=9, width=64, num_layers=3, num_heads=4
        )
        count = sum(p.numel() for p in network.build().parameters())
    assert plan["num_parameters"] == count
