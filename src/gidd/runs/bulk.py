"""Many samples into a folder: resumable, on this machine or on the actors of a Ray cluster.

    manifest.json                       settings that determine every sample, and their number
    samples/00000000-00000064.jsonl     a shard: a line per sample, with the fields of `BulkSample`

A sample depends on model, settings and its index only: a shard that exists is done.
"""

import json
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import torch

import gidd
from gidd.common import files
from gidd.common.actors import ActorOptions, map_on_ray
from gidd.common.config.allowed import SEED, integer, problems_of, require_none
from gidd.common.config.codec import to_plain
from gidd.common.devices import resolve_device
from gidd.common.files import MANIFEST_BYTES
from gidd.common.terminal import shorten
from gidd.errors import ConfigError, DataError
from gidd.pipeline.load import from_pretrained
from gidd.pipeline.options import SamplingOptions
from gidd.pipeline.pipeline import Pipeline
from gidd.pipeline.precision import Precision, choose_precision
from gidd.pipeline.results import describe_schedule
from gidd.training.recorded import changed_settings

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_FORMAT, _LOCK = "gidd samples 1", ".lock"


class BulkSample(NamedTuple):
    """One sample: its index, text and tokens up to end-of-text, and its forward passes."""

    id: int
    text: str
    tokens: tuple[int, ...]
    forward_passes: int


@dataclass(frozen=True, kw_only=True)
class BulkJob:
    """Samples to draw; the arguments of `Pipeline.generate` and `gidd.from_pretrained`."""

    model: str
    num_samples: Annotated[int, integer(1)]
    seed: Annotated[int, SEED] = 0
    start_index: Annotated[int, SEED] = 0
    prompt: str = ""
    suffix: str = ""
    length: Annotated[int, integer(1)] | None = None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    tokenizer: str | None = None
    device: str | None = None
    """None: the fastest available; on Ray "cuda" if actors have a GPU, else "cpu"."""
    precision: Precision | None = None
    batch_size: Annotated[int, integer(1)] | None = None
    """Batch size of a forward pass; None: 1 on a CPU and 16 on other devices."""
    block_size: Annotated[int, integer(1, 65_536)] = 64
    """Samples per shard."""
    threads: Annotated[int, integer(1, 1024)] = 1
    """CPU threads of a process or actor: the last bits of a sum may depend on their number."""

    def load(self, device: str | None, precision: Precision | None) -> Pipeline:
        """Load the model."""
        chosen: dict[str, Any] = {"tokenizer": self.tokenizer, "batch_size": self.batch_size}
        return from_pretrained(self.model, device=device, precision=precision, **chosen)

    def settings(self, pipe: Pipeline) -> dict[str, Any]:
        """Return everything that determines a sample, given the model on any device."""
        names = ("prompt", "suffix", "length", "seed", "start_index", "block_size")
        names += ("device", "precision", "batch_size", "threads")
        settings = {
            "gidd": gidd.__version__,
            "torch": str(torch.__version__),
            "model": {name: pipe.source.get(name) for name in ("sha256", "steps")},
            "tokenizer": pipe.tokenizer.fingerprint,
            "schedule": describe_schedule(pipe.schedule),
            "context": pipe.context,
            **{name: getattr(self, name) for name in names},
            "sampling": to_plain(self.sampling),
        }
        return json.loads(json.dumps(settings))  # as the manifest is read: without tuples


