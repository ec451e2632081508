"""`gidd data` as a user types it."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.one_process import run_each

REASON = 'needs `pip install "gidd[data]"`'
pytest.importorskip("fsspec", reason=REASON)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    (folder / "texts").mkdir()
    for i in range(20):
        (folder / "texts" / f"{i:02d}.txt").write_text(f"Document {i} [bold]of[/bold] twenty. " * 9)
    return folder


@pytest.mark.slow
def test_from_texts_to_shards(folder):
    prepare = ["data", "prepare", "texts", "--tokenizer", "tok", "--out", "shards"]
    prepare += ["--validation", "3", "--tasks", "4", "--workers", "2"]
    done = run_each(
        [
            ["data", "tokenizer", "--vocab-size", "280", "--out", "tok", "texts"],
            prepare,
            prepare,
            ["data", "show", "shards"],
            ["data", "verify", "shards", "--tokenizer", "tok"],
        ],
        cwd=folder,
    )
    assert [each.returncode for each in done] == [0] * 5, [each.stderr for each in done]
    trained, made, again, shown, checked = (each.stdout for each in done)
    assert "280 tokens" in trained
    assert "17 documents" in made
    assert "3 documents" in made
    assert again == made
    assert "Document 0 [bold]of[/bold] twenty." in shown
    assert "vocabulary size 280, stored as uint16" in shown
    assert "all 5 shards are valid" in checked
    shard = folder / "shards" / "train" / "00001.ds"
    shard.write_bytes(shard.read_bytes()[:-2])
    (broken,) = run_each([["data", "verify", "shards"]], cwd=folder)
    assert broken.returncode == 2
    assert "00001.ds" in broken.stderr
    assert "Traceback" not in broken.stderr


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
def test_corpora_are_listed():
    (result,) = run_each([["data", "list"]])
    assert result.returncode == 0, result.stderr
    web = {"openwebtext", "fineweb", "lm1b", "wikitext", "tinystories", "text8"}
    for name in web | {"sotu", "markov", "hidden-markov", "hf:ORG/NAME"}:
        assert name in result.stdout
