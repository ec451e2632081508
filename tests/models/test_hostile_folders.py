"""Model folders from elsewhere: whatever is wrong with them ends in one `CheckpointError`."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.reference_layout import export_reference

from gidd.common.files import sha256
from gidd.diffusion.schedules import (
    HybridSchedule,
    LinearAmount,
    MixtureComponent,
    MixtureSchedule,
    PeakedAmount,
    mask_noise,
    uniform_noise,
)
from gidd.errors import CheckpointError, ConfigError
from gidd.models import (
    Denoiser,
    DiT,
    DiTConfig,
    load,
    read_training,
    save,
)
from gidd.vocab import Vocab

GOLDEN = Path(__file__).parents[1] / "golden"
VOCAB = Vocab(11, mask_id=10, pad_id=0)
WEIGHTS, SCHEDULE, RECORD = "model.safetensors", "schedule.safetensors", "gidd.json"
MIXTURE = MixtureSchedule(
    VOCAB,
    (
        MixtureComponent(mask_noise(VOCAB), LinearAmount()),
        MixtureComponent(uniform_noise(VOCAB), PeakedAmount(0.2)),
    ),
)
LARGE = 10**10


def small_denoiser() -> Denoiser:
    torch.manual_seed(0)
    sizes = DiTConfig(
        vocab_size=16, max_length=8, width=16, num_layers=2, num_heads=2, time_width=8
    )
    return Denoiser(DiT(sizes), VOCAB)


@pytest.fixture
def ours(tmp_path) -> Path:
    """A model in our layout, with a schedule that has tensors."""
    save(tmp_path / "ours", small_denoiser(), MIXTURE, {"steps": 3})
    return tmp_path / "ours"


@pytest.fixture
def theirs(tmp_path) -> Path:
    """A model in the authors' published layout."""
    return shutil.copytree(GOLDEN / "dit_tiny_hf", tmp_path / "theirs")


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def edit_tensors(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change tensors, and their SHA-256 in our record: an attacker would."""
    tensors = {key: tensor.clone() for key, tensor in load_file(folder / name).items()}
    change(tensors)
    save_file(tensors, folder / name)
    if (folder / RECORD).exists():
        edit(folder / RECORD, lambda r: r["files"].update({name: sha256(folder / name)}))


# -------------------------------------------------------------------------------------------- sizes

SIZES_OF_OURS = {
    "layers": (lambda r: r["model"].update(num_layers=10**9), "num_layers = 1000000000"),
    "width": (lambda r: r["model"].update(width=8 * LARGE), "overflow"),
    "rows": (lambda r: r["model"].update(vocab_size=LARGE), r"embedding.weight.*\[10000"),
    "time": (lambda r: r["model"].update(time_width=LARGE), "overflow"),
    "vocabulary": (
        lambda r: r["vocabulary"].update(size=LARGE),
        "vocabulary.size must be at most 16, .* got 10000000000",
    ),
    "context": (
        lambda r: r["model"].update(max_length=2**17 + 1),
        "max_length .*131,072 tokens, got 131,073.*GIDD_MAX_CONTEXT_TOKENS=131073",
    ),
}
SIZES_OF_THEIRS = {
    "their layers": (lambda r: r.update(num_hidden_layers=10**5), "num_layers = 100000"),
    "their rows": (lambda r: r.update(vocab_size=LARGE), r"vocab_embed.embedding.*\[10000"),
    "their width": (lambda r: r.update(hidden_size=8 * LARGE), "rotary_emb.cos_cached.*20000"),
    "their context": (lambda r: r.update(max_seq_len=LARGE), r"rotary_emb.cos_cached.*\[1, 10000"),
}
LOAD_UNDER_LIMITS = """
import json, resource, sys
from gidd import models
from gidd.errors import CheckpointError
models.load(sys.argv[1])  # what is imported on first use does not count
with open("/proc/self/status") as status:
    used = next(int(line.split()[1]) for line in status if line.startswith("VmData")) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (1 << 28),) * 2)
seconds = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 20
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
messages = {}
for folder in sys.argv[2:]:
    try:
        models.load(folder)
    except CheckpointError as error:
        messages[folder] = str(error)