@dataclass(frozen=True)
class SampleFolder:
    """Samples from `start_index` on; `settings` are plain data and have it and `block_size`."""

    path: Path
    settings: dict[str, Any]
    num_samples: int

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read the manifest of a folder; `DataError` if it has none or it is invalid."""
        remedy = "Name a folder written by `gidd sample --out`, or sample again into another one."
        file = Path(path) / MANIFEST
        plain = files.read_json(file, remedy, DataError) if file.exists() else {}
        settings: Any = plain.get("settings")
        match plain.get("format"), plain.get("num_samples"), settings:
            case str(kind), int(total), {"start_index": int(first), "block_size": int(size)} if (
                kind == _FORMAT and total > 0 and size > 0 and first >= 0
            ):
                return cls(Path(path), settings, total)
            case _:
                raise DataError(f"{file} must exist and have format {_FORMAT!r}. {remedy}")

    @property
    def blocks(self) -> Iterator[range]:
        """The sample indices of each shard."""
        first, size = self.settings["start_index"], self.settings["block_size"]
        stop = first + self.num_samples
        return (range(i, min(i + size, stop)) for i in range(first, stop, size))

    def shard(self, block: range) -> Path:
        """Return the file of a block, named by its first index and the one after its last."""
        return self.path / "samples" / f"{block.start:08d}-{block.stop:08d}.jsonl"

    def require_same(self, settings: dict[str, Any]) -> None:
        """Raise `ConfigError` that names the settings in which the folder differs."""
        changed = changed_settings(self.settings, settings).items()
        if lines := [f"\n  {name}: {shorten(a)}, now {shorten(b)}" for name, (a, b) in changed]:
            problem = f"{self.path} has samples of other settings:{''.join(lines)}"
            raise ConfigError(f"{problem}\nResume with its settings, or name another folder.")


def iterate_samples(folder: str | Path) -> Iterator[BulkSample]:
    """Yield all samples of a finished folder in the order of their indices, a shard at a time.

    Raises `DataError` if a shard is missing, before the first sample, or is damaged.
    """
    opened = SampleFolder.read(folder)
    for path in map(opened.shard, opened.blocks):
        if not path.exists():
            raise DataError(f"{path} is missing. Run the command that writes the folder again.")
    for block in opened.blocks:
        path = opened.shard(block)
        lines = files.read_regular(path, DataError, MANIFEST_BYTES).splitlines()
        try:
            for index, line in zip(block, lines, strict=True):
                row: Any = files.parse_json(line, str(path))
                if row["id"] != index:
                    raise ValueError(f"sample {index} must be in line {index - block.start + 1}")
                yield BulkSample(index, row["text"], tuple(row["tokens"]), row["forward_passes"])
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path} is damaged: {error}. Delete it and sample again.") from error


def sample_to_folder(
    job: BulkJob,
    out: str | Path,
    *,
    actors: ActorOptions | None = None,
    on_block: Callable[[int, int], None] | None = None,
) -> SampleFolder:
    """Write the samples of a job to a folder; the same call resumes an interrupted one.

    Its number of samples can be raised later. `actors` sample on a Ray cluster, whose machines must
    see folder and model under the same paths; None samples in this process. `on_block` is called
    at the start and after each shard with the number of finished samples and of all samples.
    """
    require_none([*problems_of(job), *(problems_of(actors, "ray.") if actors else ())])
    default = ("cuda" if actors.num_gpus else "cpu") if actors else resolve_device(job.device).type
    device = str(job.device or default)
    names = {"model": job.model, "tokenizer": job.tokenizer}
    job = replace(  # what all processes use
        job,
        device=device,
        precision=choose_precision(job.precision, torch.device(device)),
        batch_size=job.batch_size or (1 if device == "cpu" else 16),
        **{k: str(Path(v).resolve()) for k, v in names.items() if v and Path(v).exists()},
    )
    # actors compute: this process only describes the model
    pipe = job.load("cpu", None) if actors else job.load(job.device, job.precision)
    for note in pipe.notes:
        if note not in pipe.tokenizer.notes:  # which it has logged
            logger.warning("%s", note)
    folder = SampleFolder(Path(out).resolve(), job.settings(pipe), job.num_samples)
    threads = torch.get_num_threads()
    with _locked(folder):
        blocks = [block for block in folder.blocks if not folder.shard(block).exists()]
        items = [[block.start, block.stop] for block in blocks]
        if actors is None:
            torch.set_num_threads(job.threads)
            written = enumerate(map(_shard_writer(job, pipe, folder), items))
        else:
            written = map_on_ray(_start_actor, (job, str(folder.path)), items, actors)
        finished = job.num_samples - sum(map(len, blocks))
        try:
            for _, num_samples in chain([(0, 0)], written):
                finished += num_samples
                if on_block:
                    on_block(finished, job.num_samples)
        finally:
            torch.set_num_threads(threads)
    return folder


@contextmanager
def _locked(folder: SampleFolder) -> Generator[None]:
    path = folder.path
    names = {entry.name for entry in path.iterdir()} if path.exists() else set[str]()
    others = {name for name in names - {_LOCK} if not name.endswith(files.TEMPORARY)}
    if others and MANIFEST not in names:
        raise ConfigError(f"{path} must be a new or empty folder, or have a {MANIFEST}.")
    path.mkdir(parents=True, exist_ok=True)
    busy = DataError(f"another process is sampling into {path}. Wait for it, or stop it.")
    with files.file_lock(path / _LOCK, busy):
        shards = set((path / "samples").glob("*-*.jsonl"))
        if shards:
            before = SampleFolder.read(path)
            before.require_same(folder.settings)
            if (num_samples := folder.num_samples) < before.num_samples:
                least = f"at least {before.num_samples:,} to resume {path}"
                raise ConfigError(f"num_samples must be {least}, got {num_samples:,}.")
        files.remove_leftovers(path)
        manifest = {"num_samples": folder.num_samples, "settings": folder.settings}
        files.write_json(path / MANIFEST, {"format": _FORMAT} | manifest)
        (path / "samples").mkdir(exist_ok=True)  # not before the manifest
        for stale in shards - set(map(folder.shard, folder.blocks)):
            stale.unlink()  # a last shard that was shorter
        yield


def _start_actor(job: BulkJob, path: str) -> Callable[[list[int]], int]:
    """Load the model on an actor; its machine may have another model or version at that path."""
    torch.set_num_threads(job.threads)
    pipe, folder = job.load(job.device, job.precision), SampleFolder.read(path)
    folder.require_same(job.settings(pipe))
    return _shard_writer(job, pipe, folder)


def _shard_writer(job: BulkJob, pipe: Pipeline, folder: SampleFolder) -> Callable[[list[int]], int]:
    def write(bounds: list[int]) -> int:
        block = range(*bounds)
        made = pipe.generate(
            job.prompt,
            n=len(block),
            suffix=job.suffix,
            length=job.length,
            seed=job.seed,
            start_index=block.start,
            options=job.sampling,
        )
        with files.atomic_write(folder.shard(block)) as file:
            for index, generation in zip(block, made, strict=True):
                fields = generation.text, generation.tokens, generation.forward_passes
                sample = BulkSample(index, *fields)
                file.write(json.dumps(sample._asdict()).encode() + b"\n")
        return len(block)

    return write
