"""A preparation on many machines that share a file system, through datatrove's executors.

    with begun(["pages/"], tokenizer, "data/pages") as preparation:
        run_on_ray(preparation, RayOptions(address="auto"))
        submit_to_slurm(preparation, SlurmOptions(partition="cpu"))

datatrove brings the tasks to the machines; what a task does is `write_shards`, as on one machine.
So the bytes are the same, a finished shard is never written again, and whether a task is finished
is for its record to say: datatrove's own marks are not asked.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from gidd.common.files import remove_leftovers
from gidd.common.optional import optional_package
from gidd.data.manifest import DataManifest
from gidd.data.preparation.prepare import LOGS, Preparation
from gidd.data.preparation.tasks import Work, finished, write_shards
from gidd.data.preparation.work_plan import plan_digest, read_plan
from gidd.errors import ConfigError, DataError, GiddError


@final
@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """How much of a Ray cluster to use."""

    address: str | None = None
    """"auto", "ray://HOST:PORT" or "HOST:PORT". None: $RAY_ADDRESS, else Ray starts here."""

    cpus_per_task: int = 1
    memory_per_cpu_gb: int = 2
    tasks_at_once: int | None = None
    """None: as many as there is room for."""


@final
@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What to ask Slurm for."""

    partition: str = ""
    """Must be given; `sinfo` lists them."""

    time: str = "12:00:00"
    """Limit for one task."""

    cpus_per_task: int = 1
    memory_per_cpu_gb: int = 2
    tasks_at_once: int | None = None
    """None: as many as there is room for."""

    tasks_per_job: int = 1
    """Tasks that one job does one after the other: more than 1 where jobs are many and short."""

    max_array_size: int = 1001
    """MaxArraySize of the cluster (`scontrol show config`); more jobs become several arrays."""

    qos: str = ""
    account: str = ""
    setup: str = ""
    """A shell command that each job runs first, such as "module load python"."""


def run_on_ray(preparation: Preparation, options: RayOptions) -> DataManifest:
    """Do what is left on a Ray cluster, wait for it and write the manifest."""
    remove_leftovers(preparation.out)
    left = preparation.left()
    if left:
        executors = optional_package("datatrove.executor.ray", "cluster")
        ray = optional_package("ray", "cluster")
        ray.init(address=options.address, ignore_reinit_error=True, log_to_driver=False)
        try:
            executors.RayPipelineExecutor(
                [_DoTask(left, options.cpus_per_task)],
                tasks=len(left),
                workers=options.tasks_at_once or -1,
                cpus_per_task=options.cpus_per_task,
                mem_per_cpu_gb=options.memory_per_cpu_gb,
                logging_dir=str(_logs(preparation, "ray")),
                skip_completed=False,
            ).run()
        finally:
            ray.shutdown()
    return preparation.finish()


def submit_to_slurm(preparation: Preparation, options: SlurmOptions) -> DataManifest | None:
    """Submit what is left as an array of jobs, and a job that then writes the manifest.

    Returns:
        None once jobs are submitted; the manifest if nothing was left to do.
    """
    left = preparation.left()
    if not left:
        return preparation.finish()
    require_submittable(preparation.out, options)
    name = job_name(preparation.out)
    executors = optional_package("datatrove.executor.slurm", "cluster")
    remove_leftovers(preparation.out)
    bin_folder = Path(sys.executable).parent  # where datatrove's commands are
    setup = [options.setup, f'export PATH={shlex.quote(str(bin_folder))}:"$PATH"']
    common: dict[str, Any] = {
        "time": options.time,
        "partition": options.partition,
        "mem_per_cpu_gb": options.memory_per_cpu_gb,
        "job_name": name,
        "qos": options.qos,
        "env_command": "; ".join(filter(None, setup)),
        # a job that can never start must not stay in the queue
        "sbatch_args": {"kill-on-invalid-dep": "yes"}
        | ({"account": options.account} if options.account else {}),
        "skip_completed": False,
        "with_srun": False,
    }
    tasks = executors.SlurmPipelineExecutor(
        [_DoTask(left, options.cpus_per_task)],
        tasks=len(left),
        cpus_per_task=options.cpus_per_task,
        workers=options.tasks_at_once or -1,
        tasks_per_job=options.tasks_per_job,
        max_array_size=options.max_array_size,
        logging_dir=str(_logs(preparation, "slurm")),
        **common,
    )
    finish = executors.SlurmPipelineExecutor(
        [_Finish(preparation)],
        tasks=1,
        depends=tasks,
        run_on_dependency_fail=True,  # to say which tasks are not finished
        logging_dir=str(_logs(preparation, "slurm-finish")),
        **common,
    )
    try:
        finish.run()  # submits the tasks first
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"sbatch refused the jobs, exit code {error.returncode}; what it said is above. "
            "Correct the options of --slurm (partition, time, account) and run the command again."
        ) from error
    return None


def job_name(out: Path) -> str:
    """What all jobs of a folder are called in the queue."""
    return f"gidd-{hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:12]}"


def require_submittable(out: Path, options: SlurmOptions) -> None:
    """Refuse what Slurm would not take, or would do twice."""
    if not options.partition:
        raise ConfigError(
            "slurm.partition must be given, got none. Use one of those that `sinfo` lists: "
            "--slurm.partition NAME."
        )
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        raise ConfigError(
            "this is a task of a Slurm array, and jobs cannot be submitted from there. "
            "Run the command on a login node."
        )
    name = job_name(out)
    try:
        words = ["squeue", "--noheader", "--name", name]
        queued = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError as error:
        raise ConfigError(
            "squeue is not on the PATH, so Slurm cannot be used from this machine. "
            "Run the command on a login node of the cluster."
        ) from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"squeue failed: {error.stderr.strip()}. Run the command on a login node of the "
            "cluster, and check there that `squeue` works."
        ) from error
    if queued.strip():
        raise DataError(
            f"jobs of this folder are still in the queue (`squeue --name {name}`). Wait for them, "
            f"or end them with `scancel --name {name}` and run the command again."
        )


def _logs(preparation: Preparation, name: str) -> Path:
    """Folder for logs and for what jobs load, which may hold the password of a URL."""
    folder = preparation.out.resolve() / LOGS / name
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


class _Step:
    """A step of a datatrove pipeline, on a machine of the cluster.

    Not a dataclass: datatrove writes those to its logs field by field, URLs and all.
    """

    def __init__(self) -> None:
        self._folder = Path.cwd()  # sources may be relative to it

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        os.chdir(self._folder)
        try:
            self.do(rank)
        except GiddError as error:
            message = str(error)
        else:
            return
        raise DataError(message)  # from here: the logs show the values of what led to an error

    def do(self, rank: int) -> None:
        raise NotImplementedError("each step says what it does")


@final
class _DoTask(_Step):
    """Rank i does the i-th of the tasks that were left."""

    def __init__(self, left: Sequence[Work], threads: int) -> None:
        super().__init__()
        self._left, self._threads = tuple(left), threads

    def do(self, rank: int) -> None:
        work = self._left[rank]
        if plan_digest(read_plan(work.out)) != work.plan:
            raise DataError(
                f"{work.out} has another plan by now: this job is of an older command. "
                "Nothing to do; the newer command makes the shards."
            )
        os.environ["RAYON_NUM_THREADS"] = str(self._threads)  # of the tokenizer
        if finished(work) is None:
            write_shards(work, lambda documents, tokens: None)


@final
class _Finish(_Step):
    """Writes the manifest, or says what is missing."""

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        self._preparation = preparation

    def do(self, rank: int) -> None:
        self._preparation.finish()
