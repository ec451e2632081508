"""`gidd score` and `gidd eval ppl` as a user types them."""

import io
import json
import sys

import pytest
from support.small_model import TEXT, write_model

import gidd
from gidd.cli import main, score as score_command
from gidd.cli.output import CliConsole

CPU = ["--device", "cpu"]
FEW = ["--nodes", "2", "--repeats", "2", *CPU]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def files(tmp_path) -> list[str]:
    names = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for name, text in zip(names, (TEXT, "Peace – and “plenty”\x1b[2J"), strict=True):
        name.write_text(text)
    return list(map(str, names))


def run(capsys, *words: str) -> str:
    main(words)
    return capsys.readouterr().out


def mistake(capsys, *words: str) -> str:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    return capsys.readouterr().err


@pytest.mark.slow
def test_score_prints_the_numbers_of_the_pipeline(capsys, model, files):
    lines = run(capsys, "score", model, files[0], *FEW).splitlines()
    expected = gidd.from_pretrained(model, device="cpu").score(TEXT, nodes=2, repeats=2)
    values = {line[:15].strip(): line[16:] for line in lines}
    assert values["NELBO"] == f"{expected.nelbo:.2f} ± {expected.standard_error:.2f} nats"
    assert values["perplexity"].startswith(f"{expected.perplexity:.2f} ± ")
    per_byte = expected.nelbo / len(TEXT.encode()) / 0.6931471805599453
    assert values["bits per byte"].startswith(f"{per_byte:.4f} ± ")
    assert values["error rate"] == f"{expected.noise_level}, estimated"
    assert values["forward passes"] == str(expected.forward_passes)


@pytest.mark.slow
def test_several_files_are_scored_together_one_line_each(capsys, model, files):
    table = run(capsys, "score", model, *files, *FEW).splitlines()
    assert [line.split()[0] for line in table] == ["file", *files]
    rows = [
        json.loads(line)
        for line in run(capsys, "score", model, *files, "--jsonl", *FEW).splitlines()
    ]
    assert [row["file"] for row in rows] == files
    for row, line in zip(rows, table[1:], strict=True):
        assert f" {row['nelbo']:.2f} ± " in line
        assert len(row["confidence"]) == len(row["tokens"])
        assert row["manifest"]["nodes"] == 2
        assert row["reconstruction"] > 0 < row["prior"]
        assert row["forward_passes"] > 0
        noise = row["noise_level"]
        assert noise["low"] <= noise["error_rate"] <= noise["high"]
    assert " error rate" in table[0] and "%), estimated" in table[1]


@pytest.mark.slow
def test_text_and_standard_input_are_the_same_text(capsys, model, monkeypatch):
    option = json.loads(run(capsys, "score", model, "--text", TEXT, "--jsonl", *FEW))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    piped = json.loads(run(capsys, "score", model, "-", "--jsonl", *FEW))
    assert piped["file"] == "standard input"
    assert (piped["text"], piped["nelbo"]) == (TEXT, option["nelbo"])


def test_a_terminal_shows_unlikely_tokens_in_colour(model, files, monkeypatch):
    """The text itself is unchanged, but for control characters."""
    shown = io.StringIO()
    monkeypatch.setattr(
        score_command,
        "CliConsole",
        lambda **settings: CliConsole(
            file=shown, force_terminal=True, color_system="standard", width=200, **settings
        ),
    )
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["score", model, files[1], *FEW])
    text, legend, *_ = shown.getvalue().partition("confidence: ")
    assert legend
    assert "\x1b[1;37;41m" in text  # bold white on red
    plain = text
    for code in ("\x1b[1;37;41m", "\x1b[30;43m", "\x1b[0m"):
        plain = plain.replace(code, "")
    assert plain.strip() == "Peace – and “plenty”\ufffd[2J"


def test_a_model_of_masking_alone_shows_no_colours(capsys, tmp_path):
    folder = str(write_model(tmp_path, p_uniform=0.0))
    found = json.loads(run(capsys, "score", folder, "--text", TEXT, "--jsonl", *FEW))
    assert found["confidence"] is None is found["noise_level"]
    assert found["nelbo"] > 0
    assert "error rate" not in run(capsys, "score", folder, "--text", TEXT, *FEW)


def test_ppl_prints_documents_and_saves_them(capsys, model, files, tmp_path):
    out = tmp_path / "ppl.json"
    words = ["eval", "ppl", model, *files, *FEW]
    printed = run(capsys, *words, "--by", "document", "--out", str(out))
    result = json.loads(out.read_text())
    for row, line in zip(result["rows"], printed.splitlines()[1:3], strict=True):
        assert line.split()[:4] == [
            row["id"],
            str(row["tokens"]),
            str(row["bytes"]),
            f"{row['nelbo']:.2f}",
        ]
    assert "\nppl " in printed
    assert "2 documents, " in printed
    again = json.loads(run(capsys, *words, "--json"))
    assert (again["measurements"], again["rows"]) == (result["measurements"], result["rows"])
    assert "context 32" in mistake(capsys, "eval", "ppl", model, *files, "--length", "40", *CPU)
