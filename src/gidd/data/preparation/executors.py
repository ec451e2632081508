"""Run a preparation on a Slurm or Ray cluster with a shared file system, by datatrove's executors.

Each task runs `write_shards`, as on one machine, so the bytes are the same. A task is finished if
its record is valid; datatrove's own completion markers are not used.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from gidd.common.actors import ray_session
from gidd.common.config.allowed import integer
from gidd.common.files import remove_leftovers
from gidd.common.optional import optional_package
from gidd.common.urls import has_inline_secrets, without_credentials
from gidd.data.manifest import DataManifest
from gidd.data.preparation.prepare import LOGS, Preparation
from gidd.data.preparation.tasks import Work, finished, plan_digest, read_plan, write_shards
from gidd.errors import ConfigError, DataError, GiddError


@dataclass(frozen=True, kw_only=True)
class _Resources:
    cpus_per_task: Annotated[int, integer(1)] = 1
    """CPU cores per task."""
    memory_per_cpu_gb: Annotated[int, integer(1)] = 2
    """Memory per core, in GB."""
    tasks_at_once: Annotated[int, integer(1)] | None = None
    """Maximum number of tasks to run at once. None: no limit."""


@dataclass(frozen=True, kw_only=True)
class RayOptions(_Resources):
    """Resources of a Ray cluster."""

    address: str | None = None
    """"auto", "ray://HOST:PORT" or "HOST:PORT". None: $RAY_ADDRESS, else start Ray locally."""


@dataclass(frozen=True, kw_only=True)
class SlurmOptions(_Resources):
    """Options of the Slurm jobs."""

    partition: str = ""
    """Partition, required; `sinfo` lists them."""
    time: str = "12:00:00"
    """Time limit of one task."""
    tasks_per_job: Annotated[int, integer(1)] = 1
    """Tasks that each job runs in sequence; increase it for many short tasks."""
    max_array_size: Annotated[int, integer(1)] = 1001
    """MaxArraySize of the cluster (`scontrol show config`); more jobs become several arrays."""
    qos: str = ""
    """Quality of service. Empty: the default of the cluster."""
    account: str = ""
    """Account to charge. Empty: the default of the user."""
    setup: str = ""
    """Shell command that each job runs first, such as "module load python"."""


def run_on_ray(preparation: Preparation, options: RayOptions) -> DataManifest:
    """Run the unfinished tasks on a Ray cluster, wait for them and write the manifest."""
    remove_leftovers(preparation.out)
    if left := preparation.unfinished():
        executors = optional_package("datatrove.executor.ray", "cluster")
        with ray_session(options.address):
            executors.RayPipelineExecutor(
                [_Step(partial(_run_task, left, options.cpus_per_task))],
                tasks=len(left),
                workers=options.tasks_at_once or -1,
                cpus_per_task=options.cpus_per_task,
                mem_per_cpu_gb=options.memory_per_cpu_gb,
                logging_dir=_logs(preparation, "ray"),
                skip_completed=False,
            ).run()
    return preparation.finish()


def submit_to_slurm(preparation: Preparation, options: SlurmOptions) -> DataManifest | None:
    """Submit the unfinished tasks as jobs, then one that writes the manifest, and return None.

    Returns the manifest if all tasks were finished.
    """
    left = preparation.unfinished()
    if not left:
        return preparation.finish()
    opened = {part[0].location for work in left for part in work.parts}
    require_submittable(opened, preparation.out, options)
    executors = optional_package("datatrove.executor.slurm", "cluster")
    remove_leftovers(preparation.out)
    commands = shlex.quote(str(Path(sys.executable).parent))  # folder of datatrove's commands
    setup = [options.setup, f'export PATH={commands}:"$PATH"']
    common: dict[str, Any] = {
        "time": options.time,
        "partition": options.partition,
        "mem_per_cpu_gb": options.memory_per_cpu_gb,
        "job_name": job_name(preparation.out),
        "qos": options.qos,
        "env_command": "; ".join(filter(None, setup)),
        # remove jobs from the queue that can never start
        "sbatch_args": {"kill-on-invalid-dep": "yes"}
        | ({"account": options.account} if options.account else {}),
        "skip_completed": False,
        "with_srun": False,
    }
    tasks = executors.SlurmPipelineExecutor(
        [_Step(partial(_run_task, left, options.cpus_per_task))],
        tasks=len(left),
        cpus_per_task=options.cpus_per_task,
        workers=options.tasks_at_once or -1,
        tasks_per_job=options.tasks_per_job,
        max_array_size=options.max_array_size,
        logging_dir=_logs(preparation, "slurm"),
        **common,
    )
    finish = executors.SlurmPipelineExecutor(
        [_Step(partial(_finish, preparation))],
        tasks=1,
        depends=tasks,
        run_on_dependency_fail=True,  # to log the unfinished tasks
        logging_dir=_logs(preparation, "slurm-finish"),
        **common,
    )
    try:
        finish.run()  # submits the tasks first
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"sbatch rejected the jobs with exit code {error.returncode}; its output is above."
        ) from error
    return None


def job_name(out: Path) -> str:
    """Return the Slurm job name of all jobs of a folder."""
    return f"gidd-{hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:12]}"


def require_submittable(sources: Iterable[str], out: Path, options: SlurmOptions) -> None:
    """Raise if the jobs cannot be submitted, or are already in the queue."""
    for source in filter(has_inline_secrets, sources):
        raise ConfigError(
            f"{without_credentials(source)}: user, password and query of a URL must be references "
            "on Slurm, '${NAME}' to an environment variable or '${/path/of/a/file}'."
        )
    if not options.partition:
        raise ConfigError("--slurm.partition must be given, got none. `sinfo` lists them.")
    login = "Run the command on a login node of the cluster"
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        raise ConfigError(f"a task of a Slurm array cannot submit jobs. {login}.")
    name = job_name(out)
    try:
        words = ["squeue", "--noheader", "--name", name]
        queued = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError as error:
        raise ConfigError(f"squeue is not on the PATH. {login}.") from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"squeue failed: {error.stderr.strip()}. {login}.") from error
    if queued.strip():
        raise DataError(
            f"jobs of this folder are still in the queue (`squeue --name {name}`). Wait for them, "
            f"or cancel them with `scancel --name {name}`."
        )


def _logs(preparation: Preparation, name: str) -> str:
    folder = preparation.out.resolve() / LOGS / name
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return str(folder)


class _Step:
    """A step of a datatrove pipeline: calls a function of the rank on a machine of the cluster.

    Not a dataclass: datatrove logs the fields of dataclasses, which contain URLs.
    """

    def __init__(self, function: Callable[[int], None]) -> None:
        self._function = function
        self._folder = Path.cwd()  # relative sources refer to it

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        os.chdir(self._folder)
        try:
            self._function(rank)
        except GiddError as error:
            message = str(error)
        else:
            return
        raise DataError(message)  # outside `except`: datatrove logs the variables of chained errors


def _run_task(unfinished: Sequence[Work], threads: int, rank: int) -> None:
    work = unfinished[rank]
    if plan_digest(read_plan(work.out)) != work.plan:
        raise DataError(f"{work.out} has a newer plan than this job, which is obsolete.")
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # for the tokenizer
    if finished(work) is None:
        write_shards(work, lambda tasks: None)


def _finish(preparation: Preparation, rank: int) -> None:
    preparation.finish()
