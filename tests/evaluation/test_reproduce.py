"""The paper's experiments at the size of a laptop: verdicts from data, runs that are skipped."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.reproduce import __main__ as command, runs as module
from benchmarks.reproduce.page import FAILS, HOLDS, NOT_RUN, OPEN, claims, write_page
from benchmarks.reproduce.runs import LAPTOP_RUNS, LaptopPlan, describe_sentences, reproduce
from gidd.errors import ConfigError, GiddError
from gidd.sources import sentence_source


def likelihood(level: float, seed: int = 0) -> dict:
    rng = random.Random(seed)
    windows = [level + rng.gauss(0, 0.3) for _ in range(64)]
    mean = sum(windows) / len(windows)
    value = {"value": mean, "standard_error": 0.04, "num_samples": 64}
    return {"windows": windows, "nats_per_token": value, "train_seconds": 60.0}


def sampled(gain: float, level: float = -3.0) -> dict:
    """Samples whose self-accuracy follows their log-likelihood, corrected with a gain."""
    rng = random.Random(1)
    before = [rng.gauss(level, 0.5) for _ in range(100)]
    after = [value + gain + rng.gauss(0, 0.1) for value in before]
    own = {"log_prob": {"value": level}, "sums_right": {"value": 0.5}, "entropy": {"value": 2.0}}
    accuracies = [0.9 + 0.05 * value + rng.gauss(0, 0.01) for value in before]
    return likelihood(3.0) | {
        "sentences": {
            "before": own | {"log_probs": before},
            "after": own | {"log_probs": after},
            "steps": {"8": own | {"log_probs": before, "self_accuracies": accuracies}},
            "samplers": {"psi": own},
            "examples": [["the cat sleep", "the cat sleeps"]],
        }
    }


def verdicts(results: dict, first: str = "sentences-") -> list[str]:
    return [claim.verdict for claim in claims(results, first)]


def test_verdicts_follow_from_the_data():
    runs = {
        "mdm": likelihood(4.0),
        "gidd-0.0-elbo": likelihood(4.0),
        **{f"gidd-{p}-clamp": likelihood(3.2, 1) for p in (0.1, 0.2)},
        **{f"gidd-{p}-elbo": likelihood(3.5, 2) for p in (0.1, 0.2)},
        "gidd-0.0-dynamic": sampled(-0.2, -3.5),
        "gidd-0.1-dynamic": sampled(0.3),
        "gidd-0.2-dynamic": sampled(0.0),
        **{f"gidd-0.0-dynamic-{size}": likelihood(v) for size, v in (("small", 4), ("large", 3))},
        **{f"gidd-0.2-dynamic-{size}": likelihood(v) for size, v in (("small", 4), ("large", 2))},
    }
    results = {f"sentences-{name}": row for name, row in runs.items()}
    assert verdicts(results) == [HOLDS, HOLDS, HOLDS, HOLDS, HOLDS, OPEN, HOLDS, HOLDS, HOLDS]
    assert set(verdicts(results, "")) == {NOT_RUN}

    worse = results | {"sentences-gidd-0.1-dynamic": sampled(0.3, -4.0) | likelihood(5.0)}
    assert verdicts(worse)[1] == OPEN and verdicts(worse)[3] == FAILS  # p_u = 0.2 is better
    slower = {"sentences-gidd-0.2-dynamic-large": likelihood(3.9)}
    sizes = {name: row for name, row in results.items() if name.endswith(("small", "large"))}
    second = {f"{name}-seed-1": row for name, row in (sizes | slower).items()}
    assert verdicts(results | second)[8] == OPEN  # seeds contradict each other
    page = write_page(results, "python -m benchmarks.reproduce laptop")
    assert "| sentences-mdm | 4" in page and "<del>sleep</del> <ins>sleeps</ins>" in page


def spread(level: float, size: float) -> dict:
    """Likelihoods of 64 windows whose differences from `likelihood(4.0)` have this spread."""
    windows = likelihood(4.0)["windows"]
    shifts = [level + size * (-1) ** i for i in range(len(windows))]
    return likelihood(4.0) | {"windows": [a + b for a, b in zip(windows, shifts, strict=True)]}


def correlated(strength: float, seed: int = 0) -> dict:
    """128 samples whose self-accuracy has about this correlation with their log-likelihood."""
    rng = random.Random(seed)
    quality = [rng.gauss(0, 1) for _ in range(128)]
    noise = (1 - strength**2) ** 0.5
    accuracies = [strength * value + noise * rng.gauss(0, 1) for value in quality]
    row = sampled(0.0)
    row["sentences"]["steps"]["8"] |= {"log_probs": quality, "self_accuracies": accuracies}
    return row


def sizes(large: dict) -> dict:
    """Models of two sizes: with p_u = 0 the large one is better by a nat."""
    worse = {f"gidd-{p}-dynamic-small": likelihood(5.0) for p in ("0.0", "0.2")}
    return worse | {"gidd-0.0-dynamic-large": likelihood(4.0), "gidd-0.2-dynamic-large": large}


WEIGHTS = {1: ("clamp", "dynamic"), 2: ("elbo", "clamp")}
VERDICTS = [
    *(
        (number, {f"gidd-0.1-{worse}": likelihood(4.0), f"gidd-0.1-{better}": better_row}, verdict)
        for number, (worse, better) in WEIGHTS.items()
        for level, size, verdict in ((-0.1, 0.1, HOLDS), (-0.1, 1.0, OPEN), (0.1, 0.1, FAILS))
        for better_row in [sampled(0.0) | spread(level, size)]
    ),
    *(
        (3, {"gidd-0.0-dynamic": sampled(0.0), "gidd-0.1-dynamic": row}, verdict)
        for row, verdict in (
            (sampled(0.0, -2.0), HOLDS),
            (sampled(0.0), OPEN),
            (sampled(0.0, -4.0), FAILS),
        )
    ),
    (8, sizes(spread(-0.1, 0.1)), HOLDS),
    (8, sizes(spread(-0.1, 1.0)), OPEN),
    (8, sizes(spread(0.1, 0.1)), FAILS),
]


@pytest.mark.parametrize(
    "number, runs, verdict",
    [
        *VERDICTS,
        (0, {"mdm": likelihood(4.0), "gidd-0.0-elbo": spread(0.0, 0.01)}, HOLDS),
        (0, {"mdm": likelihood(4.0), "gidd-0.0-elbo": spread(0.0, 1.0)}, OPEN),  # ± 0.125
        (0, {"mdm": likelihood(4.0), "gidd-0.0-elbo": spread(0.1, 0.1)}, FAILS),
        (6, {"gidd-0.0-dynamic": sampled(-0.2)}, HOLDS),
        (6, {"gidd-0.0-dynamic": sampled(0.0)}, OPEN),
        (6, {"gidd-0.0-dynamic": sampled(0.2)}, FAILS),
        (4, {"gidd-0.1-dynamic": sampled(0.2)}, HOLDS),
        (4, {"gidd-0.1-dynamic": sampled(0.0)}, OPEN),
        (4, {"gidd-0.1-dynamic": sampled(-0.2)}, FAILS),
        (7, {"gidd-0.1-dynamic": correlated(0.6)}, HOLDS),
        (7, {"gidd-0.1-dynamic": correlated(0.2)}, OPEN),
        (7, {"gidd-0.1-dynamic": correlated(-0.3)}, FAILS),
        (7, {"gidd-0.1-dynamic": correlated(0.1), "gidd-0.2-dynamic": correlated(0.6)}, OPEN),
    ],
)  # fmt: skip
def test_a_claim_holds_or_does_not_on_evidence_only(number, runs, verdict):
    """A hypothesis of the paper that is confirmed, one without evidence, and a rejected one."""
    assert verdicts({f"sentences-{name}": row for name, row in runs.items()})[number] == verdict


def test_text_is_graded_by_the_grader():
    nll = [5.0 + 0.01 * i for i in range(20)]
    row = likelihood(5.0) | {
        "samples": {
            "8": {
                "texts": [],
                "own": {
                    "gen_nll": nll,
                    "self_accuracies": [1 - 0.1 * value for value in nll],
                    "gen_ppl": {"value": 160.0},
                },
            }
        },
        "correction": [
            {"temperature": 0.1, "forward_passes": n, "entropy": 4.0}
            | {"gen_ppl": ppl, "gen_ppl_se": 2.0}
            for n, ppl in ((0, 160.0), (32, 120.0))
        ],
    }
    results = {"gidd-0.1-dynamic": row, "gidd-0.0-dynamic": row}
    found = verdicts(results, "")
    assert found[3:5] == [OPEN, HOLDS] and found[7] == HOLDS
    assert "| gidd-0.1-dynamic | 0.1 | 32 | - | 120 | 4 |" in write_page(results, "x")
    row["correction"][1]["entropy"] = 3.0  # likelier because it repeats itself
    found = verdicts(results, "")
    assert found[4] == OPEN and found[6] == OPEN  # neither a gain nor the absence of one


def test_results_that_exist_are_not_made_again(tmp_path, monkeypatch):
    trained = []

    def train(plan, run, out):
        trained.append(run.name)
        for kind in ("models", "runs"):
            (out / kind / run.name).mkdir(parents=True)
        return out / "models" / run.name

    monkeypatch.setattr(module, "train_model", train)
    monkeypatch.setattr(module, "prepare_source", lambda plan, source, out: out)
    monkeypatch.setattr(module, "measure_run", lambda *arguments: {"windows": [1.0]})
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mdm.json").write_text(json.dumps({"windows": [2.0]}))
    results = reproduce(LaptopPlan(), tmp_path, only=["mdm", "autoregressive", "grader"])
    assert trained == ["grader", "autoregressive"]
    assert {name: row["windows"] for name, row in results.items()} == {
        "autoregressive": [1.0],
        "grader": [1.0],
        "mdm": [2.0],
    }
    assert (tmp_path / "models" / "grader").exists()  # it grades the samples of the others
    trained.clear()  # what a run needs is trained too
    reproduce(LaptopPlan(), tmp_path / "new", only=["mdm"])
    assert trained == ["grader", "autoregressive", "mdm"]
    with pytest.raises(ConfigError, match="jobs must be at least 1, got 0"):
        reproduce(LaptopPlan(), tmp_path, jobs=0)
    assert (tmp_path / "models" / "autoregressive").exists()  # and initializes them


def test_the_command_writes_the_page_of_what_is_done(tmp_path, capsys):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "sentences-mdm.json").write_text(json.dumps(likelihood(4.0)))
    command.main(["laptop", "--only", "sentences-mdm", "--out", str(tmp_path)])
    assert "| sentences-mdm | 4" in (tmp_path / "results.md").read_text()
    with pytest.raises(ConfigError, match="only must be of .*, got mdn"):
        command.main(["laptop", "--only", "mdn", "--out", str(tmp_path)])
    command.main(["paper"])
    commands = capsys.readouterr().out
    assert "# small-mdm: 10.5 hours of 8 H100s" in commands
    assert "gidd eval ppl models/small-mdm" in commands


def test_names_of_runs_are_different():
    assert len({run.name for run in LAPTOP_RUNS}) == len(LAPTOP_RUNS)


def test_sums_of_samples_are_checked():
    words = sentence_source()[1]
    right, wrong = ([words.index(w) for w in f". 3 + 4 = {n} . ( )".split()] for n in "78")
    found = describe_sentences([right, wrong])
    assert found["sums_right"]["value"] == 0.5
    assert found["log_probs"][0] > found["log_probs"][1]


def test_the_page_of_results_is_written_from_its_files():
    docs = Path(__file__).parents[2] / "docs"
    files = sorted((docs / "figures" / "laptop").glob("*.json"))
    results = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    page = (docs / "results.md").read_text(encoding="utf-8")
    written = write_page(results, "python -m benchmarks.reproduce laptop")
    assert written[written.index("Written by") :].strip() in page
    assert all(row["run"]["name"] == name for name, row in results.items())


@pytest.mark.long
def test_a_model_of_sentences_is_trained_and_measured(tmp_path):
    sizes = {"steps": 30, "windows": 8, "sentences": 16, "batch": 8, "length": 32}
    plan = replace(LaptopPlan().quick(), **sizes, learning_rate=3e-3)
    names = ["sentences-gidd-0.1-dynamic", "sentences-mdm"]
    results = reproduce(plan, tmp_path, only=names, jobs=2)
    assert set(results) == set(names)
    found = results["sentences-gidd-0.1-dynamic"]
    assert found["nats_per_token"]["value"] < 4.1  # of 58 words at random: 4.06
    assert found["sentences"]["after"]["log_prob"]["num_samples"] == 16
    assert set(found["sentences"]["samplers"]) >= {"ancestral", "psi", "remask_suspects"}
    again = reproduce(plan, tmp_path, only=names)
    assert again == results


@pytest.mark.long
def test_diffusion_models_of_text_start_from_the_autoregressive_one(tmp_path):
    sizes = {"steps": 20, "windows": 8, "num_samples": 8, "batch": 8, "length": 32}
    plan = replace(LaptopPlan(tokenizer=300).quick(), **sizes)
    names = ["grader", "autoregressive", "gidd-0.2-dynamic"]
    results = reproduce(plan, tmp_path, only=names, jobs=2)
    assert set(results) == set(names)
    assert set(results["gidd-0.2-dynamic"]["samples"]) == {"8", "32"}
    assert (tmp_path / "models" / "autoregressive").exists()
    with pytest.raises(GiddError, match="mdm has no result"):  # its initial weights are missing
        shutil.rmtree(tmp_path / "models")
        reproduce(replace(plan, is_quick=False), tmp_path, only=["mdm"], jobs=2)
