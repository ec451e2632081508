"""Comparison of results: pairing, significance, settings; as a user sees it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from gidd.cli import main
from gidd.errors import ConfigError
from gidd.evaluation.compare import ABSENT, compare_results
from gidd.evaluation.results import EvaluationResult, Measurement, RowRatio


def result(numbers=None, rows=(), manifest=None, kind="ppl"):
    return EvaluationResult(
        kind=kind, measurements=numbers or {}, manifest=manifest or {}, rows=list(rows)
    )


def ratio(above, below):
    """Ratio of sums and its standard error over rows (delta method)."""
    above, below = np.array(above), np.array(below)
    count, value = len(above), above.sum() / below.sum()
    squares = ((above - value * below) ** 2).sum()
    return value, math.sqrt(squares * count / (count - 1)) / below.sum()


def ppl(nelbos, tokens):
    value, error = ratio(nelbos, tokens)
    rows = [
        {"id": f"sotu#{i}", "tokens": n, "bytes": 4 * n, "nelbo": nelbo, "standard_error": 0.1}
        for i, (nelbo, n) in enumerate(zip(nelbos, tokens, strict=True))
    ]
    numbers = {
        "ppl": Measurement(math.exp(value), math.exp(value) * error, len(rows)),
        "nelbo": Measurement(value, error, len(rows)),
        "bits_per_byte": Measurement(value / 4 / math.log(2), error / 4 / math.log(2), len(rows)),
    }
    return result(numbers, rows)


def number(first, second, name):
    return next(n for n in compare_results(first, second).numbers if n.name == name)


def test_documents_of_equal_length_by_hand():
    # per token 1, 2, 3 and 2, 3, 5: differences 1, 1, 2; mean 4/3, standard error 1/3
    first, second = ppl([10, 20, 30], [10] * 3), ppl([20, 30, 50], [10] * 3)
    found = number(first, second, "nelbo").difference
    assert (found.is_paired, found.num_pairs) == (True, 3)
    assert found.value == pytest.approx(4 / 3)
    assert found.standard_error == pytest.approx(1 / 3)
    # t = 4 with two degrees of freedom: 1 - t / sqrt(2 + t**2)
    assert found.p_value == pytest.approx(1 - 4 / math.sqrt(18))


def test_documents_of_different_length_are_weighted_by_their_length():
    """The error of a difference of two ratios, against the spread over repeated draws."""
    random = np.random.default_rng(0)
    differences, errors = [], []
    for _ in range(200):
        tokens = random.integers(50, 500, 60)
        level = random.normal(4, 1, 60)
        noise = random.normal(0, 0.2, (2, 60))
        first = ppl(list((level + noise[0]) * tokens), tokens.tolist())
        second = ppl(list((level + 0.1 + noise[1]) * tokens), tokens.tolist())
        pair = (
            replace(r, measurements={"nelbo": r.measurements["nelbo"]}) for r in (first, second)
        )
        found = number(*pair, "nelbo").difference
        differences.append(found.value)
        errors.append(found.standard_error)
    # 200 draws know their spread within 5%; 15% is 3 standard errors
    assert np.mean(errors) == pytest.approx(np.std(differences), rel=0.15)
    assert np.mean(differences) == pytest.approx(0.1, abs=0.01)


def test_pairs_have_a_much_smaller_error():
    random = np.random.default_rng(1)
    level, tokens = random.normal(4, 1, 100), [100] * 100
    first = ppl(list(100 * level), tokens)
    second = ppl(list(100 * (level + random.normal(0.05, 0.1, 100))), tokens)
    paired = compare_results(first, second)
    for found in paired.numbers:  # ppl and bits per byte too
        independent = math.hypot(found.first.standard_error, found.second.standard_error)
        assert found.difference.is_paired
        assert found.difference.standard_error < independent / 5
        assert found.is_significant
    unpaired = compare_results(first, replace(second, rows=second.rows[:-1]))
    for found in unpaired.numbers:
        assert not found.difference.is_paired
        independent = math.hypot(found.first.standard_error, found.second.standard_error)
        assert found.difference.standard_error == pytest.approx(independent)
        assert not found.is_significant


def test_columns_of_a_ratio_are_those_that_a_result_names(tmp_path):
    def words(errors, counts):
        value, error = ratio(errors, counts)
        rows = [
            {"id": i, "e": e, "n": n} for i, (e, n) in enumerate(zip(errors, counts, strict=True))
        ]
        numbers = {"wer": Measurement(value, error, len(rows))}
        made = replace(result(numbers, rows), ratios={"wer": RowRatio("e", "n")})
        made.save(tmp_path / "a.json")
        return EvaluationResult.read(tmp_path / "a.json")

    found = number(words([1, 2, 6], [10, 20, 30]), words([2, 2, 8], [10, 20, 30]), "wer")
    assert found.difference.is_paired and found.difference.value == pytest.approx(3 / 60)


def test_a_single_document_is_tested_by_the_error_of_its_estimate(tmp_path, capsys):
    for name, nelbo in (("a", 30.0), ("b", 50.0)):
        made = ppl([nelbo, nelbo], [10, 10])
        numbers = {
            "nelbo": Measurement(nelbo / 10, 0.1, 64),
            "nelbo_corpus": Measurement(nelbo / 10, None, 1),
        }
        replace(made, measurements=numbers, rows=made.rows[:1]).save(tmp_path / f"{name}.json")
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    found = number(*map(EvaluationResult.read, files), "nelbo")
    assert found.is_significant and not found.difference.is_paired
    main(["compare", *map(str, files)])
    assert "Not tested: nelbo_corpus" in (out := capsys.readouterr().out)
    assert "single document" in " ".join(out.split())


def test_without_scipy_differences_have_errors_and_no_p_values(files, capsys, monkeypatch):
    monkeypatch.setattr("gidd.evaluation.compare.HAS_SCIPY", False)
    main(["compare", *files])
    out = capsys.readouterr().out
    assert "+1.33 ± 0.33" in out and 'pip install "gidd[eval]"' in out


def test_samples():
    def samples(nlls, tokens, entropies):
        value, error = ratio(np.array(nlls) * tokens, tokens)
        rows = [
            {"id": i, "gen_nll": a, "grader_tokens": n, "entropy": e, "text": "a"}
            for i, (a, n, e) in enumerate(zip(nlls, tokens, entropies, strict=True))
        ]
        rows.append({"id": 9, "gen_nll": None, "grader_tokens": 0, "entropy": None, "text": ""})
        numbers = {
            "gen_ppl": Measurement(math.exp(value), math.exp(value) * error, len(nlls)),
            "entropy": Measurement.mean(entropies),
        }
        return result(numbers, rows, kind="samples")

    first = samples([3.0, 4.0, 5.0], [10, 20, 30], [2.0, 3.0, 4.0])
    second = samples([3.1, 4.1, 5.1], [10, 20, 30], [2.5, 3.5, 4.5])
    found = number(first, second, "gen_ppl")
    assert found.difference.is_paired
    # every sample's NLL rises by 0.1: both curves move together, up to the factor of exp
    factor = math.exp(0.1) - 1
    assert found.difference.value == pytest.approx(found.first.value * factor)
    expected = found.first.standard_error * factor
    assert found.difference.standard_error == pytest.approx(expected, rel=0.1)
    assert number(first, second, "entropy").difference.value == pytest.approx(0.5)


def test_correct_answers_of_questions():
    def task(answers):
        rows = [{"id": f"q{i}", "acc": right} for i, right in enumerate(answers)]
        return result({"acc": Measurement.mean([float(a) for a in answers])}, rows, kind="tasks")

    first, second = [True, False, True, False] * 5, [True, False, True, True] * 5
    found = number(task(first), task(second), "acc").difference
    assert found.is_paired and found.value == 0.25
    # 5 differences of 1 and 15 of 0: variance 20/19 * 3/16
    assert found.standard_error == pytest.approx(math.sqrt(20 / 19 * 3 / 16 / 20))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"acc": 1.0}, {"acc": 2.0}, {"acc": 3.0}],  # no ids
        [{"id": 1, "acc": 1.0}, {"id": 1, "acc": 2.0}, {"id": 2, "acc": 3.0}],  # repeated
        [{"id": [0], "acc": 1.0}, {"id": None, "acc": 2.0}, {"id": 2.5, "acc": 3.0}],
        [{"id": i, "acc": value} for i, value in enumerate((1.0, 2.0, 7.0))],  # not its rows
        [{"id": i, "acc": value} for i, value in enumerate((1.0, "2", None))],
        [{"id": i} for i in range(3)],
    ],
)
def test_rows_that_do_not_explain_the_number_are_not_used(rows):
    one = result({"acc": Measurement(2.0, 0.5, 3)}, rows)
    found = number(one, one, "acc").difference
    assert not found.is_paired
    assert found.standard_error == pytest.approx(math.sqrt(0.5))


def test_order_of_rows_does_not_matter():
    first, second = ppl([10, 20, 30], [10] * 3), ppl([20, 30, 50], [10] * 3)
    shuffled = replace(second, rows=second.rows[::-1])
    assert compare_results(first, shuffled) == compare_results(first, second)


def test_numbers_without_error_and_several_tests():
    first = {name: Measurement(0.0, 1.0, 10**7) for name in "abc"}
    second = {
        name: Measurement(v, 0.0, 10**7) for name, v in zip("abc", (2.5, 2.2, 0), strict=True)
    }
    first |= {"exact": Measurement(1.0), "gone": Measurement(1.0), "nan": Measurement(1.0, 0.1, 5)}
    second |= {"exact": Measurement(2.0), "new": Measurement(1.0), "nan": Measurement(math.nan)}
    comparison = compare_results(result(first), result(second))
    found = {n.name: n for n in comparison.numbers}
    assert comparison.num_tests == 3
    # normal: p = 0.0124, 0.0278, 1; Holm: 0.0373, 0.0556, 1
    assert found["a"].adjusted_p_value == pytest.approx(0.0373, abs=1e-4)
    assert found["b"].difference.p_value == pytest.approx(0.0278, abs=1e-4)
    assert [found[name].is_significant for name in "abc"] == [True, False, False]
    assert found["exact"].is_significant is None and found["exact"].difference.value == 1
    assert found["nan"].is_significant is None
    assert (comparison.only_first, comparison.only_second) == (["gone"], ["new"])
    json.dumps(comparison.to_dict(), allow_nan=False)


def test_numbers_that_do_not_vary_are_not_tested():
    """They would cost the other tests significance."""
    one, two = {"nfe": Measurement(8.0, 0.0, 9)}, {"nfe": Measurement(16.0, 0.0, 9)}
    comparison = compare_results(result(one), result(two))
    assert comparison.num_tests == 0
    assert comparison.numbers[0].difference.value == 8


def test_every_column_fits(tmp_path, capsys, monkeypatch):
    """Numbers with many digits, and the verdict, in 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    names = ["entropy", "bits_per_byte", "temperature 0.5, 128 forward passes: self_accuracy"]
    for file, shift in (("a", 0.0), ("b", 1.2345)):
        numbers = {name: Measurement(12.3456 + shift, 0.01234, 30) for name in names}
        result(numbers).save(tmp_path / f"{file}.json")
    main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [" ".join(line.split()) for line in lines]
    assert "A B B - A p Holm 5%" in rows
    cells = "12.346 ± 0.012 13.580 ± 0.012 +1.235 ± 0.017 <1e-16 <1e-16 yes"
    assert f"entropy {cells}" in rows and f"bits_per_byte {cells}" in rows


