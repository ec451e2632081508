"""Hostile model folders, in gidd's layout and in the authors'."""

import io
import json
import pickle
import struct
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
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
    sign_model,
    write_json,
    write_tensors,
)

RECORD, WEIGHTS, CONFIG = "gidd.json", "model.safetensors", "config.json"
_SIZES = (-1, 0, 1.5, 10**5, 10**9, 10**30, True, None, ESCAPE, [1])
_TEXTS = (None, 5, "", ESCAPE, "os.system", ["dit"], {"kind": "dit"})


def _fields() -> dict[str, Attack]:
    """One field of gidd.json replaced at a time."""
    values: dict[tuple[str, ...], tuple[Any, ...]] = {
        ("format",): (0, 2, "1", None, ESCAPE, 10**30),
        ("model",): (None, [], "dit", {}, ESCAPE, {"kind": "dit"}),
        ("model", "kind"): _TEXTS,
        **{("model", name): _SIZES for name in ("vocab_size", "width", "num_layers", "num_heads")},
        ("model", "max_length"): (*_SIZES, 10**10),
        ("model", "time_width"): (-1, 10**9, None, ESCAPE, 17),
        ("model", "dropout"): (-1, 1, 1e308, "x", None),
        ("model", "checkpoint_activations"): (1, "x", None, []),
        ("schedule",): (
            None,
            [],
            {},
            "hybrid",
            {"kind": "mixture"},
            {"kind": "mixture", "components": 5},
        ),
        ("schedule", "kind"): _TEXTS,
        ("schedule", "p_uniform"): (-1, 1, 2, 1e308, 10**400, "x", None, [], 1e-320),
        ("schedule", "gamma"): (-1, 0, 1e308, 10**400, "x", None, {}),
        ("vocabulary",): (None, [], 300, {}, {"kind": "vocabulary"}),
        ("vocabulary", "size"): (*_SIZES, 10**10, 299, 301),
        ("vocabulary", "mask_id"): (-1, 299.0, 320.0, 10**30, "x", True, [], 0),
        ("vocabulary", "pad_id"): (-1, 298.5, 10**30, "x", False, {}),
        ("files",): (None, [], {}, 5, "model.safetensors", {WEIGHTS: None, "x": 1}),
        ("files", WEIGHTS): (None, 5, "", "x", ESCAPE, ["a"]),
        ("training",): (None, [], 5, "x", ESCAPE, [ESCAPE], {"steps": {}}, {"steps": ESCAPE}),
    }
    return {
        f"field {'.'.join(path)} #{number}": partial(_edit, path, value)
        for path, options in values.items()
        for number, value in enumerate(options)
    }


def _edit(path: tuple[str, ...], value: Any, folder: Path) -> None:
    edit_json(folder / RECORD, path, value)


def _record(text: str | bytes, folder: Path) -> None:
    replace(folder / RECORD, text)


def _more_keys(folder: Path) -> None:
    record = json.loads((folder / RECORD).read_text())
    write_json(folder / RECORD, record | {"auto_map": {"AutoModel": "evil.Evil"}, ESCAPE: 1})


def _duplicate_keys(folder: Path) -> None:
    text = (folder / RECORD).read_text()
    replace(folder / RECORD, text.replace('"format": 1', '"format": 2, "format": 1'))


