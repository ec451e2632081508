"""Saving and loading: a model is restored exactly, and damaged or foreign files are refused."""

import json
import pickle
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.reference_layout import export_reference
from support.small_model import write_model

import gidd
from gidd.cli import main
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import (
    Cosine,
    FirstReleaseSchedule,
    FunctionalSchedule,
    FunctionAmount,
    FunctionCurve,
    HybridSchedule,
    LinearAmount,
    MaskedSchedule,
    MixtureComponent,
    MixtureSchedule,
    PeakedAmount,
    Polynomial,
    UniformSchedule,
    mask_noise,
    uniform_noise,
)
from gidd.errors import CheckpointError, ConfigError
from gidd.models import (
    Denoiser,
    DiT,
    DiTConfig,
    load,
    load_pretrained,
    push_to_hub,
    read_training,
    save,
)
from gidd.models.importers.gidd_v1 import reference_name
from gidd.vocab import Vocab

GOLDEN = Path(__file__).parents[1] / "golden"
PUBLISHED = GOLDEN / "dit_tiny_hf"
CHECKPOINTS = json.loads((GOLDEN / "checkpoint_tensors.json").read_text())
VOCAB = Vocab(11, mask_id=10, pad_id=0)


def denoiser(vocab: Vocab = VOCAB) -> Denoiser:
    torch.manual_seed(0)
    config = DiTConfig(
        vocab_size=16, max_length=8, width=16, num_layers=2, num_heads=2, time_width=8, dropout=0.1
    )
    return Denoiser(DiT(config), vocab)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --------------------------------------------------------------------------------------- our layout

ZIPF = 1 / torch.arange(1, 12, dtype=torch.float64)
SCHEDULES: list[MixingSchedule] = [
    MaskedSchedule(VOCAB),
    MaskedSchedule(VOCAB, Cosine()),
    MaskedSchedule(VOCAB, Polynomial(1.7)),
    UniformSchedule(VOCAB, Polynomial(0.3)),
    HybridSchedule(VOCAB, p_uniform=0.1, gamma=1.5),
    FirstReleaseSchedule(VOCAB, p_uniform=1e-4),
    MixtureSchedule(
        VOCAB,
        (
            MixtureComponent(mask_noise(VOCAB), LinearAmount(0.75)),
            MixtureComponent(uniform_noise(VOCAB), LinearAmount(0.25)),
            MixtureComponent(ZIPF / ZIPF.sum(), PeakedAmount(0.2, 0.7)),
        ),
    ),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_a_saved_model_is_restored(tmp_path, schedule):
    """Weights, sizes, vocabulary, summary, and a schedule with the same numbers at every time."""
    original = denoiser()
    save(tmp_path / "a", original, schedule, {"steps": 7, "loss": 3.25, "data": ["x"]})
    loaded = load(tmp_path / "a")
    assert loaded.denoiser.vocab == VOCAB
    assert loaded.denoiser.backbone.config == original.backbone.config
    assert loaded.summary == {"steps": 7, "loss": 3.25, "data": ["x"]}
    assert loaded.notes == ()
    for name, tensor in original.state_dict().items():
        assert torch.equal(tensor, loaded.denoiser.state_dict()[name])
    assert all(p.requires_grad for p in loaded.denoiser.parameters())
    assert type(loaded.schedule) is type(schedule)
    t = torch.linspace(0.05, 0.95, 9, dtype=torch.float64)
    for function in ("alpha", "beta_pi", "inflow"):
        assert torch.equal(getattr(loaded.schedule, function)(t), getattr(schedule, function)(t))

    save(tmp_path / "b", loaded.denoiser, loaded.schedule, loaded.summary)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    names = {"gidd.json", "model.safetensors"}
    if isinstance(schedule, MixtureSchedule):
        names.add("schedule.safetensors")
    assert set(contents(tmp_path / "a")) == names  # no temporary files


@pytest.mark.slow
def test_a_save_over_an_older_one_replaces_it(tmp_path):
    model = denoiser()
    save(tmp_path, model, SCHEDULES[-1])
    loaded = load(tmp_path)  # its tensors may be views of the file that is replaced
    save(tmp_path, loaded.denoiser, SCHEDULES[0])
    assert isinstance(load(tmp_path).schedule, MaskedSchedule)
    assert set(contents(tmp_path)) == {"gidd.json", "model.safetensors"}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, load(tmp_path).denoiser.state_dict()[name])