def test_settings_that_differ():
    first = {
        "model": {"name": "a", "sha256": "x"},
        "plan": [{"step": "ancestral", "steps": 8}],
        "temperatures": [0.1, 0.5],
        "seconds": 3,
        "load_seconds": 4,
        "usage": {"prompt_tokens": 5},
        "old": {},
        "x": math.nan,
    }
    second = {
        "model": {"name": "b", "sha256": "x"},
        "plan": [{"step": "ancestral", "steps": 16}, {"step": "adaptive", "steps": 2}],
        "temperatures": [0.1, 0.7],
        "seconds": 5,
        "load_seconds": 6,
        "usage": {"prompt_tokens": 7},
        "new": None,
        "x": math.nan,
    }
    comparison = compare_results(result(manifest=first), result(manifest=second))
    assert [tuple(setting) for setting in comparison.settings] == [
        ("model.name", "a", "b"),
        ("plan.0.steps", 8, 16),
        ("temperatures", [0.1, 0.5], [0.1, 0.7]),
        ("old", {}, ABSENT),
        ("plan.1.step", ABSENT, "adaptive"),
        ("plan.1.steps", ABSENT, 2),
        ("new", ABSENT, None),
    ]
    assert compare_results(result(manifest=first), result(manifest=first)).settings == []


