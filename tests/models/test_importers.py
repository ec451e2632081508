"""Checkpoints of other projects: the same numbers as their code, used with the noise of training.

The toy checkpoints in tests/golden/foreign hold outputs of each project's own network class.
"""

import json
import math
import pickle
import shutil
import string
import zipfile
from collections import OrderedDict
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import gidd
from gidd import models
from gidd.data import tokenizers
from gidd.diffusion.process import posterior
from gidd.diffusion.schedules import (
    HybridSchedule,
    MaskedSchedule,
    MixtureSchedule,
    UniformSchedule,
)
from gidd.errors import CheckpointError, ConfigError
from gidd.models import DiT, DiTConfig
from gidd.models.importers.checkpoint import ForeignCheckpoint, Weights
from gidd.vocab import Vocab

GOLDEN = Path(__file__).parents[1] / "golden" / "foreign"
PUBLISHED = json.loads((GOLDEN / "checkpoint_tensors.json").read_text())
EPS = 1e-3
"""Their alpha is 1 - (1 - EPS) t: our time of the same noise is (1 - EPS) t."""

MAX_SIGMA = -math.log(EPS)


def arrays(project: str) -> dict[str, torch.Tensor]:
    with np.load(GOLDEN / project / "io.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def checkpoint_folder(project: str, target: Path) -> Path:
    """A folder as a user has it; XDLM and SCDD have the weights of the MDLM toy."""
    folder = shutil.copytree(GOLDEN / project, target / project, dirs_exist_ok=True)
    if not (folder / "model.safetensors").exists():
        same = "gidd_scaling" if project == "gidd_scaling_mask" else "mdlm"
        shutil.copy(GOLDEN / same / "model.safetensors", folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """All toy checkpoints, not to be changed."""
    target = tmp_path_factory.mktemp("foreign")
    for project in PROJECTS:
        checkpoint_folder(project, target)
    return target


PROJECTS = {
    "mdlm": (Vocab(65, mask_id=64), MaskedSchedule),
    "sedd_absorb": (Vocab(65, mask_id=64), MaskedSchedule),
    "duo": (Vocab(65), UniformSchedule),
    "xdlm": (Vocab(65, mask_id=64), MixtureSchedule),
    "scdd": (Vocab(65, mask_id=64), HybridSchedule),
    "llada": (Vocab(72, mask_id=66), MaskedSchedule),
    "llada_gqa_tied": (Vocab(72, mask_id=66), MaskedSchedule),
    "dream": (Vocab(72, mask_id=67), MaskedSchedule),
    "gidd_scaling": (Vocab(64, mask_id=3), UniformSchedule),
    "gidd_scaling_mask": (Vocab(64, mask_id=3), MaskedSchedule),
}
LOGITS = {"mdlm": "logits_sigma0", "sedd_absorb": "head_logits", "dream": "logits_shifted"}


def predict(loaded: models.Pretrained, project: str, z: str = "input_ids"):
    """Logits and x_theta, at the time of the same noise level as theirs."""
    golden = arrays(project)
    # float64: close to t = 1, sigma = -log(1 - t) amplifies the rounding of t
    t = -torch.expm1(-golden.get("sigma", torch.ones(4)).double())
    with torch.no_grad():
        loaded.denoiser.float()  # files can be in bf16, outputs of the projects are in float32
        logits = loaded.denoiser.backbone(golden[z], t)
        hidden = loaded.denoiser.backbone.hidden(golden[z], t)
        return golden, logits, loaded.denoiser.distribution(hidden)


# ------------------------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("project", PROJECTS)
def test_logits_are_those_of_the_projects_own_code(folders, project):
    loaded = models.load(folders / project)
    golden, logits, _ = predict(loaded, project)
    rows = golden.get("sigma", torch.ones(4)) < MAX_SIGMA  # rounded, theirs can be larger
    assert rows.sum() >= 3
    expected = golden[LOGITS.get(project, "logits")]
    atol = 2e-5 if project.startswith("gidd_scaling") else 5e-6  # logits are multiplied by 16
    torch.testing.assert_close(logits[rows], expected[rows], atol=atol, rtol=0)
    vocab, schedule = PROJECTS[project]
    assert loaded.denoiser.vocab == vocab == loaded.schedule.vocab
    assert type(loaded.schedule) is schedule


def expected_x_theta(project: str, golden: dict[str, torch.Tensor]) -> torch.Tensor:
    if project in ("mdlm", "duo", "scdd"):
        names = {"mdlm": "subs_log_probs", "duo": "log_x_theta", "scdd": "log_x_theta"}
        return golden[names[project]].exp()
    names = {"sedd_absorb": "x_theta_at_masks", "xdlm": "x_theta"}
    return golden[names.get(project, "x_theta_without_mask")]


@pytest.mark.parametrize("project", PROJECTS)
def test_x_theta_is_theirs(folders, project):
    """At masks for MDLM, which copies visible tokens, and SEDD; everywhere for the others."""
    golden, _, x_theta = predict(models.load(folders / project), project)
    everywhere = torch.ones_like(golden["input_ids"], dtype=torch.bool)
    masked = golden["input_ids"] == golden.get("mask_id", -1)
    where = masked if project in ("mdlm", "sedd_absorb") else everywhere
    assert where.any()
    expected = expected_x_theta(project, golden)
    torch.testing.assert_close(x_theta[where], expected[where], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("project", "name"), [("duo", "reverse_probs_t_to_s"), ("xdlm", "reverse_probs_k0.1")]
)
def test_a_reverse_step_with_our_schedule_is_theirs(folders, project, name):
    loaded = models.load(folders / project)
    golden = arrays(project)
    x_theta = expected_x_theta(project, golden).double()
    s, t = ((1 - EPS) * golden[time].double() for time in ("s", "t"))
    ours = posterior(loaded.schedule, s, t, golden["input_ids"], x_theta)
    torch.testing.assert_close(ours, golden[name], atol=1e-5, rtol=0)


def test_the_marginals_of_scdd_are_those_of_the_hybrid_schedule(folders):
    golden, schedule = arrays("scdd"), models.load(folders / "scdd").schedule
    assert (schedule.p_uniform, schedule.gamma) == (0.1, 1)
    alpha = schedule.alpha(golden["schedule_t"])
    torch.testing.assert_close(alpha, golden["alpha_bar_r01_g1"], atol=1e-7, rtol=0)


def edit(folder: Path, **changes) -> Path:
    config = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        *parents, last = name.split("__")
        inner = config
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_mask_in_the_middle_of_the_vocabulary(tmp_path):
    golden = arrays("mdlm")
    mask_id = int(golden["midmask_mask_id"])
    loaded = models.load(edit(checkpoint_folder("mdlm", tmp_path), mask_token_id=mask_id))
    _, logits, x_theta = predict(loaded, "mdlm", "midmask_input_ids")
    torch.testing.assert_close(logits, golden["midmask_logits_sigma0"], atol=5e-6, rtol=0)
    masked = golden["midmask_input_ids"] == mask_id
    expected = golden["midmask_subs_log_probs"].exp()
    torch.testing.assert_close(x_theta[masked], expected[masked], atol=1e-5, rtol=0)


def test_mdlm_with_time_conditioning_gets_sigma(tmp_path):
    loaded = models.load(edit(checkpoint_folder("mdlm", tmp_path), time_conditioning=True))
    golden, logits, _ = predict(loaded, "mdlm")
    rows = golden["sigma"] < MAX_SIGMA
    torch.testing.assert_close(logits[rows], golden["logits_sigma"][rows], atol=5e-6, rtol=0)


@pytest.mark.parametrize(
    ("project", "name"),
    [("mdlm", "logits_sigma"), ("duo", "logits"), ("sedd_absorb", "head_logits")],
)
def test_a_dit_given_sigma_for_the_time_is_their_network(folders, project, name):
    """At all noise levels, without the map from t to sigma."""
    golden, dit = arrays(project), models.load(folders / project).denoiser.backbone
    sizes = {field.name: getattr(dit.config, field.name) for field in fields(DiTConfig)}
    plain = DiT(DiTConfig(**sizes))
    plain.load_state_dict(dit.state_dict())
    with torch.no_grad():
        logits = plain(golden["input_ids"], golden["sigma"])
    torch.testing.assert_close(logits, golden[name], atol=5e-6, rtol=0)


@pytest.mark.parametrize("project", ["mdlm", "duo"])
def test_the_configuration_of_a_training_run_is_read_too(folders, tmp_path, project):
    folder = checkpoint_folder(project, tmp_path)
    (folder / "hydra_config.json").replace(folder / "config.json")
    for ours, theirs in zip(
        predict(models.load(folder), project),
        predict(models.load(folders / project), project),
        strict=True,
    ):
        assert isinstance(ours, dict) or torch.equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tensors_are_accepted(monkeypatch, tmp_path, name):
    """All names and shapes of the published files, without their values (on the meta device)."""
    published = PUBLISHED[name]
    shapes = {tensor: tuple(shape) for tensor, shape in published["tensors"]}

    def read() -> dict[str, torch.Tensor]:
        tensors = {n: torch.empty(shape, device="meta") for n, shape in shapes.items()}
        for n in tensors:
            if n.endswith("inv_freq"):
                tensors[n] = 10_000 ** -(torch.arange(0, 64, 2) / 64)
        return tensors

    weights = Weights(tmp_path / "model.safetensors", shapes, read, "0" * 64)
    monkeypatch.setattr(ForeignCheckpoint, "weights", lambda _: weights)
    (tmp_path / "config.json").write_text(json.dumps(published["config"]))
    loaded = models.load(tmp_path)
    assert sum(p.numel() for p in loaded.denoiser.parameters()) == published["n_params"]
    contexts = {"GSAI-ML/LLaDA-8B-Base": 4096, "Dream-org/Dream-v0-Base-7B": 2048}
    assert loaded.denoiser.backbone.config.max_length == contexts.get(name, 1024)
    masks = {
        "s-sahoo/duo": None,
        "GSAI-ML/LLaDA-8B-Base": 126336,
        "Dream-org/Dream-v0-Base-7B": 151666,
    }
    assert loaded.denoiser.vocab.mask_id == masks.get(name, 50257)


# ----------------------------------------------------------------------------------- in a pipeline

SYMBOLS = string.ascii_letters + " .,;:!?'-0123456789"


def pipeline(folder: Path, vocab: Vocab, **options) -> gidd.Pipeline:
    """With a tokenizer that has as many characters as put the mask where the model has it."""
    if vocab.mask_id == 3:
        tokenizer = special_tokens_first(SYMBOLS[: vocab.size - 4])
        return gidd.from_pretrained(folder, device="cpu", tokenizer=tokenizer, **options)
    num_characters = (vocab.size - 1 if vocab.mask_id is None else vocab.mask_id) - 1
    tokenizer = tokenizers.character_level(SYMBOLS[:num_characters])
    return gidd.from_pretrained(folder, device="cpu", tokenizer=tokenizer, **options)


def special_tokens_first(symbols: str) -> tokenizers.Tokenizer:
    """The order of the authors' newest tokenizer: beginning, end, padding, mask, text."""
    library = pytest.importorskip("tokenizers")
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|padding|>", "<|mask|>"]
    vocab = {token: i for i, token in enumerate([*special, *symbols])}
    inner = library.Tokenizer(library.models.BPE(vocab=vocab, merges=[]))
    inner.decoder = library.decoders.Fuse()
    inner.add_special_tokens(special)
    return tokenizers.Tokenizer(inner)


CORRECTING = ("duo", "xdlm", "scdd", "gidd_scaling")


@pytest.mark.parametrize("project", PROJECTS)
def test_a_pipeline_generates_infills_and_scores(folders, project):
    pipe = pipeline(folders / project, PROJECTS[project][0])
    [sample] = pipe.generate(prompt="A b", length=12, steps=4)
    assert sample.text.startswith("A b")
    [filled] = pipe.infill("To [MASK:3] be.", steps=4)
    assert filled.text.startswith("To ") and filled.text.endswith(" be.") and len(filled.text) == 10
    if project != "dream":
        scores = pipe.score("To be or not", nodes=4, repeats=2)
        assert scores.nelbo > 0 and (scores.confidence is None) == (project not in CORRECTING)
    assert any("`correct` is refused" in note for note in pipe.notes) == (project not in CORRECTING)


def test_rows_without_a_token_are_never_predicted(folders):
    """The toys of LLaDA have 72 rows; a tokenizer with 67 tokens leaves 5 of them unused."""
    pipe = pipeline(folders / "llada", PROJECTS["llada"][0])
    assert pipe.schedule.vocab == Vocab(67, mask_id=66)
    z = arrays("llada")["input_ids"].clamp_max(66)
    assert pipe.denoiser(z, torch.full((4,), 0.5)).shape == (4, 16, 67)


@pytest.mark.parametrize("project", ["duo", "llada", "dream", "gidd_scaling"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_weights_in_bf16_are_read(tmp_path, project, precision):
    """Published files of LLaDA and Dream are bf16, and are not widened: 8B of parameters."""
    folder = checkpoint_folder(project, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t.bfloat16() for n, t in tensors.items()}, folder / "model.safetensors")
    pipe = pipeline(folder, PROJECTS[project][0], precision=precision)
    [sample] = pipe.generate(prompt="A b", length=8, steps=2)
    assert sample.text.startswith("A b")


@pytest.mark.parametrize("project", PROJECTS)
def test_an_imported_model_is_saved_in_our_layout(folders, tmp_path, project):
    """Also what it was given for the time, and a mixture of noise."""
    loaded = models.load(folders / project)
    models.save(tmp_path, loaded.denoiser, loaded.schedule)
    again = models.load(tmp_path)
    _, *first = predict(loaded, project)
    _, *second = predict(again, project)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    t = torch.tensor([0.3], dtype=torch.float64)
    assert torch.equal(loaded.schedule.beta_pi(t), again.schedule.beta_pi(t))


def test_sigma_is_finite_at_all_times(folders):
    """sigma = -log alpha is clamped to the largest of training, -log 1e-3."""
    config = models.load(folders / "duo").denoiser.backbone.config
    sigma = config.time_input(torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(sigma, torch.tensor([0.0, 0.6931472, 6.9077554]))


# ------------------------------------------------------------------------- training checkpoints


def training_checkpoint(layout: str) -> tuple[str, dict]:
    """The toy with noise in the raw weights, so that only the EMA has the right numbers."""
    project = {"lightning.ckpt": "mdlm", "checkpoint.pth": "sedd_absorb"}[layout]
    tensors = load_file(GOLDEN / project / "model.safetensors")
    order = json.loads((GOLDEN / "mdlm" / "ema_order.json").read_text())
    prefix = "backbone." if project == "mdlm" else ""
    names = [prefix + name.removeprefix("backbone.") for name in order]
    buffer = prefix + "rotary_emb.inv_freq"
    raw = {name: tensors[name] + 1 for name in names} | {buffer: tensors[buffer]}
    ema = {"decay": 0.9999, "num_updates": 5, "shadow_params": [tensors[name] for name in names]}
    if project == "mdlm":
        return project, {"state_dict": raw, "ema": ema, "epoch": 3}
    return project, {"model": raw, "ema": ema, "step": 3, "optimizer": {}}


def write_training_checkpoint(folder: Path, layout: str, change=lambda content: None) -> Path:
    project, content = training_checkpoint(layout)
    change(content)
    folder = checkpoint_folder(project, folder)
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / layout)
    return folder


@pytest.mark.parametrize("layout", ["lightning.ckpt", "checkpoint.pth"])
def test_the_ema_of_a_training_checkpoint_is_loaded(folders, tmp_path, layout):
    folder = write_training_checkpoint(tmp_path, layout)
    expected = models.load(folders / folder.name).denoiser.state_dict()
    loaded = models.load(folder).denoiser.state_dict()
    assert expected.keys() == loaded.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


class Evil:
    def __reduce__(self):
        return Path.mkdir, (Path("executed"),)


class Claim:
    """A tensor of 10^12 numbers, of which the file holds one."""

    def __init__(self, stride: int) -> None:
        self.stride = stride

    def __reduce__(self):
        storage = torch.zeros(1)._typed_storage()
        arguments = (storage, 0, (10**12,), (self.stride,), False, OrderedDict())
        return torch._utils._rebuild_tensor_v2, arguments


def claim(stride: int):
    return lambda content: content["ema"]["shadow_params"].__setitem__(0, Claim(stride))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(hyper_parameters=Evil()), "damaged or invalid.*Convert it"),
        (lambda c: c.pop("ema"), "ema with shadow_params"),
        (lambda c: c.pop("state_dict"), "must hold state_dict or model"),
        (lambda c: c["ema"]["shadow_params"].pop(), "one tensor for each of the"),
        (lambda c: c["ema"].update(shadow_params=[1] * 29), "one tensor for each|dense tensor"),
        (lambda c: c["ema"]["shadow_params"].reverse(), "must have shape|does not have"),
        (claim(0), "dense tensor"),
        (claim(1), "damaged or invalid"),
    ],
)
def test_other_training_checkpoints_are_refused(monkeypatch, tmp_path, change, message):
    monkeypatch.chdir(tmp_path)
    folder = write_training_checkpoint(tmp_path, "lightning.ckpt", change)
    with pytest.raises(CheckpointError, match=message) as error:
        models.load(folder)
    assert "lightning.ckpt" in str(error.value)
    assert not (tmp_path / "executed").exists()