def test_an_interrupted_save_leaves_the_old_files_unchanged(tmp_path, monkeypatch):
    """If the disk is full while the weights are written, the old model stays."""
    save(tmp_path, denoiser(), SCHEDULES[0])
    before = contents(tmp_path)

    def full_disk(tensors, file, metadata):
        Path(file).write_bytes(b"half of")
        raise OSError("No space left on device")

    monkeypatch.setattr("gidd.models.weights.save_file", full_disk)
    with pytest.raises(CheckpointError, match=r"model.safetensors .*No space left on device"):
        save(tmp_path, denoiser(), SCHEDULES[1])
    assert contents(tmp_path) == before


UNSAVABLE = {
    "FunctionalSchedule": FunctionalSchedule(
        VOCAB, lambda t: 1 - t, lambda t: t[:, None] * mask_noise(VOCAB, t)
    ),
    "FunctionCurve": MaskedSchedule(VOCAB, FunctionCurve(lambda t: 1 - t)),
    "FunctionAmount": MixtureSchedule(
        VOCAB, (MixtureComponent(mask_noise(VOCAB), FunctionAmount(lambda t: t)),)
    ),
}


@pytest.mark.parametrize("name", UNSAVABLE)
def test_python_functions_cannot_be_saved(tmp_path, name):
    with pytest.raises(ConfigError, match=f"{name} cannot be saved"):
        save(tmp_path, denoiser(), UNSAVABLE[name])
    assert not list(tmp_path.iterdir())


def test_another_vocabulary_and_nan_are_not_saved(tmp_path):
    with pytest.raises(ConfigError, match="schedule.vocab"):
        save(tmp_path, denoiser(), MaskedSchedule(Vocab(12, mask_id=11)))
    with pytest.raises(ConfigError, match="gidd.json: a value cannot be saved"):
        save(tmp_path, denoiser(), SCHEDULES[0], {"loss": float("nan")})