def test_extreme_numbers_are_no_crash():
    for value, error in ((1e308, 1e308), (-1e308, 1e-308), (0.0, 0.0), (5e-324, 5e-324)):
        for other in (1e308, 0.0):
            values = ({"a": Measurement(value, error, 5)}, {"a": Measurement(other, 1.0, 2)})
            rows = [{"id": 0, "a": value}, {"id": 1, "a": value}]
            comparison = compare_results(*(result(numbers, rows) for numbers in values))
            json.dumps(comparison.to_dict(), allow_nan=False)


def test_different_evaluations_cannot_be_compared():
    with pytest.raises(ConfigError, match="'ppl' and 'judge'"):
        compare_results(result(), result(kind="judge"))


@pytest.fixture
def files(tmp_path):
    first, second = ppl([10.0, 20.0, 30.0], [10] * 3), ppl([20.0, 30.0, 50.0], [10] * 3)
    long = {"definitions": "x" * 500, "model": {"name": "models/with-a-rather-long-name/p-0.1"}}
    replace(first, manifest={"model": {"name": "nano"}}).save(tmp_path / "a.json")
    replace(second, manifest=long).save(tmp_path / "b.json")
    return [str(tmp_path / name) for name in ("a.json", "b.json")]


def test_command(files, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["compare", *files])
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith("nelbo"))
    cells = "nelbo 2.00 ± 0.58 3.33 ± 0.88 +1.33 ± 0.33 0.057 0.17 no"
    assert " ".join(row.split()) == cells
    assert "in pairs, by the ids of 3 rows" in out
    assert "Warning: 3 rows are too few" in out
    assert "model.name" in out and "nano" in out and ABSENT in out
    main(["compare", *files, "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["measurements"]["nelbo"]["difference"] == pytest.approx(4 / 3)
    assert record["measurements"]["nelbo"]["is_paired"] is True
    assert record["settings"]["definitions"] == {"first": ABSENT, "second": "x" * 500}


def test_twenty_rows_are_compared_without_a_warning(tmp_path, capsys):
    for name, shift in (("a", 0), ("b", 1)):
        ppl([10 + i % 3 + shift * i % 2 for i in range(20)], [10] * 20).save(tmp_path / name)
    main(["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert "Warning" not in capsys.readouterr().out


def test_equal_results(files, capsys):
    main(["compare", files[0], files[0]])
    out = capsys.readouterr().out
    assert "All recorded settings are equal." in out
    assert " yes" not in out


def test_hostile_files_do_not_control_the_terminal(tmp_path, capsys):
    evil = "\x1b[2J[bold]:bomb:\x07"
    for name, value in (("a", 1), ("b", 2)):
        numbers = {f"ppl{evil}": Measurement(value, 0.1, 9), f"{evil}{name}": Measurement(1)}
        made = result(numbers, manifest={evil: f"{evil}{name}"}, kind=f"ppl{evil}")
        made.save(tmp_path / f"{name}.json")
    main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err and "\x07" not in captured.out
    assert "[bold]:bomb:" in captured.out
    result(kind=f"x{evil}").save(tmp_path / "c.json")
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "a.json"), str(tmp_path / "c.json")])
    assert "\x1b" not in capsys.readouterr().err
