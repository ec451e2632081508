"""Kill a training at random moments until it is done, and compare it with one left in peace.

    PYTHONPATH=tests python -m support.kill_training --kills 200 --json

Every attempt is a process of its own, forked from this one, which has imported everything and
computed nothing. It is killed (SIGKILL) after a random time from its start, from its next step, or
from the moment when it begins to write a checkpoint. Prints one JSON object.
"""

import argparse
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from gidd.training.checkpoints.folder import damage, folder_name, steps_in
from support.training_runs import final_tensors, reported, speeches, tiny_run, train_here

SAVE_EVERY = 10
logging.getLogger("absl").setLevel(logging.ERROR)  # the data loader's: says jax is missing


def campaign(folder: Path, kills: int, seed: int = 0) -> dict[str, object]:
    """Train once in peace and once under fire; what happened to the second."""
    child(lambda: speeches(folder / "data", vocab_size=300, documents=20))
    # long enough that the kills end before the training does
    run = tiny_run(
        folder / "data",
        steps=SAVE_EVERY * (2 * kills + 10),
        save_every=SAVE_EVERY,
        keep_every=10 * SAVE_EVERY,
    )
    peace, war = folder / "peace", folder / "war"
    assert child(lambda: train_here(run, peace)) == 0
    moments, done = random.Random(seed), {"while saving": 0, "otherwise": 0, "too late": 0}
    worst, damaged, checkpoints = 0, [], war / "checkpoints"
    number = {"start": kills // 5, "save": 2 * kills // 5}
    number["step"] = kills - sum(number.values())
    for kind in moments.sample(list(number), kills, counts=list(number.values())):
        left = set(checkpoints.glob(".step-*"))  # by the last kill; cleared by the next start
        pid = fork(lambda: train_here(run, war))
        wait_for_the_moment(kind, war, left, pid, moments)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            done["too late"] += 1
            break
        saving = bool(set(checkpoints.glob(".step-*")) - left)
        done["while saving" if saving else "otherwise"] += 1
        damaged += broken(checkpoints)
        worst = max(worst, reached(war) - newest(checkpoints))
    assert child(lambda: train_here(run, war)) == 0
    equal = reported(war) == reported(peace)
    same = child(lambda: sys.exit(not same_tensors(run, peace, war))) == 0
    leftovers = [path.name for path in checkpoints.iterdir() if path.name.startswith(".")]
    return {
        "kills": done["while saving"] + done["otherwise"],
        "kills_while_saving": done["while saving"],
        "damaged_checkpoints": damaged,
        "steps_lost_at_most": worst,
        "save_every": SAVE_EVERY,
        "same_reports": equal,
        "same_tensors": same,
        "leftovers": leftovers,
    }


def wait_for_the_moment(kind, out, left, pid, moments):
    """Any time from the start on; some time after the next step; or in the midst of a save."""
    patience, start = time.monotonic() + 60, reached(out)
    if kind == "start":
        time.sleep(moments.uniform(0.0, 2.0))
        return
    saving = kind == "save"
    while not (
        set((out / "checkpoints").glob(".step-*")) - left if saving else reached(out) > start
    ):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        assert time.monotonic() < patience, "the run does not get on"
        time.sleep(0.0005)
    if saving:
        hold_while_saving(out / "checkpoints", [pid], moments)
    else:
        time.sleep(moments.uniform(0.0, 0.2))


def hold_while_saving(checkpoints: Path, pids: list[int], moments: random.Random) -> None:
    """Stop the processes in the midst of writing a checkpoint, at a moment of its own each time."""
    end = time.monotonic() + 60
    while True:
        time.sleep(moments.uniform(0.0, 0.03))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        if any(checkpoints.glob(".step-*")):
            return
        assert time.monotonic() < end, "no checkpoint is being written"
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def newest(checkpoints: Path) -> int:
    return max(steps_in(checkpoints), default=0)


def reached(out: Path) -> int:
    """The last step that was reported; a line may be torn."""
    log = out / "metrics.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def broken(checkpoints: Path) -> list[str]:
    """Visible checkpoints that are not what their manifest says."""
    return [
        wrong
        for step in steps_in(checkpoints)
        for wrong in damage(checkpoints / folder_name(step), step, 0, 1)
    ]


def same_tensors(run, one: Path, other: Path) -> bool:
    import torch

    ours, theirs = final_tensors(run, one), final_tensors(run, other)
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


def fork(work) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except SystemExit as end:
        os._exit(int(end.code or 0))
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def child(work) -> int:
    _, status = os.waitpid(fork(work), 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outcome = campaign(Path(folder), arguments.kills, arguments.seed)
    print(json.dumps(outcome | {"seconds": round(time.monotonic() - began)}))
