"""The paper's experiments at the size of a laptop: verdicts from data, runs that are skipped."""

import json
import random
from dataclasses import replace

import pytest

from gidd.evaluation import reproduce as module
from gidd.evaluation.reproduce import LAPTOP_RUNS, LaptopPlan, describe_sentences, reproduce
from gidd.evaluation.reproduce_page import FAILS, HOLDS, OPEN, claims, write_page
from gidd.sources import sentence_source


def likelihood(level: float, seed: int = 0) -> dict:
    rng = random.Random(seed)
    windows = [level + rng.gauss(0, 0.3) for _ in range(64)]
    mean = sum(windows) / len(windows)
    value = {"value": mean, "standard_error": 0.04, "num_samples": 64}
    return {"windows": windows, "nats_per_token": value, "train_seconds": 60.0}


def sentences(gain: float) -> dict:
    rng = random.Random(1)
    before = [rng.gauss(-3, 0.5) for _ in range(100)]
    after = [value + gain + rng.gauss(0, 0.1) for value in before]
    own = {"log_prob": {"value": -3.0}, "sums_right": {"value": 0.5}}
    parts = {"before": own | {"log_probs": before}, "after": own | {"log_probs": after}}
    return likelihood(3.0) | {"sentences": parts | {"samplers": {}, "examples": [["a", "b"]]}}


def verdicts(results: dict) -> dict[str, str]:
    return {claim.text[:2] + claim.text[-3:]: claim.verdict for claim in claims(results)}


def test_verdicts_follow_from_the_data():
    results = {
        "mdm": likelihood(4.0),
        "gidd-0.0-elbo": likelihood(4.0),
        **{f"gidd-{p}-dynamic": likelihood(4.0) for p in (0.1, 0.2)},
        **{f"gidd-{p}-clamp": likelihood(4.2, 1) for p in (0.1, 0.2)},
        **{f"gidd-{p}-elbo": likelihood(4.5, 2) for p in (0.1, 0.2)},
        "sentences-0.1": sentences(0.3),
        "sentences-0.2": sentences(0.0),
        "sentences-0.0": sentences(-0.2),
    }
    found = [claim.verdict for claim in claims(results)]
    assert found[:2] == [HOLDS, HOLDS] and found[3:6] == [HOLDS, OPEN, HOLDS]
    assert found[2] == found[6] == found[7] == "not run"
    worse = results | {"gidd-0.1-dynamic": likelihood(5.0), "sentences-0.0": sentences(0.3)}
    assert claims(worse)[1].verdict == FAILS and claims(worse)[5].verdict == FAILS
    assert claims(results | {"mdm": likelihood(4.5)})[0].verdict == FAILS
    page = write_page(results, "gidd reproduce laptop")
    assert "| mdm | 4" in page and "before and after" in page


def test_results_that_exist_are_not_made_again(tmp_path, monkeypatch):
    trained = []

    def train(plan, run, data, out):
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
    assert not (tmp_path / "models" / "autoregressive").exists()


def test_names_of_runs_are_different():
    assert len({run.name for run in LAPTOP_RUNS}) == len(LAPTOP_RUNS)


def test_sums_of_samples_are_checked():
    words = sentence_source()[1]
    right, wrong = ([words.index(w) for w in f". 3 + 4 = {n} . ( )".split()] for n in "78")
    found = describe_sentences([right, wrong])
    assert found["sums_right"]["value"] == 0.5
    assert found["log_probs"][0] > found["log_probs"][1]


@pytest.mark.long
def test_a_model_of_sentences_is_trained_and_measured(tmp_path):
    sizes = {"steps": 30, "windows": 8, "sentences": 16, "batch": 8, "length": 32}
    plan = replace(LaptopPlan().quick(), **sizes, learning_rate=3e-3)
    results = reproduce(plan, tmp_path, only=["sentences-0.1"])
    found = results["sentences-0.1"]
    assert found["nats_per_token"]["value"] < 4.1  # of 58 words at random: 4.06
    assert found["sentences"]["after"]["log_prob"]["num_samples"] == 16
    assert set(found["sentences"]["samplers"]) >= {"ancestral", "psi", "remask_suspects"}
    again = reproduce(plan, tmp_path, only=["sentences-0.1"])
    assert again == results
