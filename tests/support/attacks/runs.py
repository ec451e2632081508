"""Hostile run folders: checkpoints whose digests fit, and logs."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

from support.attacks.tools import (
    ESCAPE,
    Attack,
    become_link,
    become_pipe,
    edit_json,
    nested,
    put,
    read_tensors,
    replace,
    sign_checkpoint,
    write_tensors,
)

RUN, RECORD, MANIFEST = "run.yaml", "record.json", "manifest.json"


def checkpoint(folder: Path) -> Path:
    return next(path for path in (folder / "checkpoints").iterdir() if path.is_dir())


def _run(path: tuple[Any, ...], value: Any, folder: Path) -> None:
    """Change one setting in run.yaml, and sign."""
    file = checkpoint(folder) / RUN
    file.write_text(yaml.safe_dump(put(yaml.safe_load(file.read_text()), path, value)))
    sign_checkpoint(checkpoint(folder))


def _text(name: str, text: str | bytes, folder: Path) -> None:
    replace(checkpoint(folder) / name, text)
    sign_checkpoint(checkpoint(folder))


def _record(path: tuple[Any, ...], value: Any, folder: Path) -> None:
    edit_json(checkpoint(folder) / RECORD, path, value)
    sign_checkpoint(checkpoint(folder))


def _manifest(path: tuple[Any, ...], value: Any, folder: Path) -> None:
    edit_json(checkpoint(folder) / MANIFEST, path, value)


def resign(folder: Path, change: Any) -> None:
    """Change the content of a checkpoint's manifest, with a digest that fits."""
    import hashlib

    path = checkpoint(folder) / MANIFEST
    content = change(json.loads(path.read_text())["content"])
    body = json.dumps(content, indent=1, sort_keys=True)
    digest = hashlib.sha256(body.encode()).hexdigest()
    text = json.dumps({"sha256": digest, "content": content}, indent=1, sort_keys=True) + "\n"
    path.write_text(text)


def _tensors(change: Any, folder: Path) -> None:
    """Change the tensors of the checkpoint, and sign; names and shapes in the manifest stay."""
    path = next(checkpoint(folder).glob("*.safetensors"))
    header, _ = read_tensors(path)
    metadata = header.get("__metadata__")
    save_file(change(load_file(path)), path, metadata=metadata)
    sign_checkpoint(checkpoint(folder))


def _header(path: tuple[Any, ...], value: Any, folder: Path) -> None:
    file = next(checkpoint(folder).glob("*.safetensors"))
    header, data = read_tensors(file)
    write_tensors(file, put(header, path, value), data)
    sign_checkpoint(checkpoint(folder))


def _log(text: str | bytes, folder: Path) -> None:
    replace(folder / "metrics.jsonl", text)


def _nan(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}


_SIZES = (-1, 0, 1.5, 10**5, 10**9, 10**30, "x", None)
_SETTINGS: dict[tuple[str, ...], tuple[Any, ...]] = {
    **{("backbone", name): _SIZES for name in ("width", "num_layers", "num_heads", "time_width")},
    ("backbone", "kind"): ("os.system", None, ESCAPE, [], "unregistered"),
    ("backbone", "package"): (ESCAPE, None, 5),
    ("model",): ({"kind": "ModelConfig"}, {"kind": "ModelConfig", "width": 10**9}, None),
    ("objective",): (None, [], {"kind": "Autoregressive"}, {"kind": "os.system"}),
    ("objective", "noise"): ({"kind": "uniform"}, {"kind": "UniformNoise"}, {"kind": "x"}, None),
    ("objective", "weighting"): ({"kind": "hybrid"}, {"kind": ["x"]}, {"kind": "unregistered"}, 5),
    ("objective", "noise", "p_uniform"): (-1, 2, 1e308, "x"),
    ("objective", "noise", "gamma"): (-1, 0, 1e308, None),
    ("data", "length"): (-1, 0, 10**10, 10**30, "x"),
    ("data", "folder"): ("/dev/zero", "../../..", ESCAPE, 5),
    ("data", "sources"): ([ESCAPE], "x", [5], [[]]),
    ("data", "workers"): (-1, 10**9),
    ("train", "steps"): (-1, 10**30),
    ("train", "global_batch"): (10**12, 0),
    ("train", "ema_decay"): (0.5, 5, "x"),
    ("train", "timeout"): (0, -1, 1e308),
    ("parallel",): (None, {"kind": "FSDP"}, {"kind": "x"}),
}

_ALIASES = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=False)
)

