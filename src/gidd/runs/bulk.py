"""Many samples into a folder: resumable, on this machine or on the actors of a Ray cluster.

    job = BulkJob(model="models/nano", num_samples=100_000)
    folder = sample_to_folder(job, "samples/nano", actors=ActorOptions(num_actors=8))
    for sample in iterate_samples("samples/nano"):
        ...

A sample is a function of model, settings and its index, so the work is a list of blocks of indices
in any order on any process. Finished blocks are files (`sample_folder`); to resume is to sample the
blocks without a valid file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch

import gidd
from gidd.common.actors import ActorOptions, map_on_ray
from gidd.common.allowed import SEED, field_problems, integer, optional
from gidd.common.codec import to_plain
from gidd.common.devices import choose
from gidd.errors import ConfigError
from gidd.pipeline.describe import describe_plan, describe_schedule
from gidd.pipeline.load import from_pretrained
from gidd.pipeline.options import SamplingOptions
from gidd.pipeline.pipeline import Pipeline
from gidd.pipeline.precision import Precision, choose_precision
from gidd.runs.sample_folder import (
    BLOCK_SIZE,
    BulkSample,
    SampleFolder,
    open_sample_folder,
    require_same_settings,
)

logger = logging.getLogger(__name__)

OnBlock = Callable[[int, int], None]
"""Called with the number of finished samples and of all samples."""

_NAMED_FILES = 5


@final
@dataclass(frozen=True, kw_only=True)
class BulkJob:
    """Samples to draw; the arguments of `Pipeline.generate` and `gidd.from_pretrained`."""

    model: str
    num_samples: int
    seed: int = 0
    start_index: int = 0
    prompt: str = ""
    suffix: str = ""
    length: int | None = None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)

    tokenizer: str | None = None
    device: str | None = None
    """None: the fastest available; on Ray "cuda" if actors have a GPU, else "cpu"."""

    precision: Precision | None = None
    """None: bf16 on CUDA, float32 on other devices."""

    rows_per_call: int | None = None
    """Batch size of a forward pass; None: 1 on a CPU and 16 on other devices."""

    block_size: int = 64
    """Samples per file."""

    threads: int = 1
    """CPU threads of a process or actor: the last bits of a sum may depend on their number."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid field, each starting with its name."""
        yield from field_problems(
            self,
            num_samples=integer(1),
            seed=SEED,
            start_index=SEED,
            rows_per_call=optional(integer(1)),
            block_size=BLOCK_SIZE,
            threads=integer(1, 1024),
        )

    def load(self, device: str | None) -> Pipeline:
        """Load the model."""
        return from_pretrained(
            self.model,
            device=device,
            precision=self.precision,
            rows_per_call=self.rows_per_call,
            tokenizer=self.tokenizer,
        )

    def settings(self, pipe: Pipeline) -> dict[str, Any]:
        """Return everything that decides a sample, given the model on any device."""
        settings = {
            "gidd": gidd.__version__,
            "torch": str(torch.__version__),
            "model": {name: pipe.source.get(name) for name in ("sha256", "steps")},
            "tokenizer": pipe.tokenizer.fingerprint,
            "schedule": describe_schedule(pipe.schedule),
            "context": pipe.context,
            "prompt": self.prompt,
            "suffix": self.suffix,
            "length": self.length,
            "seed": self.seed,
            "start_index": self.start_index,
            "block_size": self.block_size,
            "sampling": to_plain(self.sampling),
            "device": self.device,
            "precision": self.precision,
            "rows_per_call": self.rows_per_call,
            "threads": self.threads,
        }
        return json.loads(json.dumps(settings))  # as the manifest is read: without tuples