def edit(path: Path, change) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(format=9), "format must be 1, got 9"),
        (lambda r: r.update(extra=1), "must have the keys"),
        (lambda r: r.pop("vocabulary"), "must have the keys"),
        (lambda r: r["model"].update(colour=1), r"model has unknown fields \['colour'\]"),
        (lambda r: r["model"].pop("width"), r"lacks \['width'\]"),
        (lambda r: r["model"].update(width="16"), r"model.width must be int, got '16'"),
        (lambda r: r["model"].update(width=24), "model.safetensors: tensor .* must have shape"),
        (lambda r: r["schedule"].update(kind="magic"), "schedule must be one of .* got 'magic'"),
        (lambda r: r["schedule"].update(kind="bump"), "schedule must be one of .* got 'bump'"),
        (lambda r: r["schedule"].update(beta=1), r"schedule has unknown fields \['beta'\]"),
        (lambda r: r["schedule"].update(gamma=3.0), r"gamma must be in \(0, 2\], got 3"),
        (
            lambda r: r["schedule"].update(p_uniform="a"),
            "schedule.p_uniform must be float, got 'a'",
        ),
        (lambda r: r["schedule"].update(p_uniform={"kind": "linear"}), "p_uniform must be float"),
        (lambda r: r.update(schedule=[]), r"schedule must be an object, got \[\]"),
        (lambda r: r["vocabulary"].update(mask_id=99), r"vocab.mask_id must be in \[0, 11\)"),
        (
            lambda r: r["files"].update({"../../x": "0"}),
            r"files must list model.safetensors .*\.\./x",
        ),
        (
            lambda r: r["files"].update({"model.safetensors": "0" * 64}),
            "model.safetensors does not match the SHA-256",
        ),
    ],
)
def test_an_edited_record_is_refused(tmp_path, change, message):
    save(tmp_path, denoiser(), HybridSchedule(VOCAB))
    edit(tmp_path / "gidd.json", change)
    with pytest.raises(CheckpointError, match=message) as error:
        load(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_one_changed_bit_is_detected(tmp_path):
    save(tmp_path, denoiser(), HybridSchedule(VOCAB))
    file = tmp_path / "model.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-100] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="model.safetensors does not match the SHA-256"):
        load(tmp_path)


# ----------------------------------------------------------------------------- the authors' layouts


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_every_tensor_of_the_published_models_is_mapped(size):
    """Names and shapes are equal."""
    with torch.device("meta"):
        model = DiT(getattr(DiTConfig, size)(50258))
    ours = {reference_name(n): list(p.shape) for n, p in model.state_dict().items()}
    listed = {t["name"]: t["shape"] for t in CHECKPOINTS[f"hf_{size}"]["tensors"]}
    rotary = {name for name in listed if name.startswith("rotary_emb.")}
    head_width = model.config.width // model.config.num_heads
    assert all(listed.pop(name) == [1, 512, 3, 1, head_width] for name in sorted(rotary))
    assert len(rotary) == 2 and ours == listed


def test_import_and_export_are_byte_identical(tmp_path):
    pretrained = load(PUBLISHED)
    export_reference(tmp_path, pretrained.denoiser, p_uniform=0.2)
    file = "model.safetensors"
    assert (tmp_path / file).read_bytes() == (PUBLISHED / file).read_bytes()
    written = json.loads((tmp_path / "config.json").read_text())
    original = json.loads((PUBLISHED / "config.json").read_text())
    assert written == {name: original[name] for name in written}
    assert set(original) - set(written) == {"auto_map", "transformers_version"}
    again = load(tmp_path)
    assert again.schedule == pretrained.schedule


def test_published_to_ours_and_back(tmp_path):
    pretrained = load(PUBLISHED)
    save(tmp_path / "ours", pretrained.denoiser, pretrained.schedule)
    loaded = load(tmp_path / "ours")
    assert loaded.schedule == pretrained.schedule
    export_reference(tmp_path / "theirs", loaded.denoiser, p_uniform=0.2)
    exported = (tmp_path / "theirs" / "model.safetensors").read_bytes()
    assert exported == (PUBLISHED / "model.safetensors").read_bytes()


def test_published_checkpoints_come_with_the_first_release_schedule():
    pretrained = load(PUBLISHED)
    vocab = Vocab(258, mask_id=257)
    assert pretrained.schedule == FirstReleaseSchedule(vocab, 0.2)
    assert pretrained.denoiser.vocab == vocab
    assert "FirstReleaseSchedule" in pretrained.notes[0]
    assert load(PUBLISHED, p_uniform=0.1).schedule == FirstReleaseSchedule(vocab, 0.1)


@pytest.fixture
def published(tmp_path) -> Path:
    """A copy to damage; its config does not say p_uniform, as those of the hub do not."""
    folder = shutil.copytree(PUBLISHED, tmp_path / "copy")
    edit(folder / "config.json", lambda r: r.pop("p_uniform"))
    return folder


def test_an_unknown_p_uniform_is_refused(published):
    with pytest.raises(CheckpointError, match=r"config.json has no p_uniform"):
        load(published)
    assert load(published, p_uniform=0.0).schedule.p_uniform == 0


def damage(folder: Path, change) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("blocks.1.attn_qkv.weight"), "'blocks.1.attn_qkv.weight' is missing"),
        (lambda t: t.update(foreign=torch.ones(1)), "tensor 'foreign' is not part"),
        (lambda t: t.update(logit_bias=torch.zeros(1)), "tensor 'logit_bias' is not part"),
        (
            lambda t: t.update({"blocks.0.norm1.weight": torch.ones(65)}),
            r"'blocks.0.norm1.weight' must have shape \[64\], got \[65\]",
        ),
        (
            lambda t: t.update({"sigma_map.mlp.0.bias": torch.ones(32, dtype=torch.int64)}),
            "'sigma_map.mlp.0.bias' must be float32, .*got 'I64'",
        ),
        (lambda t: t.pop("rotary_emb.cos_cached"), "'rotary_emb.cos_cached' is missing"),
        (lambda t: t["rotary_emb.sin_cached"].mul_(2), "rotary_emb.sin_cached does not hold"),
        (
            lambda t: t.update({"rotary_emb.sin_cached": torch.zeros(1, 8, 3, 1, 16)}),
            r"'rotary_emb.sin_cached' must have shape \[1, 32, 3, 1, 16\]",
        ),
    ],
)
def test_a_foreign_or_damaged_tensor_is_refused(published, change, message):
    damage(published, change)
    with pytest.raises(CheckpointError, match=message) as error:
        load(published, p_uniform=0.1)
    assert str(published / "model.safetensors") in str(error.value)