def test_a_bare_pickle_and_a_compressed_archive_are_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    folder = write_training_checkpoint(tmp_path, "lightning.ckpt")
    file = folder / "lightning.ckpt"
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(CheckpointError, match=r"lightning.ckpt must not be compressed"):
        models.load(folder)
    file.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=r"lightning.ckpt is not an archive"):
        models.load(folder)
    assert not (tmp_path / "executed").exists()


# ------------------------------------------------------------------------------- several files


def write_shards(folder: Path) -> Path:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for i, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), start=1):
        shard = f"model-0000{i}-of-00002.safetensors"
        save_file({name: tensors[name] for name in names}, folder / shard)
        weight_map |= dict.fromkeys(names, shard)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_weights_in_several_files(folders, tmp_path):
    folder = write_shards(checkpoint_folder("dream", tmp_path))
    _, logits, _ = predict(models.load(folder), "dream")
    assert torch.equal(logits, predict(models.load(folders / "dream"), "dream")[1])


@pytest.mark.parametrize("name", ["../model-00001-of-00002.safetensors", "/etc/passwd", 5, None])
def test_an_index_cannot_name_other_files(tmp_path, name):
    folder = write_shards(checkpoint_folder("dream", tmp_path))
    index = folder / "model.safetensors.index.json"
    record = json.loads(index.read_text())
    record["weight_map"]["lm_head.weight"] = name
    index.write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"index.json: weight_map must"):
        models.load(folder)