print(json.dumps(messages))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")
def test_sizes_are_compared_with_the_file_before_anything_is_built(ours, theirs, tmp_path):
    """Under limits on memory and CPU time, which building such a model would exceed."""
    folders: dict[str, str] = {}
    for attacks, original, record in (
        (SIZES_OF_OURS, ours, RECORD),
        (SIZES_OF_THEIRS, theirs, "config.json"),
    ):
        for name, (change, expected) in attacks.items():
            folder = shutil.copytree(original, tmp_path / name)
            edit(folder / record, change)
            folders[str(folder)] = expected
    child = subprocess.run(
        [sys.executable, "-c", LOAD_UNDER_LIMITS, str(ours), *folders],
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    messages = json.loads(child.stdout)
    assert set(messages) == set(folders)
    for folder, expected in folders.items():
        with pytest.raises(CheckpointError, match=expected):
            raise CheckpointError(messages[folder])


def test_a_long_context_is_allowed_on_request(ours, monkeypatch):
    edit(ours / RECORD, lambda r: r["model"].update(max_length=2**17 + 1))
    monkeypatch.setenv("GIDD_MAX_CONTEXT_TOKENS", "131073")
    assert load(ours).denoiser.backbone.config.max_length == 131_073


def test_blocks_must_have_all_their_tensors(ours):
    """A file with many names of blocks but without their tensors describes no large model."""
    edit_tensors(
        ours, WEIGHTS, lambda t: t.update({f"blocks.{i}.x": torch.ones(1) for i in range(2, 2000)})
    )
    edit(ours / RECORD, lambda r: r["model"].update(num_layers=1000))
    with pytest.raises(
        CheckpointError, match=r"tensor 'blocks.2.attention_norm.weight' is missing"
    ):
        load(ours)


def test_a_header_has_a_limited_size(ours):
    with (ours / WEIGHTS).open("r+b") as file:
        file.write((2**25).to_bytes(8, "little"))
        file.truncate(2**26)
    edit(ours / RECORD, lambda r: r["files"].update({WEIGHTS: sha256(ours / WEIGHTS)}))
    with pytest.raises(CheckpointError, match=r"header of .*model.safetensors .*16,777,216 bytes"):
        load(ours)


def test_padding_must_not_be_the_mask(ours):
    edit(ours / RECORD, lambda r: r["vocabulary"].update(pad_id=10))
    with pytest.raises(CheckpointError, match=r"pad_id must differ from .*mask_id.* 10"):
        load(ours)


def test_angles_of_no_elements_do_not_set_the_context(theirs):
    """Zero elements need no bytes, whatever the other dimensions are."""
    edit_tensors(
        theirs,
        WEIGHTS,
        lambda t: t.update({"rotary_emb.cos_cached": torch.zeros(0, LARGE, 3, 1, 16)}),
    )
    edit(theirs / "config.json", lambda r: r.update(max_seq_len=LARGE))
    with pytest.raises(CheckpointError, match="rotary_emb.cos_cached' must have shape"):
        load(theirs)
    schedule = HybridSchedule(Vocab(258, mask_id=257))
    with pytest.raises(CheckpointError, match="rotary_emb.cos_cached' must have shape"):
        read_training(theirs / WEIGHTS, schedule)


# ------------------------------------------------------------------------------------------ tensors


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int64, torch.bool])
@pytest.mark.parametrize("name", ["head.bias", "embedding.weight"])
def test_other_types_than_floating_point_are_refused(ours, dtype, name):
    edit_tensors(ours, WEIGHTS, lambda t: t.update({name: t[name].to(dtype)}))
    with pytest.raises(CheckpointError, match=f"{name}' must be float32, .* got '(F8_E4M3|I64|BO)"):
        load(ours)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions_are_loaded(ours, dtype):
    edit_tensors(ours, WEIGHTS, lambda t: t.update({n: x.to(dtype) for n, x in t.items()}))
    assert {p.dtype for p in load(ours).denoiser.parameters()} == {dtype}


def test_untrusted_names_and_shapes_are_shortened(ours):
    names = [f"{i}\x1b]0;PWNED\x07" + "x" * 100_000 for i in range(20)]
    edit_tensors(ours, WEIGHTS, lambda t: t.update({name: torch.ones((1,) * 60) for name in names}))
    with pytest.raises(CheckpointError, match=r"is not part of this model.*; \.\.\.") as error:
        load(ours)
    assert len(str(error.value)) < 2000 and "\x1b" not in str(error.value)
    edit_tensors(ours, WEIGHTS, lambda t: t.update({"head.bias": torch.ones((1,) * 1000)}))
    with pytest.raises(CheckpointError) as error:
        load(ours)
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_not_finite_are_refused(ours, theirs, value, dtype):
    """Wherever the value is, the first and last element included."""
    for name, position in (("embedding.weight", 0), ("head.weight", 77), ("time.input.bias", -1)):
        copy = shutil.copytree(ours, ours.parent / f"{name}{value}")

        def change(tensors, name=name, position=position):
            tensors.update({key: tensor.to(dtype) for key, tensor in tensors.items()})
            tensors[name].view(-1)[position] = value

        edit_tensors(copy, WEIGHTS, change)
        with pytest.raises(CheckpointError, match=f"{WEIGHTS}: tensor '{name}' .*NaN or infinity"):
            load(copy)
    edit_tensors(theirs, WEIGHTS, lambda t: t["output_layer.linear.bias"].fill_(value))
    for read in (
        lambda: load(theirs),
        lambda: read_training(theirs / WEIGHTS, HybridSchedule(Vocab(258, mask_id=257))),
    ):
        with pytest.raises(CheckpointError, match=r"'output_layer.linear.bias' .*NaN or infinity"):
            read()


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = small_denoiser()
    with torch.no_grad():
        model.backbone.blocks[1].mlp.up.bias[3] = torch.nan
    for write in (
        lambda: save(tmp_path / "a", model, HybridSchedule(VOCAB)),
        lambda: export_reference(tmp_path / "a", model, p_uniform=0.1),
    ):
        with pytest.raises(CheckpointError, match=r"'blocks.1.mlp..*bias' .*NaN or infinity"):
            write()
        assert not list((tmp_path / "a").iterdir())