def _mixture(components: Any, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """A mixture schedule with the given noise tensors."""
    record = json.loads((folder / RECORD).read_text())
    save_file(tensors, folder / "schedule.safetensors")
    record["files"]["schedule.safetensors"] = ""
    record["schedule"] = {"kind": "mixture", "components": components}
    write_json(folder / RECORD, record)
    sign_model(folder)


_AMOUNT = {"kind": "ramp"}
_UNIFORM = torch.full((300,), 1 / 300, dtype=torch.float64)
_MIXTURES: dict[str, Attack] = {
    f"mixture #{number}": partial(_mixture, components, tensors)
    for number, (components, tensors) in enumerate(
        [
            ([], {"noise.0": _UNIFORM}),
            ([{"noise": ["noise.0"], "amount": _AMOUNT}], {"noise.0": _UNIFORM}),
            ([{"noise": "noise.0", "amount": None}], {"noise.0": _UNIFORM}),
            ([{"noise": "noise.0", "amount": _AMOUNT}], {"noise.0": _UNIFORM[:5].clone()}),
            ([{"noise": "noise.0", "amount": _AMOUNT}], {"noise.0": torch.zeros(300)}),
            ([{"noise": "noise.0", "amount": _AMOUNT}], {"noise.0": torch.full((300,), torch.nan)}),
            ([{"noise": "noise.0", "amount": _AMOUNT}], {"noise.0": torch.zeros(300).bool()}),
            ([{"noise": "noise.0", "amount": _AMOUNT}], {"noise.0": torch.zeros(300, 0, 5)}),
            ([{"noise": "noise.0", "amount": _AMOUNT}] * 1000, {"noise.0": _UNIFORM}),
            ([{"noise": ESCAPE, "amount": _AMOUNT}], {ESCAPE: _UNIFORM}),
            ([5, "x"], {"noise.0": _UNIFORM}),
        ]
    )
}


def _header(change: Any, folder: Path) -> None:
    """Change the header of the weights by a function, and sign."""
    header, data = read_tensors(folder / WEIGHTS)
    header, data, size = change(header, data)
    write_tensors(folder / WEIGHTS, header, data, size)
    sign_model(folder)


def _put(path: tuple[Any, ...], value: Any) -> Any:
    return lambda header, data: (put(header, path, value), data, None)


def _empty(name: str, end: int) -> dict[str, Any]:
    """Entries of 10^5 tensors without elements."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
    return {name.format(k): entry for k in range(10**5)}


_FIRST = "blocks.0.attention.qkv.weight"
_HEADERS: dict[str, Attack] = {
    f"header: {name}": partial(_header, change)
    for name, change in {
        "shape of 10^18": _put((_FIRST, "shape"), [10**18]),
        "shape overflows": _put((_FIRST, "shape"), [2**40, 2**40]),
        "offsets beyond the end": _put((_FIRST, "data_offsets"), [0, 10**15]),
        "offsets overlap": _put((_FIRST, "data_offsets"), [0, 12288]),
        "unknown dtype": _put((_FIRST, "dtype"), "PICKLE"),
        "metadata of escapes": lambda h, d: ({**h, "__metadata__": {ESCAPE: ESCAPE}}, d, None),
        "half of the data": lambda h, d: (h, d[: len(d) // 2], None),
        "claims 2^63 bytes": lambda h, d: (h, d, 2**63),
        "claims 2^31 bytes": lambda h, d: (h, d, 2**31),
        "not JSON": lambda h, d: (b"\xff" * 100, d, None),
        "nested": lambda h, d: (nested(10**5, "{").encode(), d, None),
        "10^5 more tensors": lambda h, d: (h | _empty("x{}", len(d)), d, None),
        "padding of 50 MB": lambda h, d: (json.dumps(h).encode() + b" " * 50_000_000, d, None),
    }.items()
}


def _tensors(change: Any, folder: Path) -> None:
    """Change the tensors by a function, and sign."""
    tensors = load_file(folder / WEIGHTS)
    save_file({name: t.contiguous() for name, t in change(tensors).items()}, folder / WEIGHTS)
    sign_model(folder)


def _fill(value: float, name: str = _FIRST) -> Any:
    return lambda tensors: tensors | {name: torch.full_like(tensors[name], value)}


def _rename(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {ESCAPE + name: tensor for name, tensor in tensors.items()}


_CONTENTS: dict[str, Attack] = {
    f"tensors: {name}": partial(_tensors, change)
    for name, change in {
        "one is nan": _fill(float("nan")),
        "one is infinite": _fill(float("inf")),
        "all are huge": lambda t: {n: torch.full_like(v, 3e38) for n, v in t.items()},
        "names are escapes": _rename,
        "one name is long": lambda t: t | {"x" * 10**6: torch.zeros(1)},
        "one is missing": lambda t: {n: v for n, v in t.items() if n != _FIRST},
        "float8": lambda t: {n: v.to(torch.float8_e4m3fn) for n, v in t.items()},
        "complex": lambda t: t | {_FIRST: t[_FIRST].to(torch.complex64)},
        "other shape": lambda t: t | {_FIRST: t[_FIRST].T},
    }.items()
}


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("touch executed",)


def _pickle(name: str, folder: Path) -> None:
    """A pickle in place of the weights."""
    (folder / WEIGHTS).unlink()
    (folder / name).write_bytes(pickle.dumps(_Evil()))


def _zip(folder: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(_Evil()))
    replace(folder / WEIGHTS, buffer.getvalue())
    sign_model(folder)


def _code(folder: Path) -> None:
    """Code beside the weights, which other libraries would import."""
    for name in ("modeling_dit.py", "gidd.py", "torch.py", "sitecustomize.py", "__init__.py"):
        (folder / name).write_text("import os\nos.system('touch executed')\n")


_FILES: dict[str, Attack] = {
    "record is empty": partial(_record, ""),
    "record is not UTF-8": partial(_record, b"\xff\xfe{}"),
    "record is nested 10^5": partial(_record, '{"a": ' + nested(10**5) + "}"),
    "record has 10^7 values": partial(_record, '{"a": [' + "[]," * 10**7 + "[]]}"),
    "record of 20 MB": partial(_record, '{"a": "' + "x" * 20_000_000 + '"}'),
    "record has more keys": _more_keys,
    "record has duplicate keys": _duplicate_keys,
    "record is a pipe": lambda folder: become_pipe(folder / RECORD),
    "record is /dev/zero": lambda folder: become_link(folder / RECORD, "/dev/zero"),
    "weights are a pipe": lambda folder: become_pipe(folder / WEIGHTS),
    "weights are /dev/zero": lambda folder: become_link(folder / WEIGHTS, "/dev/zero"),
    "weights are missing": lambda folder: (folder / WEIGHTS).unlink(),
    "weights are empty": lambda folder: replace(folder / WEIGHTS, b""),
    "weights are sparse": lambda folder: replace(folder / WEIGHTS, struct.pack("<Q", 10**12)),
    "weights are a zip": _zip,
    "pickle .bin": partial(_pickle, "pytorch_model.bin"),
    "pickle as safetensors": partial(_pickle, WEIGHTS),
    "code": _code,
}

ATTACKS: dict[str, Attack] = {**_fields(), **_MIXTURES, **_HEADERS, **_CONTENTS, **_FILES}
"""On a folder in gidd's layout."""


def _config(path: tuple[str, ...], value: Any, folder: Path) -> None:
    edit_json(folder / CONFIG, path, value)


def _published(change: Any, folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({name: t.contiguous() for name, t in change(tensors).items()}, folder / WEIGHTS)


_COS = "rotary_emb.cos_cached"
PUBLISHED_ATTACKS: dict[str, Attack] = {
    **{
        f"config {name} #{number}": partial(_config, (name,), value)
        for name, options in {
            "model_type": ("llama", "x", None, ESCAPE, ["dit"]),
            "vocab_size": (-1, 10**10, 10**30, 1.5, "x", None),
            "max_seq_len": (-1, 0, 10**6, 10**10, 10**30, "x", None, 31),
            "hidden_size": (-1, 10**9, 8 * 10**15, 8 * 10**30, "x", None),
            "num_hidden_layers": (-1, 0, 1, 10**5, 10**9, 10**30, "x"),
            "num_attention_heads": (-1, 0, 10**9, 3, "x"),
            "timestep_cond_dim": (-1, 10**12, "x", None),
            "p_uniform": ("x", None, [], {}, -1, 2, 10**400, True, ESCAPE),
            "auto_map": ({"AutoModel": "evil.Evil"}, None),
        }.items()
        for number, value in enumerate(options)
    },
    **{
        f"published: {name}": partial(_published, change)
        for name, change in {
            "rotary angles are short": lambda t: t | {_COS: t[_COS][:, :4]},
            "rotary angles are nan": lambda t: t | {_COS: torch.full_like(t[_COS], torch.nan)},
            "rotary angles are missing": lambda t: {n: v for n, v in t.items() if n != _COS},
            "float8": lambda t: {n: v.to(torch.float8_e5m2) for n, v in t.items()},
            "names are escapes": lambda t: {ESCAPE + n: v for n, v in t.items()},
        }.items()
    },
    "config is nested": lambda folder: replace(folder / CONFIG, '{"a": ' + nested(10**5) + "}"),
    "config is a pipe": lambda folder: become_pipe(folder / CONFIG),
    "code": _code,
}
"""On a folder in the authors' layout."""
