"""What comes from files cannot control a terminal: commands on a pseudo-terminal."""

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.sandbox import Result, Sandbox
from support.small_model import TEXT, write_model

from gidd import cli
from gidd.cli import main
from gidd.common.files import sha256
from gidd.data.manifest import DATA_MANIFEST
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import train_tokenizer

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")

HOSTILE = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202e[bold]:smile:"
SHOWN = "PWNED\ufffd\ufffd[2J\ufffd31m\ufffd[bold]:smile:"
NOT_UTF8 = os.fsdecode(b"\xff\x1b[2Jname")
FORMULA = "\x1b[2J $\\frac$"
"""Matplotlib would read it as a formula, which is not valid."""


def prepare_documents(folder: Path, out: Path) -> None:
    folder.mkdir()
    for i in range(6):
        (folder / f"{i}.txt").write_text(f"{HOSTILE} {i} " * 3)
    prepare([folder], train_tokenizer([TEXT], 270), out, validation=2, tasks=2, quiet=True)


def rename_splits_and_shards(data: Path, out: Path) -> None:
    """Copy a prepared folder; a split and the shards of the other have hostile names."""
    shutil.copytree(data, out)
    record = json.loads((out / DATA_MANIFEST).read_text())
    (out / "validation").rename(out / HOSTILE)
    record["splits"][HOSTILE] = record["splits"].pop("validation")
    for name, split in record["splits"].items():
        for number, shard in enumerate(split["shards"]):
            old = out / name / Path(shard["file"]).name
            new = out / name / f"{HOSTILE}{number}.ds"
            old.rename(new)
            Path(f"{old}.index").rename(f"{new}.index")
            shard["file"] = f"{name}/{new.name}"
    (out / DATA_MANIFEST).write_text(json.dumps(record))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    write_model(folder / "model")
    shutil.copytree(folder / "model", folder / "evil")
    weights = folder / "evil" / "model.safetensors"
    save_file(load_file(weights) | {HOSTILE: torch.zeros(1)}, weights)
    record = json.loads((folder / "evil" / "gidd.json").read_text())
    record["files"][weights.name] = sha256(weights)
    (folder / "evil" / "gidd.json").write_text(json.dumps(record))
    (folder / "sources").mkdir()
    (folder / "sources" / f"{HOSTILE}.txt").write_bytes(b"\xff\xfe")
    (folder / f"{HOSTILE}.txt").write_bytes(b"\xff\xfe")
    (folder / f"{HOSTILE} letter.txt").write_text(TEXT)
    prepare_documents(folder / "documents", folder / "data")
    rename_splits_and_shards(folder / "data", folder / "names")
    (folder / f"{NOT_UTF8}.txt").write_text(TEXT)
    for name, line in ((f"damaged {HOSTILE}", f"{{{HOSTILE}\n"), (NOT_UTF8, ""), (FORMULA, "")):
        (folder / name).mkdir()
        metrics = {"kind": "training", "step": 1, "nelbo": 1.0, HOSTILE: 1.0}
        (folder / name / "metrics.jsonl").write_text(json.dumps(metrics) + "\n" + line)
    return folder


@pytest.fixture(scope="module")
def sandbox(folder) -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        sandbox.run(["correct", "--text", "Peace", "--model", "model"], folder, warm_up=True)
        yield sandbox


def require_harmless(result: Result) -> None:
    """No control character but line ends, and no traceback."""
    text = result.output.decode()  # raises if it is not UTF-8
    assert not [c for c in text if not c.isprintable() and c not in "\r\n"]
    assert "Traceback" not in text