def test_a_shard_with_another_tensor_is_refused(tmp_path):
    folder = write_shards(checkpoint_folder("dream", tmp_path))
    shard = folder / "model-00002-of-00002.safetensors"
    save_file(load_file(shard) | {"more": torch.ones(1)}, shard)
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002.safetensors must hold"):
        models.load(folder)


# --------------------------------------------------------------------------- damaged and foreign


def damage(folder: Path, change) -> Path:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)
    return folder


QKV = "backbone.blocks.1.attn_qkv.weight"
INV_FREQ = "backbone.rotary_emb.inv_freq"
FIRST_KEY = "model.layers.1.self_attn.k_bias"


@pytest.mark.parametrize(
    ("project", "change", "message"),
    [
        ("mdlm", lambda t: t.pop(QKV), f"'{QKV}' is missing"),
        ("mdlm", lambda t: t.update({"backbone.more": torch.ones(1)}), "'backbone.more' is not"),
        ("mdlm", lambda t: t.update(more=torch.ones(1)), "vocab_embed.embedding is missing"),
        ("mdlm", lambda t: t[INV_FREQ].mul_(2), "inv_freq does not hold the rotary"),
        ("mdlm", lambda t: t.pop(INV_FREQ), "inv_freq is missing"),
        ("mdlm", lambda t: t.update({INV_FREQ: torch.ones(0)}), "even multiple|must be 4"),
        ("mdlm", lambda t: t[QKV].fill_(torch.nan), "NaN or infinity"),
        (
            "duo",
            lambda t: [t.pop(name) for name in list(t) if "sigma_map" in name],
            "autoregressive baseline",
        ),
        ("sedd_absorb", lambda t: t.pop("blocks.0.norm1.weight"), "n_blocks must be 1"),
        ("llada", lambda t: t.pop("model.transformer.ff_out.weight"), "ff_out.weight' is missing"),
        ("llada", lambda t: t.pop("model.transformer.wte.weight"), "wte.weight is missing"),
        ("llada_gqa_tied", lambda t: t.update(more=torch.ones(1)), "'more' is not part"),
        ("gidd_scaling", lambda t: t.pop(FIRST_KEY), "'model.layers.1.self_attn.k_bias' is miss"),
        ("gidd_scaling", lambda t: t[FIRST_KEY].fill_(torch.inf), "NaN or infinity"),
        ("gidd_scaling", lambda t: t.pop("lm_head.weight"), "'lm_head.weight' is missing"),
        ("gidd_scaling", lambda t: t.update(more=torch.ones(1)), "'more' is not part"),
        (
            "dream",
            lambda t: t.update({"model.norm.weight": torch.ones(65)}),
            r"'model.norm.weight' must have shape \[64\]",
        ),
    ],
)
def test_a_missing_extra_or_wrong_tensor_is_refused_by_name(tmp_path, project, change, message):
    folder = damage(checkpoint_folder(project, tmp_path), change)
    with pytest.raises(CheckpointError, match=message) as error:
        models.load(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("project", "changes", "message"),
    [
        ("mdlm", {"time_conditioning": None}, "time_conditioning must be True or False, got None"),
        ("mdlm", {"hidden_dim": 128}, "hidden_dim must be 64, the size of the tensors, got 128"),
        ("mdlm", {"vocab_size": 10**30}, "vocab_size must be 65"),
        ("mdlm", {"n_heads": 8}, "n_heads must be 4"),
        ("mdlm", {"model_length": 10**12}, "model_length must have at most"),
        ("mdlm", {"model_length": 0}, "max_length must be an integer of at least 1"),
        ("mdlm", {"mask_token_id": 65}, r"mask_token_id must be in \[0, 65\)"),
        ("duo", {"causal": True}, "causal must be False, got True"),
        ("sedd_absorb", {"graph__type": "uniform"}, "graph.type must be 'absorb', got 'uniform'"),
        ("sedd_absorb", {"tokens": 65}, "tokens must be 64"),
        ("sedd_absorb", {"model": []}, "model.length must be an integer"),
        ("xdlm", {"algo__k1": 2}, r"algo.k1 must be a number in \(0, 1\], got 2"),
        ("xdlm", {"algo__time_conditioning": True}, "time_conditioning must be False"),
        ("scdd", {"forward__t_peak": 0.3}, "forward.t_peak must be 0.5, got 0.3"),
        ("scdd", {"forward__gamma": 3}, r"forward: gamma must be in \(0, 2\]"),
        ("llada", {"block_type": "sequential"}, "block_type must be 'llama'"),
        ("llada", {"n_heads": 0}, "num_heads must be an integer of at least 1"),
        ("llada", {"n_heads": 10**30}, "num_heads must be an integer"),
        ("llada", {"n_kv_heads": 2}, "n_kv_heads must be 4"),
        ("llada", {"mask_token_id": 72}, r"mask_token_id must be in \[0, 72\)"),
        ("llada", {"mlp_hidden_size": 128}, "mlp_hidden_size must be 160, the size of the tensors"),
        ("llada", {"clip_qkv": 8.0}, "clip_qkv must be None, got 8.0"),
        ("llada", {"quantization_config": {"bits": 4}}, "quantization_config must be None"),
        ("llada", {"rope_theta": "x"}, "rope_theta must be a number in"),
        ("dream", {"rope_scaling": {"type": "yarn"}}, "rope_scaling must be None"),
        ("dream", {"mask_token_id": 151669}, "Dream-Reasoner"),
        ("gidd_scaling", {"noise_type": 2.0}, "noise_type must be 1000.0 or -1000.0, got 2.0"),
        ("gidd_scaling", {"weight_scaling": "fan_in"}, "weight_scaling must be 1.0, got 'fan_in'"),
        ("gidd_scaling", {"attention_bias": None}, "attention_bias must be True, got None"),
        ("gidd_scaling", {"mlp_bias": 1}, "mlp_bias must be True, got 1"),
        ("gidd_scaling", {"is_causal": True}, "is_causal must be False"),
        ("gidd_scaling", {"min_log_snr": -7.0}, "min_log_snr must be -9.0"),
        ("gidd_scaling", {"head_scaling": None}, "head_scaling must be a number in"),
        ("gidd_scaling", {"resid_scale": -4.0}, "resid_scale must be a number in"),
        ("gidd_scaling", {"attn_soft_cap": 0}, "attn_soft_cap must be a number in"),
        ("gidd_scaling", {"head_dim": 16}, "head_dim must be 8, the size of the tensors, got 16"),
        ("gidd_scaling", {"num_hidden_layers": 10**30}, "num_hidden_layers must be 2"),
        ("gidd_scaling", {"max_position_embeddings": 10**12}, "max_position_embeddings must have"),
        (
            "llada",
            {"model_type": "qwen3"},
            "gidd, gidd-scaling, scdd, xdlm, mdlm, duo, sedd, llada, dream",
        ),
    ],
)
def test_another_configuration_is_refused_by_field(tmp_path, project, changes, message):
    folder = edit(checkpoint_folder(project, tmp_path), **changes)
    with pytest.raises(CheckpointError, match=message) as error:
        models.load(folder)
    assert str(folder) in str(error.value)


def test_an_unknown_folder_is_refused_with_the_known_layouts(tmp_path):
    with pytest.raises(CheckpointError, match="llada, dream, diffusion-gemma; it contains neither"):
        models.load(tmp_path)


def test_p_uniform_is_refused_where_the_configuration_states_the_noise(folders):
    with pytest.raises(ConfigError, match="p_uniform .* got 0.1 for one of mdlm"):
        models.load(folders / "mdlm", p_uniform=0.1)