def sample_to_folder(
    job: BulkJob,
    out: str | Path,
    *,
    actors: ActorOptions | None = None,
    on_block: OnBlock | None = None,
) -> SampleFolder:
    """Write the samples of a job to a folder; the same call resumes an interrupted one.

    Args:
        job: What to sample. Its number of samples can be raised later.
        out: A new folder, or one of the same job. On a cluster, all machines must see it and the
            model under the same paths.
        actors: Sample on the actors of a Ray cluster; None: in this process.
        on_block: Called at the start and after each block.
    """
    if found := [*job.problems(), *(actors.problems("ray.") if actors else ())]:
        raise ConfigError("\n".join(found))
    job = _resolved(job, actors)
    pipe = job.load("cpu" if actors else job.device)
    for note in pipe.notes:
        logger.warning("%s", note)
    about = {
        "model": pipe.source.get("name"),
        "notes": list(pipe.notes),
        "plan": describe_plan(job.sampling.plan()),
    }
    folder = SampleFolder(Path(out).resolve(), job.settings(pipe), job.num_samples, about)
    with open_sample_folder(folder):
        blocks, invalid = folder.unfinished()
        if invalid:
            names = [path.name for path in invalid[:_NAMED_FILES]]
            names += ["..."] if len(invalid) > len(names) else []
            logger.warning(
                "%d files in %s are damaged or of other settings and are sampled again: %s",
                *(len(invalid), invalid[0].parent, ", ".join(names)),
            )
        done = job.num_samples - sum(map(len, blocks))
        if on_block:
            on_block(done, job.num_samples)
        for number in _run(job, pipe, folder, blocks, actors):
            done += number
            if on_block:
                on_block(done, job.num_samples)
    return folder


def _resolved(job: BulkJob, actors: ActorOptions | None) -> BulkJob:
    """Return the job with the device, batch size and paths that all processes use."""
    default = ("cuda" if actors.num_gpus else "cpu") if actors else choose(job.device).type
    device = job.device or default
    rows = job.rows_per_call or (1 if device == "cpu" else 16)
    model, tokenizer = _absolute(job.model), job.tokenizer and _absolute(job.tokenizer)
    return replace(
        job,
        model=model,
        tokenizer=tokenizer,
        device=device,
        precision=choose_precision(job.precision, torch.device(device)),
        rows_per_call=rows,
    )


def _absolute(name: str) -> str:
    """Return the absolute path of a file or folder, and any other name unchanged."""
    return str(Path(name).resolve()) if Path(name).exists() else name


def _run(
    job: BulkJob,
    pipe: Pipeline,
    folder: SampleFolder,
    blocks: Sequence[range],
    actors: ActorOptions | None,
) -> Iterator[int]:
    """Sample blocks and yield the number of samples of each when it is written."""
    if actors is None:
        with _threads(job.threads):
            yield from map(BlockSampler(job, pipe, folder), blocks)
        return
    items = [(block.start, block.stop) for block in blocks]
    for _, number in map_on_ray(_start_actor, (job, str(folder.path)), items, actors):
        yield number


@final
@dataclass(frozen=True)
class BlockSampler:
    """Samples a block and writes its file."""

    job: BulkJob
    pipe: Pipeline
    folder: SampleFolder

    def __call__(self, block: range) -> int:
        """Return the number of samples."""
        job = self.job
        generations = self.pipe.generate(
            len(block),
            start_index=block.start,
            prompt=job.prompt,
            suffix=job.suffix,
            length=job.length,
            seed=job.seed,
            options=job.sampling,
        )
        self.folder.write_block(
            [
                BulkSample(index, generation.text, generation.tokens, generation.calls)
                for index, generation in zip(block, generations, strict=True)
            ]
        )
        return len(block)


def _start_actor(job: BulkJob, path: str) -> Callable[[list[int]], int]:
    """Load the model on an actor; its machine may have another model or version at that path."""
    torch.set_num_threads(job.threads)
    pipe, folder = job.load(job.device), SampleFolder.read(path)
    require_same_settings(folder, job.settings(pipe))
    sample = BlockSampler(job, pipe, folder)
    return lambda bounds: sample(range(*bounds))


@contextmanager
def _threads(number: int) -> Generator[None]:
    """Set torch's number of CPU threads while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