# ------------------------------------------------------------------------------------------ records


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(training=[]), r"training must be an object, got \[\]"),
        (lambda r: r.update(files=[]), r"files .*got \[\]"),
        (lambda r: r["files"].update({WEIGHTS: "0"}), "files.*64 hexadecimal digits.*'0'"),
        (lambda r: r.update(format=[1] * 10**6), "format must be 1"),
        (lambda r: r.update({"k" * 10**6: 1}), "must have the keys"),
        (lambda r: r.update(model="dit"), "model must be an object, got 'dit'"),
        (lambda r: r["model"].update(width=16.0), "model.width must be int, got 16.0"),
        (lambda r: r["model"].update(dropout=1e999), r"dropout must be .*in \[0, 1\), got inf"),
        (lambda r: r["vocabulary"].update(mask_id=10.0), "mask_id must be int or None.*got 10.0"),
        (lambda r: r["vocabulary"].update(size=17), "vocabulary.size must be at most 16"),
        (lambda r: r["vocabulary"].update(size=12), r"noise.0' must have shape \[12\], got \[11\]"),
        (lambda r: r["schedule"].update(components=[]), "at least one component"),
        (
            lambda r: r["schedule"]["components"][0].update(noise=["noise.0"]),
            r"components\[0\].noise must name .*noise.0.*, got \['noise.0'\]",
        ),
        (
            lambda r: r["schedule"].update(components=r["schedule"]["components"] * 10_000),
            "components must have at most 16 .*got 20000",
        ),
        (
            lambda r: r["schedule"]["components"][0]["amount"].update(weight=1e999),
            "schedule.*must decrease",
        ),
    ],
)
def test_wrong_types_and_values_are_refused(ours, change, message):
    edit(ours / RECORD, change)
    with pytest.raises(CheckpointError, match=message) as error:
        load(ours)
    assert str(ours / RECORD) in str(error.value) or str(ours / SCHEDULE) in str(error.value)
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(p_uniform="x"), "p_uniform must be a number .*got 'x'"),
        (lambda r: r.update(p_uniform=10**400), r"p_uniform must be a number in \[0, 1\)"),
        (
            lambda r: r.update(hidden_size=[16] * 10**6),
            "config.json: hidden_size must be an int",
        ),
        (lambda r: r.update(model_type={"a": "b" * 10**6}), "got model_type"),
    ],
)
def test_wrong_values_in_the_authors_config_are_refused(theirs, change, message):
    edit(theirs / "config.json", change)
    with pytest.raises(CheckpointError, match=message) as error:
        load(theirs)
    assert "config.json" in str(error.value) and len(str(error.value)) < 2000


def test_noise_of_another_shape_or_type_is_refused(ours):
    edit_tensors(ours, SCHEDULE, lambda t: t.update({"noise.1": t["noise.1"][:-1].clone()}))
    with pytest.raises(CheckpointError, match=r"noise.1' must have shape \[11\], got \[10\]"):
        load(ours)
    edit_tensors(ours, SCHEDULE, lambda t: t.update({"noise.1": torch.ones(11, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match=r"noise.1' must be float32, .*got 'I8'"):
        load(ours)


def test_noise_of_too_many_components_is_not_saved(tmp_path):
    many = MixtureSchedule(VOCAB, (MixtureComponent(mask_noise(VOCAB), LinearAmount(1 / 17)),) * 17)
    with pytest.raises(ConfigError, match="at most 16 components, got 17"):
        save(tmp_path, small_denoiser(), many)


def test_an_unforeseen_error_is_one_message(ours, theirs, monkeypatch):
    """The last line of defence: compiled libraries raise anything, also no `Exception`s."""

    class Panic(BaseException):
        pass

    def panic(*arguments, **options):
        raise Panic("unwrap() on\na None")

    monkeypatch.setattr("gidd.models.weights.load_file", panic)
    schedule = HybridSchedule(Vocab(258, mask_id=257))
    for read in (
        lambda: load(ours),
        lambda: load(theirs),
        lambda: read_training(theirs / WEIGHTS, schedule),
    ):
        with pytest.raises(CheckpointError, match=r"invalid: Panic: unwrap\(\) on a None"):
            read()


def test_only_regular_files_are_read(ours, tmp_path):
    import os

    (ours / WEIGHTS).unlink()
    os.mkfifo(ours / WEIGHTS)
    with pytest.raises(CheckpointError, match="model.safetensors .*regular file, got a named pipe"):
        load(ours)
