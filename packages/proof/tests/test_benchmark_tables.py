"""Figures of the documentation are those of the file that the benchmark wrote."""

import json
import runpy
import sys
from pathlib import Path

import pytest

correction = pytest.importorskip("correction", reason="needs the packages of the extra bench")
PACKAGE = Path(__file__).parents[1]


def test_the_table_of_the_readme_is_the_table_of_the_results():
    results = json.loads((PACKAGE / "benchmarks" / "correction.json").read_text())
    assert correction.table(results["rows"]) in (PACKAGE / "README.md").read_text()
    assert correction.summary(results["rows"]) == results


def test_counts_of_a_sentence():
    found = correction.SentenceCounts.of("teh cat sta", "the cat sat", "the bat sta", "the cat sit")
    assert found == (1, 2, 2, 1, 3, 1)
    assert found.good == 1 and found.spoiled == 1


def test_a_set_is_summarised():
    row = correction.measure([("teh cat", "the cat")] * 4, lambda text: text.replace("teh", "the"))
    assert (row["cut"], row["spoiled"], row["touched"], row["sentences"]) == (1, 0, 0, 4)
    rows = [{"set": "jfleg", "method": name} | row for name in ("gidd-proof", "aspell")]
    assert correction.summary(rows)["jfleg_cut"] == 1
    assert correction.summary(rows)["best_rival_cut"] == {"jfleg": 1}


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("modern.py", "| all |"),
        ("added_mistakes.py TEXT --json", '"spoiled"'),
        ("alarms.py --code CODE", "0 files changed outside comments"),
        ("correction.py FOLDER --sets s --json", '"ms_per_character"'),
        ("reliability.py FOLDER --set s", "| confidence |"),
    ],
)
def test_a_benchmark_runs_with_quick(script, printed, tmp_path, monkeypatch, capsys):
    (tmp_path / "s.tsv").write_text("I liek the cat.\tI like the cat.\nA good day.\tA good day.\n")
    (tmp_path / "text").write_text("I like the cat, and it was a good day. " * 40)
    (tmp_path / "code.py").write_text("retreive = defualt  # a mesage\n")
    named = {"FOLDER": tmp_path, "TEXT": tmp_path / "text", "CODE": tmp_path / "code.py"}
    name, *words = (str(named.get(word, word)) for word in script.split())
    monkeypatch.setattr(sys, "argv", [name, *words, "--quick"])
    runpy.run_path(str(PACKAGE / "benchmarks" / name), run_name="__main__")
    assert printed in capsys.readouterr().out
