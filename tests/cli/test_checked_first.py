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

# each with what its message must name
MISTAKES = """
--nothing | nothing
smaple | gidd sample
dta | no command 'dta'
sample m --steps 0 | --steps
sample m --steps x | --steps
sample m --temperature -1 | --temperature
sample m --sampler nothing | sampler
sample m --device gpu | --device
sample m --precision fp7 | --precision
sample m --nothing | --nothing
sample m --stepps 3 | --stepps
sample m --live | --live
sample m --num-samples 0 --start-index -1 --length 0 | --num-samples | --start-index | --length
sample m --temperature nan --final-corrector-steps -1 | --temperature | --final-corrector-steps
sample m --self-correction.patience 0 | --self-correction.patience
sample m --self-correction.forward-passes 1 | --self-correction.forward-passes must be 0
sample m --stop '' | --stop must be a list of texts
sample m --stop a --suffix b | --stop must be omitted with --suffix
sample m --stop a --out b | --out writes whole samples
sample m --executor ray | --executor ray needs --out
sample m --out x --jsonl | --out writes files
sample m --out x --samples-per-file 0 --threads 0 | --samples-per-file must be | --threads must be
sample m --out x --ray.num-actors 0 | --ray.num-actors must be
sample m --out x --ray.num-gpus -1 | --ray.num-gpus must be
sample m --edits --confidence | --edits needs --jsonl | --confidence needs --jsonl
sample m --top-p 2 | --top-p must be a number in (0, 1], got 2.0
sample | MODEL
sample m --length 9 --max-tokens 9 | --max-tokens
sample nothing | installed
sample m/nothing | m is
chat nothing | installed
score nothing --text x | installed
chat | MODEL
chat m --max-tokens 0 | --max-tokens must be an integer of at least 1
chat m --stop '' | --stop must be a list of texts
chat m --steps 0 | --steps must be
infill m blanks | blank
infill m a[MASK]b --steps 0 | --steps
infill m a[MASK]b --seed -1 --top-k 0 --min-p 1 | --seed | --top-k | --min-p | got 1.0
correct missing.txt --model m | missing.txt cannot be read: No such file
correct --model m --text x --error-rate 1 | --error-rate must be a number in [0, 1), got 1.0
correct --model m --text x --min-confidence nan --error-rate 2 | --min-confidence | --error-rate
correct --model m | FILE
correct --model m a.txt --text b | FILE
correct --model m - - | - at most once
correct --model m --text b --in-place | --in-place
correct --model m --text b --protect ( | --protect must be a regular expression, got '('
correct --model m a.txt latin.txt --jsonl | latin.txt must be UTF-8
correct --model m a.txt a.csv | --in-place, --diff
correct --model m pipe | pipe must be a regular file, got a named pipe
correct --model m /dev/zero | /dev/zero must be a regular file, got a character device
correct --model m \udcff | a name in UTF-8
correct --model m a.txt --diff --jsonl | exclude each other
score m | either FILE
score m a.txt --text a | either FILE
score m - - | at most once
score m missing.txt | missing.txt cannot be read
score m a.txt --repeats 1 --max-forward-passes 3 | --repeats must be | --max-forward-passes needs
score m latin.txt | UTF-8
score m --text '' | empty
score m --text x --repeats 0 | --repeats
serve | models
serve m --port 99999999 | --port
serve m --batch-size 0 | --batch-size
serve m --replicas 0 | --replicas
serve m --max-requests 0 | --max-requests
serve m --seconds -1 | --seconds
serve m --max-bytes 0 | --max-bytes
train nnano | nano | preset
train . | --out . | preset
train --dry-run | --dry-run | preset
train nano --noise.p-uniform 1 --backbone.width 30 | noise.p_uniform | backbone.width
train nano --steps 3 | --steps
train nano --train.steps 0 --train.global-batch 0 | train.steps | train.global_batch
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
data prepare a.txt --out o --tokenizer gpt2 --executor slurm | partition
data prepare a.txt --out o --tokenizer bytes --executor ray --workers 2 | --workers
data prepare a.txt --out o | --tokenizer
data prepare a.txt --out o --tokenizer a/b/c | a/b/c is neither
data prepare | required
data prepare a.txt --out o --tokenizer bytes --validation -1 | validation
data prepare a.txt --out o --tokenizer bytes --format nothing | format
data prepare a.txt --out o --executor ray --ray.cpus-per-task 0 | cpus_per_task
data prepare a.txt --out o --executor slurm --slurm.tasks-per-job -1 | tasks_per_job
data show missing | missing does not exist
data show m | m/manifest.json does not exist
data verify missing | missing does not exist
data tokenizer missing.txt --out o --vocab-size 300 | missing.txt is neither
data tokenizer a.txt --out o --vocab-size 3 | vocab_size must be at least 259
data tokenizer --vocab-size 300 --out o | at least one
data tokenizer a.txt --vocab-size many --out o | --vocab-size
eval nothing | nothing
eval ppl m missing.txt | missing.txt
eval ppl m | SOURCE must be
eval ppl m a.txt --repeats 0 | --repeats
eval ppl m a.txt --stride 9 --length 4 | --stride must be at most the length 4, got 9
eval ppl m a.txt --max-forward-passes 9 | --max-forward-passes needs --max-se
eval samples nothing | installed
eval tasks nothing piqa | installed
eval samples m --num-samples 0 --steps -1 | --num-samples must be | --steps must be
eval samples m --max-length 1 --grader m | --max-length must be
eval tasks m | TASK
eval tasks m paper --repeats 0 --confidence 2 | --repeats | --confidence
eval tasks m paper --limit 0 | --limit
eval self-correction m --temperatures -1 | --temperatures
eval tasks m missing.jsonl | missing.jsonl
compare missing.json a.json | missing.json
compare a.json | required
plot missing.json | missing.json is not a file
plot | at least one
plot runs/x | runs/x
plot a.json --x a | --y
plot a.json --out x.jpg | --out
demo --seed x | --seed
demo --seed -1 | --seed
doctor --nothing | --nothing
plan nnano | nano
plan 10b --parallel ddp --parallel.shard-size 8 | --parallel.shard-size
plan nano --ranks 0 | ranks
plan nano --vocab-size 1 | vocab_size
plan nano --device h1000 | 'h1000' | h200 | rtx4090 | cpu
plan nano --mfu 1.5 | mfu
plan nano --copy-gb-per-second 0 | copy_gb_per_second
completion nothing | nothing
"""
RUN = """
import contextlib, io, json, sys
from gidd.cli import main


class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers"):  # both are slow to import
            raise AssertionError(f"{name} is imported")


sys.meta_path.insert(0, NoTorch())
results = []
for words in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed := io.StringIO()):
        try:
            main(words)
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            code = repr(error)
    results.append([code, said.getvalue(), printed.getvalue()])
print(json.dumps(results))
"""


@pytest.mark.slow
def test_mistakes_are_found_before_torch_is_imported(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "gidd.json").write_text("{}")
    for name in ("a.txt", "a.csv", "a.json"):
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "latin.txt").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")
    cases = [line.split(" | ") for line in MISTAKES.strip().splitlines()]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        input=json.dumps([shlex.split(command) for command, *_ in cases]),
        capture_output=True,
        text=True,
        env=os.environ | {"OPENAI_API_KEY": "none"},
        check=True,
    )
    failed: list[str] = []
    for (command, *words), (code, said, printed) in zip(
        cases, json.loads(done.stdout), strict=True
    ):
        message = " ".join(said.replace("│", " ").split())
        if code != 2 or printed or not all(word in message for word in words):
            failed.append(f"{command}: {code} {printed}{message}")
    assert not failed, "\n".join(failed)


def test_every_command_is_tried():
    tried = {line.split()[0] for line in MISTAKES.strip().splitlines()}
    assert COMMANDS.keys() <= tried
    evaluations = {line.split()[1] for line in MISTAKES.splitlines() if line.startswith("eval ")}
    assert EVALUATIONS.keys() <= evaluations
