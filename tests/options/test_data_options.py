"""Every keyword of `gidd.data.prepare`, and option of its command, has an effect or is refused.

The result is the folder: the names and bytes of its files, but not the recorded command line.
"""

import json
from dataclasses import fields
from importlib import import_module
from inspect import signature
from typing import Any

import pytest
from support.options import check_option

from gidd.cli import main
from gidd.cli.data import prepare_command
from gidd.data.preparation.executors import RayOptions, SlurmOptions
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import byte_level, train_characters

TEXTS = [f"Document {i} of many. " * (i % 5 + 1) for i in range(20)]
CHAT = [{"prompt": f"add {i} 2", "response": str(i + 2)} for i in range(20)]
NAMES = {"mask": "<m>", "end": "<e>", "pad": "<p>"}

module = import_module("gidd.data.preparation.prepare")

AWAY: dict[str, Any] = {
    "sources": "b.jsonl",
    "tokenizer": "chars",
    "out": "other",
    "validation": 4,
    "validation_order": ({"validation": 4, "tasks": 4}, "spaced"),
    "format": ({"sources": "chats.jsonl"}, "chat"),
    "tasks": 3,
    "workers": 2,
    "quiet": True,
    # of the command only
    "mask": ({"tokenizer": "named"}, "<m>"),
    "end": ({"tokenizer": "named"}, "<e>"),
    "pad": ({"tokenizer": "named"}, "<p>"),
    "revision": "main",
    "executor": "ray",
    "address": "auto",
    "partition": "cpu",
    "time": "1:00:00",
    "qos": "high",
    "account": "a",
    "setup": "true",
}
"""A value other than the default, perhaps with what must be set for it to matter."""


def away(name: str) -> tuple[dict[str, Any], Any]:
    value = AWAY.get(name, 7)  # a number of resources
    return value if isinstance(value, tuple) else ({}, value)


@pytest.fixture
def prepared(tmp_path, monkeypatch, capsys):
    """Prepares in a folder of its own; returns its files, the processes, and what is printed."""
    monkeypatch.chdir(tmp_path)
    rows = {"a": TEXTS, "b": TEXTS[1:]}
    files = {name: [{"text": text} for text in texts] for name, texts in rows.items()}
    files["chats"] = [row | {"text": "a"} for row in CHAT]
    for name, lines in files.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    tokenizer = byte_level()
    tokenizer._inner.add_special_tokens(list(NAMES.values()))
    tokenizer.save(tmp_path / "named")
    processes, run = [], module.run_tasks

    def record(function, work, workers, done):
        processes.append(workers)
        run(function, work, 1, done)

    monkeypatch.setattr(module, "run_tasks", record)
    shown, show = [], module.show_counts
    monkeypatch.setattr(module, "show_counts", lambda title: shown.append(title) or show(title))
    numbers = iter(range(100))

    def call(is_command: bool, **changes: Any) -> Any:
        base = tmp_path / f"run{next(numbers)}"
        shown.clear()
        arguments = {"sources": "a.jsonl", "tokenizer": "bytes", "out": "out"} | changes
        out = arguments["out"] = base / arguments["out"]
        if is_command:
            words = ["data", "prepare", str(arguments.pop("sources"))]
            for name, value in arguments.items():
                words += [f"--{name.replace('_', '-')}", str(value)]
            main(words)
        else:
            kinds = {"bytes": byte_level, "chars": lambda: train_characters(TEXTS)}
            arguments["tokenizer"] = kinds[arguments["tokenizer"]]()
            prepare(**arguments)
        manifest = json.loads((out / "manifest.json").read_text())
        manifest = {k: v for k, v in manifest.items() if k not in ("command", "settings")}
        capsys.readouterr()
        shards = {str(f.relative_to(out)): f.read_bytes() for f in sorted(out.glob("*/*.ds*"))}
        return out.name, manifest, shards, processes[-1], len(shown)

    return call


@pytest.mark.parametrize("name", signature(prepare).parameters)
def test_a_keyword_has_an_effect(request, prepared, name):
    needs, value = away(name)
    default = prepared(False, **needs)
    changes = needs | {name: value}
    check_option(request, "data.prepare", name, default, lambda: prepared(False, **changes))


def options_of_the_command() -> list[str]:
    names = [name for name in signature(prepare_command).parameters if name not in ("slurm", "ray")]
    for prefix, kind in (("slurm", SlurmOptions), ("ray", RayOptions)):
        names += [f"{prefix}.{field.name}" for field in fields(kind)]
    return names


@pytest.mark.parametrize("name", options_of_the_command())
def test_an_option_of_the_command_has_an_effect_or_is_refused(
    request, prepared, capsys, monkeypatch, name
):
    needs, value = away(name.rpartition(".")[2])
    default = prepared(True, **needs)
    if name == "executor":
        monkeypatch.setattr("gidd.cli.data.run_on_ray", lambda *_: pytest.fail("on Ray"))
        with pytest.raises(pytest.fail.Exception, match="on Ray"):
            prepared(True, executor="ray")
        return

    def changed() -> Any:
        try:
            return prepared(True, **needs | {name: value})
        except SystemExit:
            raise SystemExit(capsys.readouterr().err) from None

    check_option(request, "gidd data prepare", name, default, changed)
