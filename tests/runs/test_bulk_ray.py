"""Sampling on Ray actors: the samples of one process, also after a kill; errors of actors."""

import json
import os
import subprocess
import sys

import pytest

from gidd.common.actors import ActorOptions, map_on_ray
from gidd.common.config.allowed import problems_of
from gidd.errors import ConfigError

REASON = 'needs `pip install "gidd[cluster]"`'

ON_RAY = """
import os, sys
from gidd.common.actors import ActorOptions, map_on_ray, ray_session
from gidd.errors import CheckpointError, ConfigError, DataError

class Worker:
    def __init__(self, offset, marker=""):
        self.marker = marker
        if offset < 0:
            raise CheckpointError("no such model")
        self.offset = offset

    def __call__(self, item):
        if item["value"] == 13:
            raise DataError("13 is not allowed")
        if item["value"] == 14:
            open("/missing/file")
        if item["value"] == 15 and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os._exit(1)
        return [item["value"] + self.offset, "ä"]

def error(kind, *arguments):
    try:
        list(map_on_ray(Worker, *arguments))
    except kind as error:
        return str(error)

def items(*values):
    return [{"value": value} for value in values]

half = ActorOptions(num_actors=2, num_cpus=0.5)
with ray_session(None) as ray:
    results = dict(map_on_ray(Worker, (100,), items(*range(10)), half))
    assert results == {i: [i + 100, "ä"] for i in range(10)}, results
    assert error(DataError, (0,), items(1, 13, 2), half) == "13 is not allowed"
    assert error(CheckpointError, (-1,), items(1, 2), half) == "no such model"
    assert "/missing/file" in error(DataError, (0,), items(14), half)
    assert "ray.num_gpus 1" in error(ConfigError, (0,), items(1), ActorOptions(num_gpus=1))
    # an actor that dies is restarted, and its item computed again
    again = dict(map_on_ray(Worker, (0, sys.argv[1]), items(1, 15, 2), half))
    assert again == {0: [1, "ä"], 1: [15, "ä"], 2: [2, "ä"]}, again
    assert os.path.exists(sys.argv[1])
    assert ray.is_initialized()
assert not ray.is_initialized()
"""


def python(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [["--resume-locally"], pytest.param([], marks=pytest.mark.long, id="resumed on Ray")],
    ids=" ".join,
)
def test_killed_with_all_its_actors_and_resumed_it_is_the_local_set(options):
    """CI starts Ray, which takes long, only once."""
    pytest.importorskip("ray", reason=REASON)
    samples, block_size = (200, 5) if options else (300, 8)
    words = ["--samples", f"{samples}", "--block-size", f"{block_size}", "--batch-size", "1"]
    done = python("-m", "support.kill_bulk", *words, *options, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    total = -(-samples // block_size)
    assert total / 2 <= result["blocks_at_kill"] < result["blocks"] == total
    assert result["actors_killed"] == 2
    assert result["each_index_once"] and result["same_bytes"]
    assert result["leftovers"] == []


@pytest.mark.long
def test_results_and_errors_of_actors_come_back(tmp_path):
    pytest.importorskip("ray", reason=REASON)
    done = python("-c", ON_RAY, str(tmp_path / "died"))
    assert done.returncode == 0, done.stderr


def test_as_many_actors_as_fit(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = {"CPU": 64.0, "GPU": 8.0}
    assert ActorOptions().actors_on(cluster) == 64
    assert ActorOptions(num_cpus=3).actors_on(cluster) == 21
    assert ActorOptions(num_gpus=1).actors_on(cluster) == 8
    assert ActorOptions(num_gpus=0.5).actors_on(cluster) == 16
    assert ActorOptions(num_gpus=1, num_actors=3).actors_on(cluster) == 3


def test_actors_that_do_not_fit_are_refused_unless_the_cluster_may_grow(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cpus = {"CPU": 4.0}
    for options in (ActorOptions(num_gpus=1), ActorOptions(num_gpus=1, num_actors=2)):
        with pytest.raises(ConfigError, match="ray.num_gpus 1 .* 4 CPUs, 0 GPUs"):
            options.actors_on(cpus)
    assert ActorOptions(address="auto", num_gpus=1, num_actors=2).actors_on(cpus) == 2


def test_invalid_options_are_named():
    wrong = ActorOptions(num_actors=0, num_cpus=0, num_gpus=-1)
    names = [problem.split()[0] for problem in problems_of(wrong, "ray.")]
    assert names == ["ray.num_actors", "ray.num_cpus", "ray.num_gpus"]


@pytest.mark.parametrize("missing", ["ray", "pandas"])
def test_a_missing_package_is_named_with_its_extra(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    if missing != "pandas":
        pytest.importorskip("pandas", reason=REASON)
    with pytest.raises(ConfigError, match=rf'{missing} is required.*"gidd\[cluster\]"'):
        next(map_on_ray(int, (), [1], ActorOptions()))


def test_without_items_ray_is_not_started(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert list(map_on_ray(int, (), [], ActorOptions())) == []
