"""Mistakes in the arguments of every command are refused before torch is imported.

What only a model, a tokenizer or the hub can tell (options of samplers, characters of a text, names
of repositories) is checked later.
"""

import json
import os
import shlex
import subprocess
import sys

import pytest

from gidd.cli import COMMANDS
from gidd.cli.eval import EVALUATIONS

MISTAKES = """
--nothing | nothing
sample m --steps 0 | --steps
sample m --steps x | --steps
sample m --temperature -1 | --temperature
sample m --sampler nothing | sampler
sample m --device gpu | --device
sample m --precision fp7 | --precision
sample m --nothing | --nothing
sample m --length 9 --max-tokens 9 | --max-tokens
sample nothing | installed
sample m/nothing | m is
chat nothing | installed
score nothing --text x | installed
chat m --max-tokens 0 | --max-tokens
infill m blanks | blank
infill m a[MASK]b --steps 0 | --steps
correct missing.txt --model m | missing.txt
correct --model m --text x --error-rate 2 | --error-rate
score m missing.txt | missing.txt
score m --text '' | empty
score m --text x --repeats 0 | --repeats
serve | models
serve m --port 99999999 | --port
serve m --batch-size 0 | --batch-size
serve m --replicas 0 | --replicas
serve m --max-requests 0 | --max-requests
serve m --seconds -1 | --seconds
serve m --max-bytes 0 | --max-bytes
train nothing | nothing
train nano --train.steps 0 | train.steps
train nano --data.sources missing.txt | missing.txt
train nano --data.sources a.csv | a.csv
train nano --data.length 1 | data.length
train nano --noise nothing | noise
train nano --lora.alpha 2 | lora.alpha
train nano --device gpu | device
train nano --out a.txt | --out
export | required
export nothing --out o | nothing
push m | NAME
push missing a/b | missing
data prepare missing.txt --out o --tokenizer bytes | missing.txt
data prepare a.csv --out o --tokenizer bytes | a.csv
data prepare a.txt --out o --tokenizer bytes --tasks 0 | tasks
data prepare a.txt --out o --tokenizer bytes --validation -1 | validation
data prepare a.txt --out o --tokenizer bytes --format nothing | format
data prepare a.txt --out o --executor ray --ray.cpus-per-task 0 | cpus_per_task
data prepare a.txt --out o --executor slurm --slurm.tasks-per-job -1 | tasks_per_job
data show missing | missing
data verify missing | missing
data tokenizer missing.txt --out o --vocab-size 300 | missing.txt
data tokenizer a.txt --out o --vocab-size 3 | vocab_size
eval nothing | nothing
eval ppl m missing.txt | missing.txt
eval ppl m a.txt --repeats 0 | --repeats
eval samples nothing | installed
eval tasks nothing piqa | installed
eval samples m --num-samples 0 | --num-samples
eval self-correction m --temperatures -1 | --temperatures
eval tasks m missing.jsonl | missing.jsonl
compare missing.json a.json | missing.json
plot missing.json | missing.json
plot runs/x | runs/x
plot a.json --x a | --y
plot a.json --out x.jpg | --out
demo --seed x | --seed
demo --seed -1 | --seed
doctor --nothing | --nothing
plan nothing | nothing
plan nano --ranks 0 | ranks
plan nano --vocab-size 1 | vocab_size
plan nano --device nothing | device
plan nano --mfu 2 | mfu
completion nothing | nothing
"""
RUN = """
import contextlib, io, json, sys
from gidd.cli import main


class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise AssertionError("torch is imported")


sys.meta_path.insert(0, NoTorch())
results = []
for words in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(words)
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            code = repr(error)
    results.append([code, said.getvalue()])
print(json.dumps(results))
"""


@pytest.mark.slow
def test_mistakes_are_found_before_torch_is_imported(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "gidd.json").write_text("{}")
    for name in ("a.txt", "a.csv", "a.json"):
        (tmp_path / name).write_text("{}\n")
    cases = [line.split(" | ") for line in MISTAKES.strip().splitlines()]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        input=json.dumps([shlex.split(command) for command, _ in cases]),
        capture_output=True,
        text=True,
        env=os.environ | {"OPENAI_API_KEY": "none"},
        check=True,
    )
    failed = [
        f"{command}: {code} {' '.join(said.split())}"
        for (command, words), (code, said) in zip(cases, json.loads(done.stdout), strict=True)
        if code != 2 or words not in said
    ]
    assert not failed, "\n".join(failed)


def test_every_command_is_tried():
    tried = {line.split()[0] for line in MISTAKES.strip().splitlines()}
    assert COMMANDS.keys() <= tried
    evaluations = {line.split()[1] for line in MISTAKES.splitlines() if line.startswith("eval ")}
    assert EVALUATIONS.keys() <= evaluations
