"""From documents to token shards, on all cores; ended at any moment, it goes on where it was.

    prepare(["speeches/", "news.jsonl.zst"], gpt2(), "data/mine", validation=1000, workers=8)

The output folder:

| file | what it is |
| --- | --- |
| `manifest.json` | what there is, with checksums; written last |
| `tokenizer.json` | the tokenizer |
| `train/00000.ds`, `train/00000.ds.index` | tokens of a task's documents, and where each ends |
| `validation/...` | the same for the last documents of the sources |
| `tasks/plan.json`, `tasks/00000.json` | what is to be done, and what a finished task has made |
| `logs/...` | what the machines of a cluster had to say |

The shards are in datatrove's store format, but its `DocumentTokenizer` does not write them: it
writes under the final names from the start, so that a file cut short by a crash looks finished, it
keeps no checksums, and it knows no splits. Here a shard is written aside, forced to disk and
renamed, and its task's record comes last; so the bytes do not depend on the number of workers nor
on interruptions.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from gidd.common.files import file_lock, remove_leftovers
from gidd.data.corpora import resolve
from gidd.data.manifest import DataManifest, Split
from gidd.data.preparation.progress import PreparationProgress
from gidd.data.preparation.tasks import Work, finished, token_dtype, tokenizer_of, write_shards
from gidd.data.preparation.work_plan import (
    TASKS,
    TRAIN,
    VALIDATION,
    load_or_create_plan,
    plan_digest,
    plan_settings,
    read_plan,
    tasks_of,
)
from gidd.data.preparation.workers import run
from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError, DataError

LOGS = "logs"
"""Folder for what the machines of a cluster have to say."""


def prepare(
    sources: str | Path | Sequence[str | Path],
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    validation: float | None = None,
    tasks: int | None = None,
    workers: int = 1,
    command: str = "",
    quiet: bool = False,
) -> DataManifest:
    """Tokenize documents into a folder of shards; an end-of-text token closes each document.

    Args:
        sources: Files, folders, URLs and names of corpora. Their documents are taken in this order.
        tokenizer: Turns them into ids.
        out: Where to write. A run that was ended is continued if everything else is the same.
        validation: How many of the last documents are held out: a count, or a share below 1. By
            default what the corpora say, and none for files.
        tasks: Number of pieces, each at most one shard per split; by default 8, and more for more
            than 2 GB. Part of the result, unlike `workers`.
        workers: Number of processes. Scripts need `if __name__ == "__main__":` if it is not 1.
        command: What to note in the manifest.
        quiet: Show no progress.
    """
    begin = start_preparation(
        sources,
        tokenizer,
        out,
        validation=validation,
        tasks=tasks,
        workers=workers,
        command=command,
    )
    with begin as preparation:
        remove_leftovers(preparation.out)
        left = preparation.left()
        with PreparationProgress(sum(one.documents for one in left), quiet=quiet) as progress:
            run(write_shards, left, workers, progress.advance)
        return preparation.finish()


@final
@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What is to be done, cut into tasks that any process on any machine may do."""

    out: Path
    work: tuple[Work, ...]

    def left(self) -> list[Work]:
        """The tasks that are not finished."""
        return [one for one in self.work if finished(one) is None]

    def finish(self) -> DataManifest:
        """Write the manifest, once all tasks are done."""
        records = [finished(one) for one in self.work]
        missing = [one.name for one, record in zip(self.work, records, strict=True) if not record]
        if missing:
            names = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
            raise DataError(
                f"{self.out}: {len(missing)} of {len(self.work)} tasks are not finished ({names}). "
                f"{self.out / LOGS} says why. Run the same command again: what is done is kept."
            )
        splits: dict[str, Split] = {}
        for name in (TRAIN, VALIDATION):
            shards = tuple(record[name] for record in records if record and name in record)
            if shards:
                splits[name] = Split(shards=shards)
        plan = read_plan(self.out)
        tokenizer = tokenizer_of(
            self.out, plan_digest(plan)
        )  # loaded, if tasks ran in this process
        manifest = DataManifest(
            tokenizer=tokenizer.fingerprint,
            vocab=tokenizer.vocab,
            end_id=tokenizer.end_id,
            dtype=token_dtype(tokenizer),
            splits=splits,
            sources=tuple(plan["sources"]),
            command=plan["command"],
            known=plan.get("known", {}),
        )
        remove_leftovers(self.out)  # of workers that outlived a killed run by a moment
        manifest.write(self.out)
        return manifest


@contextmanager
def start_preparation(
    sources: str | Path | Sequence[str | Path],
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    validation: float | None = None,
    tasks: int | None = None,
    workers: int = 1,
    command: str = "",
) -> Generator[Preparation]:
    """Plan a preparation, or take up one that was ended; arguments as of `prepare`.

    Until the block ends, no other process can begin a preparation in that folder.
    """
    out = Path(out)
    found = resolve(sources)
    if found.tokenizer and found.tokenizer.fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"the tokenizer of {found.names[0]} must be its own, got another: the tokens are those "
            "of an exact source. Leave --tokenizer out, or use the corpus's `tokenizer()`."
        )
    asked = found.validation if validation is None else validation
    (out / TASKS).mkdir(parents=True, exist_ok=True)
    busy = f"{out} is being written by another `gidd data prepare`. Wait for it, or end it."
    with file_lock(out / TASKS / "lock", DataError(busy)):
        settings = plan_settings(found.documents, tokenizer, asked, tasks)
        notes = {"sources": found.names, "command": command, "known": found.known}
        plan = load_or_create_plan(out, found.documents, settings, notes, workers)
        tokenizer.save(out)
        dtype, digest = token_dtype(tokenizer), plan_digest(plan)
        work = tuple(Work.of(task, found.documents, out, dtype, digest) for task in tasks_of(plan))
        for folder in {out / split for one in work for split in one.parts}:
            folder.mkdir(exist_ok=True)
        yield Preparation(out=out, work=work)
