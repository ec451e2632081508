"""Kill a training at random moments until it is done, and compare it with an uninterrupted one.

    PYTHONPATH=tests python -m support.kill_training --kills 200 --json

Every attempt is a process of its own, forked from this one, which has imported everything and
computed nothing. It is killed (SIGKILL) at a random time after its start, at a random time after
its next step, or at one of the stages of a save, where it stops itself (SIGSTOP). Prints one JSON
object.
"""

import argparse
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from gidd.training import loop
from gidd.training.checkpoints import folder as checkpoint_folder, manager
from gidd.training.checkpoints.folder import damage, folder_name, steps_in
from support.training_runs import final_tensors, reported, speeches, tiny_run, train_here

SAVE_EVERY = 10
MOST_STEPS = SAVE_EVERY + 3
"""Steps after which an attempt stops itself, so that the kills end before the training does."""

SAVE_STAGES = [
    (manager, "write_tensors"),
    (manager, "entry"),
    (checkpoint_folder, "write_text"),
    (checkpoint_folder, "write_manifest"),
    (checkpoint_folder, "fsync"),  # of the folder, after the rename
]
PATIENCE = 300.0
logging.getLogger("absl").setLevel(logging.ERROR)  # the data loader's: jax is missing


def campaign(
    folder: Path, kills: int, seed: int = 0, *, is_mixture: bool = False
) -> dict[str, object]:
    """Train once uninterrupted and once with kills; return what happened to the second.

    A mixture reads two folders by weights, shuffled by blocks.
    """
    child(lambda: speeches(folder / "data", vocab_size=300, documents=20))
    run = tiny_run(
        folder / "data",
        steps=SAVE_EVERY * (kills + 2),  # a killed attempt adds one checkpoint at most
        save_every=SAVE_EVERY,
        keep_every=10 * SAVE_EVERY,
    )
    if is_mixture:
        shutil.copytree(folder / "data", folder / "again")
        sources = f"{folder / 'data'}*3", f"{folder / 'again'}*1"
        data = replace(run.data, folder=None, sources=sources, shuffle="blocks")
        run = replace(run, data=data)
    undisturbed, killed = folder / "undisturbed", folder / "killed"
    assert child(lambda: train_here(run, undisturbed)) == 0
    moments, while_saving = random.Random(seed), 0
    worst, damaged, checkpoints = 0, [], killed / "checkpoints"
    number = {"start": kills // 5, "save": 2 * kills // 5}
    number["step"] = kills - sum(number.values())
    for kind in moments.sample(list(number), kills, counts=list(number.values())):
        left = set(checkpoints.glob(".step-*"))  # by the last kill; deleted by the next start
        where = moments.choice(SAVE_STAGES) if kind == "save" else (loop, "update")
        calls, after = (1, moments.random() < 0.5) if kind == "save" else (MOST_STEPS, True)

        def attempt(where=where, calls=calls, after=after):
            stop_at(*where, calls=calls, after=after)
            train_here(run, killed)

        pid = fork(attempt)
        wait_for_the_moment(kind, killed, pid, moments)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"an attempt ended before its kill: {status}"
        while_saving += kind == "save" or bool(set(checkpoints.glob(".step-*")) - left)
        damaged += broken(checkpoints)
        worst = max(worst, reached(killed) - newest(checkpoints))
    assert child(lambda: train_here(run, killed)) == 0
    equal = reported(killed) == reported(undisturbed)
    same = child(lambda: sys.exit(not same_tensors(run, undisturbed, killed))) == 0
    leftovers = [path.name for path in checkpoints.iterdir() if path.name.startswith(".")]
    return {
        "kills": kills,
        "kills_while_saving": while_saving,
        "damaged_checkpoints": damaged,
        "steps_lost_at_most": worst,
        "save_every": SAVE_EVERY,
        "same_reports": equal,
        "same_tensors": same,
        "leftovers": leftovers,
    }


def stop_at(module: ModuleType, name: str, *, calls: int, after: bool) -> None:
    """Make this process stop itself before or after a call of a function, the n-th one."""
    function, seen = getattr(module, name), 0

    def stopping(*args, **options):
        nonlocal seen
        seen += 1
        if seen == calls and not after:
            os.kill(os.getpid(), signal.SIGSTOP)
        result = function(*args, **options)
        if seen == calls and after:
            os.kill(os.getpid(), signal.SIGSTOP)
        return result

    setattr(module, name, stopping)


def wait_for_the_moment(kind: str, out: Path, pid: int, moments: random.Random) -> None:
    """Wait for a random time from the start or from the next step, or for a stage of a save."""
    end, start = time.monotonic() + PATIENCE, reached(out)
    while kind != "start" and not has_stopped(pid):
        if kind == "step" and reached(out) > start:
            break
        assert time.monotonic() < end, "the run makes no progress"
        time.sleep(0.0005)
    if kind != "save":
        time.sleep(moments.uniform(0.0, 2.0 if kind == "start" else 0.2))


def has_stopped(pid: int) -> bool:
    """Whether a child is stopped, or dead; leaves its status for `waitpid`."""
    options = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, options) is not None


def hold_while_saving(checkpoints: Path, pids: list[int], moments: random.Random) -> None:
    """Stop processes that save all the time while they write a checkpoint, at a random moment."""
    end = time.monotonic() + PATIENCE
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
    """The last step that was reported; the last line may be incomplete."""
    try:
        lines = (out / "metrics.jsonl").read_text().split("\n")[:-1]
    except FileNotFoundError:  # a run that starts from step 0 removes it
        return 0
    return json.loads(lines[-1])["step"] if lines else 0


def broken(checkpoints: Path) -> list[str]:
    """Damage of all visible checkpoints."""
    return [
        wrong
        for step in steps_in(checkpoints)
        for wrong in damage(checkpoints / folder_name(step), step, 0, 1)
    ]


def same_tensors(run, one: Path, other: Path) -> bool:
    import torch

    run = replace(run, data=replace(run.data, folder=run.data.prepared[0]))
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
    parser.add_argument("--mixture", action="store_true", help="of two folders, by blocks")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder), arguments.kills, arguments.seed
        outcome = campaign(*settings, is_mixture=arguments.mixture)
    print(json.dumps(outcome | {"seconds": round(time.monotonic() - began)}))
