"""`gidd eval samples` as a user types it."""

import json

import pytest
from support.small_grader import write_grader
from support.small_model import write_model

from gidd.cli import main

pytest.importorskip("transformers", reason='needs `pip install "gidd[eval]"`')

FEW = ["--steps", "3", "--length", "12", "--device", "cpu"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def grader(tmp_path_factory) -> str:
    return str(write_grader(tmp_path_factory.mktemp("grader")))


def gidd(capsys, *words: str) -> tuple[str, str]:
    main(words)
    captured = capsys.readouterr()
    return captured.out, captured.err


def mistake(capsys, *words: str) -> str:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    return capsys.readouterr().err


@pytest.mark.slow
def test_samples_of_a_model_and_of_its_jsonl_agree(capsys, model, grader, tmp_path):
    out, err = gidd(capsys, "eval", "samples", model, *FEW, "--num-samples", "4", "--json")
    assert "needs --grader" in err
    generated = json.loads(out)
    assert "gen_ppl" not in generated["measurements"]
    file = tmp_path / "samples.jsonl"
    file.write_text(gidd(capsys, "sample", model, *FEW, "--num-samples", "4", "--jsonl")[0])
    result = tmp_path / "result.json"
    table, err = gidd(
        capsys, "eval", "samples", str(file), "--grader", grader, "--out", str(result)
    )
    assert table.startswith("gen_ppl ")
    assert " ± " in table.splitlines()[0]
    assert err == f"gidd: wrote {result}.\n"
    read = json.loads(result.read_text())
    for name in ("entropy", "nfe", "distinct_2", "repetition_4", "tokens"):
        assert read["measurements"][name] == generated["measurements"][name]
    assert [row["text"] for row in read["rows"]] == [row["text"] for row in generated["rows"]]
    out, _ = gidd(capsys, "eval", "samples", str(file), "--num-samples", "2", "--json")
    assert len(json.loads(out)["rows"]) == 2


def test_texts_of_other_systems_need_a_tokenizer_or_a_grader(capsys, model, grader, tmp_path):
    (tmp_path / "a.txt").write_text("a bad cab")
    assert "--tokenizer gpt2" in mistake(capsys, "eval", "samples", str(tmp_path))
    out, _ = gidd(capsys, "eval", "samples", str(tmp_path), "--tokenizer", model, "--json")
    assert json.loads(out)["manifest"]["source"] == str(tmp_path)
    both = [str(tmp_path), "--reference", str(tmp_path)]
    assert "--reference needs --grader" in mistake(capsys, "eval", "samples", *both)
