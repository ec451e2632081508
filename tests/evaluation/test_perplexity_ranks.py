"""`gidd eval ppl` on two real ranks gives the numbers of one."""

import json
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch
from support.ranks import run_ranks
from support.small_grader import write_grader
from support.small_model import TEXT, write_model

pytest.importorskip("transformers", reason='needs `pip install "gidd[eval]"`')

LINES = [TEXT, TEXT[:41], TEXT[7:100], "Peace – and “plenty”"]
LETTERS = ["abc dead beef. a bad cab", "h", "gegege gegege gegege", "a bad cafe"]


Case = tuple[str, str, tuple[str, ...]]
"""Model, source and options."""


def evaluate(case: Case, out: str) -> str:
    """Run the command as a rank, and return what it printed."""
    from gidd.cli import main

    model, source, options = case
    with redirect_stdout(StringIO()) as printed:
        main(["eval", "ppl", model, source, "--device", "cpu", *options, "--out", out])
    return printed.getvalue()


def write_lines(path, texts) -> str:
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return str(path)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    return {
        "diffusion": (
            str(write_model(folder / "diffusion")),
            write_lines(folder / "texts.jsonl", LINES),
            ("--nodes", "3", "--length", "20", "--stride", "13"),
        ),
        "autoregressive": (
            str(write_grader(folder / "autoregressive")),
            write_lines(folder / "letters.jsonl", LETTERS),
            ("--length", "10", "--stride", "4"),
        ),
    }


@pytest.mark.parametrize(
    "kind", ["diffusion", pytest.param("autoregressive", marks=pytest.mark.long)]
)
def test_two_ranks_give_the_numbers_of_one(kind, cases, tmp_path):
    case = cases[kind]
    paths = [tmp_path / f"{size}.json" for size in (1, 2)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as on the ranks: sums in another order round differently
    try:
        alone = evaluate(case, str(paths[0]))
    finally:
        torch.set_num_threads(threads)
    printed = run_ranks(evaluate, 2, case, str(paths[1]))
    assert alone.startswith("nelbo ")
    assert printed == [alone, ""]  # rank 0 alone prints and writes
    results = [json.loads(path.read_text()) for path in paths]
    for result in results:
        assert result["manifest"].pop("seconds") >= 0
    assert results[0] == results[1]  # exactly, not only to some digits
    assert [row["tokens"] > 0 for row in results[0]["rows"]] == [True] * 4
