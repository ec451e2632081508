"""`gidd data` as a user types it."""

import subprocess
import sys
from pathlib import Path

import pytest

REASON = 'needs `pip install "gidd[data]"`'
pytest.importorskip("fsspec", reason=REASON)

MAIN = "from gidd.cli import main; main()"


def gidd(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words], cwd=folder, capture_output=True, text=True
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "texts").mkdir()
    for i in range(20):
        (tmp_path / "texts" / f"{i:02d}.txt").write_text(
            f"Document {i} [bold]of[/bold] twenty. " * 9
        )
    return tmp_path


@pytest.mark.slow
def test_from_texts_to_shards(folder):
    made = gidd(folder, "data", "tokenizer", "--vocab-size", "280", "--out", "tok", "texts")
    assert made.returncode == 0, made.stderr
    assert "280 tokens" in made.stdout
    words = ["data", "prepare", "texts", "--tokenizer", "tok", "--out", "shards"]
    words += ["--validation", "3", "--tasks", "4", "--workers", "2"]
    made = gidd(folder, *words)
    assert made.returncode == 0, made.stderr
    assert "17 documents" in made.stdout
    assert "3 documents" in made.stdout
    again = gidd(folder, *words)
    assert again.returncode == 0, again.stderr
    assert again.stdout == made.stdout
    shown = gidd(folder, "data", "show", "shards")
    assert shown.returncode == 0, shown.stderr
    assert "Document 0 [bold]of[/bold] twenty." in shown.stdout
    assert "vocabulary size 280, stored as uint16" in shown.stdout
    checked = gidd(folder, "data", "verify", "shards", "--tokenizer", "tok")
    assert checked.returncode == 0, checked.stderr
    assert "all 5 shards are valid" in checked.stdout
    shard = folder / "shards" / "train" / "00001.ds"
    shard.write_bytes(shard.read_bytes()[:-2])
    broken = gidd(folder, "data", "verify", "shards")
    assert broken.returncode == 2
    assert "00001.ds" in broken.stderr
    assert "Traceback" not in broken.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dta"], "no command 'dta'"),
        (["data", "verify", "nothing"], "nothing does not exist"),
        (["data", "show", "nothing"], "nothing does not exist"),
        (["data", "show", "texts"], "texts/manifest.json does not exist"),
        (["data", "prepare", "texts", "--tokenizer", "a/b/c", "--out", "o"], "a/b/c is neither"),
        (["data", "tokenizer", "texts", "--vocab-size", "9", "--out", "o"], "at least 259"),
        (["data", "tokenizer", "texs", "--vocab-size", "300", "--out", "o"], "texs is neither"),
        (["data", "tokenizer", "--vocab-size", "300", "--out", "o"], "at least one"),
        (["data", "tokenizer", "texts", "--vocab-size", "many", "--out", "o"], "--vocab-size"),
        (["data", "prepare", "texts", "--out", "o"], "--tokenizer"),
    ],
)
def test_a_mistake_ends_in_one_message(folder, words, message):
    result = gidd(folder, *words)
    assert result.returncode == 2
    assert message in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from gidd.cli import main; main(['--help'])\n"
        "heavy = {'torch', 'numpy', 'tyro', 'rich', 'tokenizers', 'datatrove'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "data" in result.stdout


@pytest.mark.slow
def test_gidd_data_imports_neither_torch_nor_optional_packages():
    """Worker processes start by importing it."""
    code = (
        "import sys, gidd.data\n"
        "heavy = {'torch', 'tokenizers', 'aiohttp', 'datasets', 'fsspec', 'grain', 'pyarrow',\n"
        "         'huggingface_hub', 'datatrove', 'ray'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_corpora_are_listed(folder):
    result = gidd(folder, "data", "list")
    assert result.returncode == 0, result.stderr
    web = {"openwebtext", "fineweb", "lm1b", "wikitext", "tinystories", "text8"}
    for name in web | {"sotu", "markov", "hidden-markov", "hf:ORG/NAME"}:
        assert name in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", [[], ["tokenizer"], ["prepare"], ["show"], ["verify"]])
def test_help(folder, command):
    result = gidd(folder, "data", *command, "--help")
    assert result.returncode == 0, result.stderr
    assert "usage: gidd data" in result.stdout