@pytest.mark.parametrize("content", [b"", b"not a safetensors file at all", None])
def test_a_cut_or_foreign_file_is_refused(published, content):
    file = published / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000] if content is None else content)
    with pytest.raises(CheckpointError, match="safetensors is damaged or invalid") as error:
        load(published, p_uniform=0.1)
    assert str(file) in str(error.value)


def test_pickles_are_never_opened(published):
    """The file makes a folder when it is unpickled; no folder is made."""
    marker = published / "ran"
    code = f"cos\nmkdir\n(S'{marker}'\ntR.".encode()
    (published / "model.safetensors").unlink()
    (published / "pytorch_model.bin").write_bytes(code)
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin .* is a pickle"):
        load(published, p_uniform=0.1)
    for suffix in ("bin", "pt", "ckpt"):
        path = published / f"model.{suffix}"
        path.write_bytes(code)
        with pytest.raises(CheckpointError, match=re.escape(f"{path} is a pickle")):
            read_training(path, HybridSchedule(VOCAB))
    assert not marker.exists()
    pickle.loads(code)
    assert marker.exists()  # the pickle itself works


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(model_type="llama"), "a Llama"),
        (lambda r: r.update(model_type="bert"), "model_type 'bert'"),
        (lambda r: r.pop("hidden_size"), "hidden_size must be an integer.* got None"),
        (lambda r: r.update(hidden_size=65), "config.json: width must be .* got 65"),
    ],
)
def test_another_models_config_is_refused(published, change, message):
    edit(published / "config.json", change)
    with pytest.raises(CheckpointError, match=message):
        load(published, p_uniform=0.1)


def test_broken_json_and_empty_folders_are_refused(published, tmp_path):
    (published / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="config.json cannot be read as JSON"):
        load(published)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"gidd.json, or config.json"):
        load(tmp_path / "empty")


def test_training_layout_is_checked(published):
    """The vocabulary must be the one the rows were made for, and logit_bias zero."""
    file = published / "model.safetensors"
    schedule = HybridSchedule(Vocab(258, mask_id=257))
    assert read_training(file, schedule).denoiser.backbone.config.num_heads == 4  # not rounded up
    with pytest.raises(CheckpointError, match=r"must have 384 rows \(or 300, .* got 258"):
        read_training(file, HybridSchedule(Vocab(300, mask_id=299)))
    damage(published, lambda t: t.update(logit_bias=torch.ones(1, 1, 1)))
    with pytest.raises(CheckpointError, match="logit_bias must be zero"):
        read_training(file, schedule)
    damage(published, lambda t: (t.pop("logit_bias"), t.pop("rotary_emb.cos_cached")))
    with pytest.raises(CheckpointError, match="rotary_emb.cos_cached is missing"):
        read_training(file, schedule)


def test_half_precision_weights_are_read_as_float32(published):
    """Version 1.1.0 of the authors' code trains in bf16, its rotary buffers included."""
    damage(published, lambda t: t.update({n: v.bfloat16() for n, v in t.items()}))
    schedule = HybridSchedule(Vocab(258, mask_id=257))
    model = read_training(published / "model.safetensors", schedule).denoiser
    assert {p.dtype for p in model.parameters()} == {torch.float32}


# ------------------------------------------------------------------------------------------ the hub


def test_p_uniform_is_taken_from_the_name(published, tmp_path):
    folder = published.rename(tmp_path / "gidd-small-p_unif-0.1")
    assert load_pretrained(folder).schedule.p_uniform == 0.1
    assert load_pretrained(f"{folder}/").schedule.p_uniform == 0.1
    assert load_pretrained(folder, p_uniform=0.0).schedule.p_uniform == 0.0


def test_models_are_downloaded_from_the_hub(published, monkeypatch):
    """Only the connection is replaced; neither code nor pickles are requested."""
    hub = pytest.importorskip("huggingface_hub", reason="the hub needs the extra `hf`")
    requested = {}

    def snapshot_download(name, allow_patterns):
        requested.update(name=name, patterns=allow_patterns)
        return str(published)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    pretrained = load_pretrained("dvruette/gidd-small-p_unif-0.2")
    assert pretrained.schedule.p_uniform == 0.2
    assert requested["name"] == "dvruette/gidd-small-p_unif-0.2"
    assert requested["patterns"] == ["*.safetensors", "*.json", "*.txt"]
    with pytest.raises(CheckpointError, match="p_uniform"):
        load_pretrained("someone/else")


