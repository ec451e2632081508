"""The command `gidd-proof`: what it prints and writes, and mistakes of a user."""

import json
import subprocess
import sys

import gidd_proof
import pytest
from gidd_proof import cli, demo
from gidd_proof.cli import main
from gidd_proof.demo import WordCounts, count_words
from gidd_proof.proofreader import MIN_CONFIDENCE

RATE = ["--error-rate", "0.05"]
LETTER = "the peopel of the union\ncame togehter.\n"


@pytest.fixture(autouse=True)
def _packaged_model(proofreader, monkeypatch, tmp_path):
    monkeypatch.setattr(gidd_proof, "load", lambda *_, **__: proofreader, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.txt").write_text(LETTER)


def run(capsys, *words: str) -> str:
    main([*words])
    return capsys.readouterr().out


def test_a_pipe_gets_the_text_and_files_change_only_in_place(capsys, tmp_path):
    fixed = LETTER.replace("peopel", "people").replace("togehter", "together")
    assert run(capsys, "letter.txt", *RATE) == fixed
    assert (tmp_path / "letter.txt").read_text() == LETTER
    assert "-the peopel of the union" in run(capsys, "letter.txt", *RATE, "--diff")
    assert run(capsys, "letter.txt", *RATE, "--in-place") == ""
    assert (tmp_path / "letter.txt").read_text() == fixed


def test_json_of_texts_and_of_places(capsys):
    assert json.loads(run(capsys, "letter.txt", "--jsonl"))["noise_level"]["time"] is None
    row = json.loads(run(capsys, "letter.txt", *RATE, "--jsonl", "--protect", "togehter"))
    assert row["text"] == LETTER.replace("peopel", "people")
    lines = run(capsys, "letter.txt", *RATE, "--suggest").splitlines()
    places = {edit["old"]: edit for edit in map(json.loads, lines)}
    assert places["togehter"]["new"] == "together"
    assert (places["togehter"]["line"], places["togehter"]["column"]) == (2, 6)


def test_the_review_decides(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("gidd_proof.review.require_terminal", lambda: None)
    monkeypatch.setattr("gidd_proof.review.press_key", lambda: "r")
    run(capsys, "letter.txt", *RATE, "--in-place", "--interactive")
    assert (tmp_path / "letter.txt").read_text() == LETTER


def test_words_are_counted(capsys, tmp_path):
    assert "6 words" in run(capsys, "count-words", "letter.txt", "--out", "words.txt")
    assert (tmp_path / "words.txt").read_text().startswith("the\t2\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["letter.txt", "--min-confidence", "2"], "--min-confidence must be in [0, 1], got 2"),
        (["letter.txt", "--error-rate", "1"], "--error-rate must be in [0, 1), got 1"),
        (["letter.txt", "--diff", "--jsonl"], "exclude each other"),
        (["letter.txt", "--suggest", "--in-place"], "--suggest only prints"),
        (["letter.txt", "--protect", "("], "--protect must be a regular expression"),
        (["letter.txt", "--errors", "qwertz"], "keyboard, ocr or a file"),
        (["letter.txt", "--interactive"], "--interactive needs a terminal"),
        (["missing.txt"], "missing.txt cannot be read"),
        (["learn-errors", "missing.tsv", "--out", "a.json"], "missing.tsv cannot be read"),
    ],
)
def test_mistakes_end_in_one_message(capsys, words, message):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_help_imports_nothing_heavy():
    code = "import sys; from gidd_proof.cli import main\ntry: main(['--help'])\n"
    code += "except SystemExit: pass\nheavy = {'torch', 'numpy', 'tokenizers', 'safetensors'}"
    code += "\nassert not heavy & set(sys.modules), heavy & set(sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "gidd-proof letter.txt" in shown.stdout
    assert cli.ProofCommand().min_confidence == MIN_CONFIDENCE


def test_the_demo_says_what_it_did(capsys, monkeypatch):
    monkeypatch.setattr(demo, "CLEAN_PAGE", "to the people of the states")
    monkeypatch.setattr(demo, "TYPED_PAGE", "to the peopel of the states")
    out = " ".join(run(capsys, "demo").split())
    assert "1 of 1 wrong words fixed, 0 good words changed" in out
    assert "gidd-proof letter.txt --interactive" in out


def test_words_of_a_correction_are_counted():
    clean, typed = "to the people of the states", "to teh peopel off the states"
    assert count_words(clean, typed, typed) == WordCounts(3, 0, 0)
    assert count_words(clean, typed, clean) == WordCounts(3, 3, 0)
    assert count_words(clean, typed, "to the people off thestates") == WordCounts(3, 2, 2)
    assert len(demo.CLEAN_PAGE.split()) == len(demo.TYPED_PAGE.split())
