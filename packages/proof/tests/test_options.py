"""Every option of every command changes what the command does, or is refused."""

import re
from contextlib import suppress
from dataclasses import fields, replace

import gidd_proof
import pytest
from gidd_proof import check, cli, demo, lsp, serve

from gidd.errors import ConfigError

TEXT = "the peopel of the ubion\ncame togehter.\n"
WORDS, MODEL = ["--words", "mine"], ["--model", "a-model"]
SAME = {  # where an option has no effect: a text may be the same with another error model
    ("fix", "errors", ()),
    ("fix", "errors", ("--diff",)),
}
OPTIONS = {
    "fix": {
        "files": ["mine"],
        "text": ["--text", "a"],
        "model": MODEL,
        "min_confidence": ["--min-confidence", "1"],
        "error_rate": ["--error-rate", "0.5"],
        "words": WORDS,
        "errors": ["--errors", "keyboard"],
        "protect": ["--protect", "peopel"],
        "in_place": ["--in-place"],
        "interactive": ["--interactive"],
        "diff": ["--diff"],
        "suggest": ["--suggest"],
        "jsonl": ["--jsonl"],
        "device": ["--device", "cpu"],
    },
    "check": {
        "files": ["mine"],
        "format": ["--format", "brief"],
        "min_confidence": ["--min-confidence", "1"],
        "words": WORDS,
        "protect": ["--protect", "peopel"],
        "model": MODEL,
    },
    "serve": {
        "host": ["--host", "localhost"],
        "port": ["--port", "1"],
        "allow_origin": ["--allow-origin", "*"],
        "seconds": ["--seconds", "1"],
        "model": MODEL,
    },
    "demo": {"model": MODEL},
}
COMMANDS = {
    "fix": cli.ProofCommand,
    "check": check.CheckCommand,
    "serve": serve.ServeCommand,
    "demo": demo.DemoOptions,
}
OUTPUTS = {
    "fix": [(), ("--jsonl",), ("--diff",), ("--suggest",)],
    "check": [(), ("--format", "json")],
}


def observe(capsys, monkeypatch, folder, proofreader, words):
    """Return all that a command does: its status, output, files, what it loads and serves."""
    calls, unloaded = [], replace(proofreader, load_pipe=lambda: None)
    (folder / "letter.txt").write_text(TEXT)
    (folder / "mine").write_text("peopel\n")
    monkeypatch.setattr(
        gidd_proof, "load", lambda *a, **k: calls.append((a, k)) or unloaded, raising=False
    )

    def make_server(checker, *arguments):
        calls.append((checker._seconds, *arguments))
        raise OSError

    monkeypatch.setattr(serve, "make_server", make_server)
    with suppress(SystemExit):
        cli.main([*words])
    shown = re.sub(r'"seconds": [\d.]+|\d+ s\b', "", "".join(capsys.readouterr()))
    return shown, calls, (folder / "letter.txt").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_an_effect_or_is_refused(
    capsys, monkeypatch, tmp_path, proofreader, command
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "CLEAN_PAGE", "the people")
    monkeypatch.setattr(demo, "TYPED_PAGE", "the peopel")
    assert set(OPTIONS[command]) == {field.name for field in fields(COMMANDS[command])}
    for output in OUTPUTS.get(command, [()]):
        files = ["letter.txt"] if command in ("fix", "check") else []
        words = [command, *files, *output]
        before = observe(capsys, monkeypatch, tmp_path, proofreader, words)
        for name, option in OPTIONS[command].items():
            if set(option) & set(output) or (command, name, output) in SAME:
                continue
            after = observe(capsys, monkeypatch, tmp_path, proofreader, words + option)
            assert after != before, (name, output)


def test_options_of_the_language_server(monkeypatch, tmp_path, proofreader):
    pytest.importorskip("pygls", reason="needs the extra lsp")
    calls = []
    monkeypatch.setattr(
        gidd_proof, "load", lambda model: calls.append(model) or proofreader, raising=False
    )
    command = lsp.LspCommand(model="a-model", words=tmp_path / "mine")
    with suppress(RuntimeError):  # there is no text to check again
        lsp.make_server(command).protocol.fm.commands[lsp.ADD_WORD]("word", "file:///a")
    assert (calls, (tmp_path / "mine").read_text()) == (["a-model"], "word\n")


@pytest.mark.parametrize(
    "words",
    [
        ["--host", ""],
        ["--port", "65536"],
        ["--seconds", "0"],
        ["--seconds", "nan"],
        *(["--allow-origin", o] for o in ("", "null", "example.org", "https://a/", "HTTPS://a")),
    ],
)
def test_values_without_an_effect_are_refused(words):
    with pytest.raises(ConfigError, match=f"^{words[0]} must be .*got"):
        serve.serve(words)


def test_a_device_that_may_be_missing_is_tried_before_a_text_needs_it(monkeypatch):
    calls = []
    monkeypatch.setattr("gidd_proof.proofreader._load_pipe", lambda _, name: calls.append(name))
    for device in (None, "cpu", "cuda"):
        gidd_proof.load(device=device)
    assert calls == ["cuda"]