def test_a_name_that_cannot_be_downloaded(monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="the hub needs the extra `hf`")

    def no_connection(name, allow_patterns):
        raise OSError("no route to host.\nPlease check your connection.")

    monkeypatch.setattr(hub, "snapshot_download", no_connection)
    with pytest.raises(CheckpointError, match=r"a/b is not a folder here, .* no route") as error:
        load_pretrained("a/b")
    assert "\n" not in str(error.value) and ".." not in str(error.value)


@pytest.mark.parametrize(
    "name", ["models/nope", "./nope", "../nope", "/nope/x", "~/nope", "no/such/folder", "nope"]
)
def test_a_mistyped_path_is_refused_without_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # importing it would fail
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(CheckpointError, match=f"^{re.escape(name)} is not a folder here"):
        load_pretrained(name)


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    """A stand-in for the hub: what is uploaded is copied to this folder, by the hub's own rules."""
    hub = pytest.importorskip("huggingface_hub", reason="the hub needs the extra `hf`")
    target = tmp_path / "hub"

    def create_repo(name, *, private, exist_ok):
        (target / name).mkdir(parents=True, exist_ok=exist_ok)
        (target / "private").write_text(str(private))

    def upload_folder(*, repo_id, folder_path, allow_patterns):
        files = [str(f.relative_to(folder_path)) for f in Path(folder_path).rglob("*")]
        for file in hub.utils.filter_repo_objects(files, allow_patterns=allow_patterns):
            shutil.copy(Path(folder_path) / file, target / repo_id / file)

    monkeypatch.setattr(hub, "create_repo", create_repo)
    monkeypatch.setattr(hub, "upload_folder", upload_folder)
    return target


def test_a_model_is_pushed_and_loaded_again(hub_folder, tmp_path, capsys):
    model = write_model(tmp_path / "model")
    (model / "secret.env").write_text("HF_TOKEN=hf_secret")
    (model / "notes").mkdir()
    (model / "notes" / "private.json").write_text("{}")
    main(["push", str(model), "me/mine", "--dry-run"])
    listed = capsys.readouterr().out
    assert not hub_folder.exists()
    main(["push", str(model), "me/mine", "--private"])
    found = sorted(path.name for path in (hub_folder / "me" / "mine").iterdir())
    assert found == ["gidd.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    for name in found:
        assert re.search(rf"{name}\s+[\d.]+ [kM]?B", listed), listed
    assert "secret" not in listed and "private.json" not in listed
    assert (hub_folder / "private").read_text() == "True"
    pipe = gidd.from_pretrained(hub_folder / "me" / "mine", device="cpu")
    pipe.push_to_hub("me/again")
    again, first = (hub_folder / "me" / name / "model.safetensors" for name in ("again", "mine"))
    assert again.read_bytes() == first.read_bytes()


def test_only_complete_models_are_pushed(hub_folder, tmp_path):
    for name, message in (("me/mine", r"no gidd.json.*gidd export"), ("a b", "name on the .* hub")):
        with pytest.raises(CheckpointError, match=message):
            push_to_hub(name, tmp_path)
    save(tmp_path / "model", denoiser(), HybridSchedule(VOCAB))
    with (tmp_path / "model" / "model.safetensors").open("ab") as file:
        file.write(b"damage")
    with pytest.raises(CheckpointError, match="model.safetensors"):
        push_to_hub("me/mine", tmp_path / "model")
    assert not hub_folder.exists()


def test_a_refused_upload_is_one_message(hub_folder, tmp_path, monkeypatch):
    import huggingface_hub

    def refuse(*arguments, **options):
        raise OSError("401 Client Error.\nInvalid user token.")

    monkeypatch.setattr(huggingface_hub, "create_repo", refuse)
    save(tmp_path, denoiser(), HybridSchedule(VOCAB))
    with pytest.raises(CheckpointError, match=r"401.*hf auth login") as error:
        push_to_hub("me/mine", tmp_path)
    assert "\n" not in str(error.value)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    name = "dvruette/gidd-small-p_unif-0.1"
    with pytest.raises(
        ConfigError, match=rf'^{re.escape(name)} is not a folder here.*pip install "gidd\[hf\]"'
    ):
        load_pretrained(name)