LETTER = f"{HOSTILE} letter.txt"
FEW = ["--model", "model", "--error-rate", "0.4"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "shown"),
    [
        (["sample", "evil"], 2, "PWNED"),
        (["data", "prepare", "sources", "--tokenizer", "model", "--out", "out"], 2, SHOWN),
        (["correct", f"{HOSTILE}.txt", *FEW], 2, SHOWN),
        (["correct", f"{HOSTILE}-not-there", *FEW], 2, SHOWN),
        (["correct", LETTER, *FEW, "--diff"], 0, SHOWN),
        (["correct", LETTER, NOT_UTF8 + ".txt", *FEW], 2, "a name in UTF-8, got '\\udcff"),
        (["correct", "--text", HOSTILE, *FEW], 0, "wrong as given"),
        (["infill", "model", "\x1b[2J\x9b31m[MASK]", "--steps", "2"], 0, "\ufffd[2J\ufffd31m"),
        (["data", "show", "data"], 0, SHOWN),
        (["data", "show", "names"], None, "PWNED"),
        (["data", "verify", "names"], None, "names"),
        (["plot", f"damaged {HOSTILE}"], 2, SHOWN),
        (["sample", "model", f"--{HOSTILE}"], 2, "PWNED"),
        (["sample", f"{HOSTILE}-no-model"], 2, SHOWN),
        ([HOSTILE], 2, "PWNED"),
        (["train", HOSTILE], 2, "PWNED"),
        (["plot", NOT_UTF8], 0, "\ufffd\ufffd[2Jname"),
        (["plot", NOT_UTF8, FORMULA, "--out", "two.png"], 0, "two.png"),
        (["export", NOT_UTF8, "--out", "out"], 2, "\ufffd\ufffd[2Jname"),
        (
            ["data", "tokenizer", "documents", "--vocab-size", "270", "--out", NOT_UTF8],
            0,
            "\ufffd\ufffd[2Jname",
        ),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, list) else "",
)
def test_nothing_from_a_file_or_its_name_controls_the_terminal(
    sandbox, folder, words, status, shown
):
    result = sandbox.run(words, folder)
    require_harmless(result)
    assert status in (None, result.status), result.text
    assert shown in result.text.replace("\n", "")


@pytest.mark.slow
def test_a_pipe_gets_every_byte_of_a_file_name(capfdbinary, folder, monkeypatch):
    monkeypatch.chdir(folder)
    main(["plot", NOT_UTF8])
    assert capfdbinary.readouterr().out == os.fsencode(f"{NOT_UTF8}/curves.png\n")


def test_warnings_are_printed_once_without_control_characters(capsys, caplog, monkeypatch):
    def warn(_: object) -> None:
        logging.getLogger("gidd.data").warning("%s is lossy", HOSTILE)
        logging.getLogger("gidd.data").info("not shown")

    monkeypatch.setattr(cli.importlib, "import_module", lambda _: SimpleNamespace(main=warn))
    for _ in range(2):
        main(["sample"])
        assert capsys.readouterr().err == f"gidd: \ufffd]0;{SHOWN} is lossy\n"
    assert len(caplog.records) == 2
    assert not logging.getLogger("gidd").handlers


@pytest.fixture
def shard(folder, tmp_path) -> Path:
    shutil.copytree(folder / "data", tmp_path / "data")
    return tmp_path / "data" / "train" / "00000.ds"


def rewrite_ends(shard: Path, change) -> None:
    index = Path(f"{shard}.index")
    ends = np.fromfile(index, "<u8")
    change(ends)
    ends.astype("<u8").tofile(index)


def swap(ends: np.ndarray) -> None:
    ends[0] = ends[-1] + 1


def overflow(ends: np.ndarray) -> None:
    ends[:2] = (2**63 - 1, 2**64 - 2)  # as signed integers, no length is negative


DAMAGE = {
    "ends decrease": lambda shard: rewrite_ends(shard, swap),
    "ends overflow": lambda shard: rewrite_ends(shard, overflow),
    "no documents": lambda shard: Path(f"{shard}.index").write_bytes(b""),
    "tokens": lambda shard: shard.write_bytes(b"\xff" * shard.stat().st_size),
    "missing": lambda shard: shard.unlink(),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_data_show_refuses_a_damaged_shard(capsys, shard, kind):
    DAMAGE[kind](shard)
    with pytest.raises(SystemExit) as stopped:
        main(["data", "show", str(shard.parents[1])])
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert "00000.ds" in err
    assert err.count("\n") == 1


def no_splits(record: dict) -> None:
    record["splits"] = {}


def no_train(record: dict) -> None:
    del record["splits"]["train"]


def no_documents(record: dict) -> None:
    record["splits"]["validation"] = {"documents": 0, "tokens": 0, "shards": []}


@pytest.mark.slow
@pytest.mark.parametrize("change", [no_splits, no_train, no_documents])
def test_data_show_refuses_a_manifest_without_documents(capsys, shard, change):
    path = shard.parents[1] / DATA_MANIFEST
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(SystemExit) as stopped:
        main(["data", "show", str(path.parent)])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("gidd: ")