ATTACKS: dict[str, Attack] = {
    **{
        f"run {'.'.join(path)} #{number}": partial(_run, path, value)
        for path, options in _SETTINGS.items()
        for number, value in enumerate(options)
    },
    **{
        f"run is {name}": partial(_text, RUN, text)
        for name, text in {
            "empty": "",
            "aliases": _ALIASES,
            "tags": "!!python/object/apply:os.system ['touch executed']",
            "nested": "[" * 50_000,
            "many keys": "".join(f"k{k}: 0\n" for k in range(10**5)),
            "not UTF-8": b"\xff\xfe\xfd",
            "an escape": "kind: " + json.dumps(ESCAPE),
        }.items()
    },
    **{
        f"record {'.'.join(path) or 'itself'} #{number}": partial(_record, path, value)
        for path, options in {
            ("step",): (None, -1, "x", 10**30, 1.5),
            ("pending",): (None, [], {"x": "y"}, {ESCAPE: 1}),
            ("run",): (None, [], {}, {"kind": "os.system"}),
            ("run", "backbone", "num_layers"): (10**9, -1),
            ("run", "data", "sources"): ([ESCAPE], None),
            (): ([], 5, {}),
        }.items()
        for number, value in enumerate(options)
    },
    "record is nested": partial(_text, RECORD, nested(10**5, "{")),
    **{
        f"manifest {'.'.join(map(str, path)) or 'itself'} #{number}": partial(
            _manifest, path, value
        )
        for path, options in {
            (): ([], 5, None, {}),
            ("content",): (None, [], {}, ESCAPE),
            ("content", "step"): (None, -1, 10**30, "x"),
            ("content", "tensors"): (None, [], {}, {"x": 5}),
            ("content", "files"): (None, [], {}, {"../../x": {}}, {"x": None}),
        }.items()
        for number, value in enumerate(options)
    },
    **{
        f"signed manifest: {name}": partial(lambda change, folder: resign(folder, change), change)
        for name, change in {
            "step is a string": lambda c: c | {"step": ESCAPE},
            "tensors are numbers": lambda c: c | {"tensors": {n: 5 for n in c["tensors"]}},
            "tensors are huge": lambda c: (
                c | {"tensors": {n: "float32 [1000000000, 1000000000]" for n in c["tensors"]}}
            ),
            "tensors are named by escapes": lambda c: (
                c | {"tensors": {ESCAPE + n: t for n, t in c["tensors"].items()}}
            ),
            "files are numbers": lambda c: c | {"files": {n: 5 for n in c["files"]}},
            "files are elsewhere": lambda c: (
                c | {"files": {"../" + n: f for n, f in c["files"].items()}}
            ),
            "no files": lambda c: c | {"files": {}},
        }.items()
    },
    "manifest is nested": lambda folder: replace(checkpoint(folder) / MANIFEST, nested(10**5, "{")),
    "manifest is a pipe": lambda folder: become_pipe(checkpoint(folder) / MANIFEST),
    "run is a pipe": lambda folder: become_pipe(checkpoint(folder) / RUN),
    "shard is a pipe": lambda folder: become_pipe(next(checkpoint(folder).glob("*.safetensors"))),
    "shard is missing": lambda folder: next(checkpoint(folder).glob("*.safetensors")).unlink(),
    "tensors are NaN": partial(_tensors, _nan),
    "tensors are integers": partial(_tensors, lambda t: {n: v.int() for n, v in t.items()}),
    "tensors are float8": partial(
        _tensors, lambda t: {n: v.to(torch.float8_e4m3fn) for n, v in t.items()}
    ),
    **{
        f"shard metadata #{number}": partial(_header, ("__metadata__",), value)
        for number, value in enumerate(
            (
                {},
                {"DCP_SHARDING_INFO": "x"},
                {"DCP_SHARDING_INFO": nested(10**5)},
                {"DCP_SHARDING_INFO": "[]"},
                {"DCP_SHARDING_INFO": '{"model.head.bias": {"saved_offsets": [-1000000000000]}}'},
                {"DCP_SHARDING_INFO": '{"model.head.bias": {"saved_offsets": "x"}}'},
                {"format": ESCAPE},
            )
        )
    },
    **{
        f"log is {name}": partial(_log, text)
        for name, text in {
            "empty": "",
            "not JSON": "x\n",
            "a list": "[]\n",
            "nested": nested(10**5, "{") + "\n",
            "of huge steps": '{"kind": "training", "step": 1' + "0" * 400 + ', "loss": 1}\n',
            "of infinite losses": '{"kind": "training", "step": 1, "loss": 1e999}\n',
            "of escapes": json.dumps({"kind": "training", "step": 1, "loss": 1, ESCAPE: 2}) + "\n",
            "one long line": '{"kind": "' + "x" * 20_000_000 + '"}\n',
            "not UTF-8": b"\xff\n",
        }.items()
    },
    "log is a pipe": lambda folder: become_pipe(folder / "metrics.jsonl"),
    "log is /dev/zero": lambda folder: become_link(folder / "metrics.jsonl", "/dev/zero"),
    "checkpoint is a link to itself": lambda folder: become_link(
        folder / "checkpoints" / "step-000000009", "step-000000009"
    ),
    "checkpoint has code": lambda folder: replace(
        checkpoint(folder) / "sitecustomize.py", "import os; os.system('touch executed')"
    ),
    "checkpoint has a pickle": lambda folder: replace(
        checkpoint(folder) / ".metadata", b"cos\nsystem\n(S'touch executed'\ntR."
    ),
}

_RANKS = (-1, 0, 3, 1.5, 10**9, 10**30, "x", None, True)
LORA_ATTACKS: dict[str, Attack] = {
    **{
        f"lora {name} #{number}": partial(_run, ("lora", name), value)
        for name, options in {
            "rank": _RANKS,
            "alpha": (-1, 0, 1e308, float("nan"), "x", None),
            "dropout": (-1, 1, 2, "x"),
            "targets": ("", "x", "head", ESCAPE, "a," * 10**5, 5, None, ["qkv"]),
            "embeddings": (True, "x", 5),
        }.items()
        for number, value in enumerate(options)
    },
    "lora itself": partial(_run, ("lora",), {"kind": "os.system"}),
    **{
        f"init_from #{number}": partial(_run, ("init_from",), value)
        for number, value in enumerate(("/dev/zero", "../../..", ESCAPE, "evil/evil", 5, None))
    },
    "adapters are NaN": partial(_tensors, _nan),
    "adapters are missing": partial(
        _tensors, lambda t: {n: v for n, v in t.items() if "lora_" not in n}
    ),
    "adapters are wide": partial(
        _tensors, lambda t: {n: v.repeat(2, 2) if "lora_" in n else v for n, v in t.items()}
    ),
}
"""On the folder of a run that trains adapters."""
