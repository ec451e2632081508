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

The shards are in datatrove's store format, but its `DocumentTokenizer` does not write them: it
writes under the final names from the start, so that a file cut short by a crash looks finished, it
keeps no checksums, and it knows no splits. Here a shard is written aside, forced to disk and
renamed, and its task's record comes last; so the bytes do not depend on the number of workers nor
on interruptions.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gidd.data.corpora import resolve
from gidd.data.documents import Documents
from gidd.data.files import read_json, remove_leftovers, write_json
from gidd.data.manifest import MANIFEST, Manifest, Split
from gidd.data.plan import (
    TRAIN,
    VALIDATION,
    Task,
    identity,
    make_tasks,
    num_held_out,
    num_tasks,
    plan_digest,
)
from gidd.data.progress import PreparationProgress
from gidd.data.tasks import TASKS, Work, finished, token_dtype, write_shards
from gidd.data.tokenizers import Tokenizer
from gidd.data.workers import Report, run
from gidd.errors import DataError

PLAN = "plan.json"


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
) -> Manifest:
    """Tokenize documents into a folder of shards; an end-of-text token closes each document.

    Args:
        sources: Files, folders and names of corpora. Their documents are taken in this order.
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
    out = Path(out)
    sources = [sources] if isinstance(sources, str | Path) else sources
    documents, usual = resolve(sources)
    asked = usual if validation is None else validation
    out.mkdir(parents=True, exist_ok=True)
    with _alone(out):
        remove_leftovers(out)
        settings = identity(documents, tokenizer, asked, tasks)
        notes = {"sources": [str(source) for source in sources], "command": command}
        plan = _plan(out, documents, settings, notes, workers)
        tokenizer.save(out)
        dtype, digest = token_dtype(tokenizer), plan_digest(plan)
        tasks_to_do = _cut(documents, plan)
        work = [Work.of(task, documents, out, dtype, digest) for task in tasks_to_do]
        _do(work, workers, quiet)
        manifest = _manifest(work, tokenizer, plan)
        remove_leftovers(out)  # of workers that outlived a killed run by a moment
        manifest.write(out)
    return manifest


@contextmanager
def _alone(out: Path) -> Generator[None]:
    """No two runs in one folder. The lock is the system's and ends with the process."""
    try:
        import fcntl
    except ModuleNotFoundError:  # not on Windows, where two runs are on their own
        yield
        return
    descriptor = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(
                f"{out} is being written by another `gidd data prepare`. Wait for it, or end it."
            ) from error
        yield
    finally:
        os.close(descriptor)


def _plan(
    out: Path,
    documents: list[Documents],
    settings: dict[str, Any],
    notes: dict[str, Any],
    workers: int,
) -> dict[str, Any]:
    """The plan of the run that is continued, or a new one: how many documents each source has."""
    path = out / TASKS / PLAN
    if path.is_file():
        plan = read_json(path, f"Delete the folder {out} and prepare again.")
        changed = [field for field, value in settings.items() if plan.get(field) != value]
        if not changed:
            return plan
        if any((out / TASKS).glob("[0-9]*.json")):
            raise DataError(
                f"{out} was begun with other {' and '.join(changed)}, as {path} records. "
                "Use the same sources and settings, delete the folder, or choose another --out."
            )  # if nothing was finished, nothing is lost by beginning anew
    elif any(out.glob("*/*.ds")) or (out / MANIFEST).exists():
        raise DataError(
            f"{out} holds shards but no {TASKS}/{PLAN}: they are not of this preparation. "
            "Choose another --out folder."
        )
    long = sum(not source.quick_count for source in documents) > 1
    counts = run(
        _count, documents, workers if long else min(workers, 1), lambda _documents, _tokens: None
    )
    if not sum(counts) or not sum(source.stamp()[0] for source in documents):
        raise DataError(
            f"{', '.join(notes['sources'])}: there is no document in it. Check the sources."
        )
    plan = settings | notes | {"counts": counts}
    _cut(documents, plan)  # refuses bad settings before they are recorded
    write_json(path, plan)
    return plan


def _cut(documents: list[Documents], plan: dict[str, Any]) -> list[Task]:
    total = sum(plan["counts"])
    size = sum(source.stamp()[0] for source in documents)
    held_out = num_held_out(plan["validation"], total)
    return make_tasks(plan["counts"], held_out, num_tasks(plan["tasks"], total, size))


def _count(documents: Documents, report: Report) -> int:
    report(0, 0)
    return documents.count()


def _do(work: list[Work], workers: int, quiet: bool) -> None:
    """Do every task that has not been finished."""
    left = [one for one in work if finished(one) is None]
    for folder in {one.out / split for one in left for split in one.parts}:
        folder.mkdir(exist_ok=True)
    with PreparationProgress(sum(one.documents for one in left), quiet=quiet) as progress:
        run(write_shards, left, workers, progress.advance)


def _manifest(work: list[Work], tokenizer: Tokenizer, plan: dict[str, Any]) -> Manifest:
    records = [finished(one) for one in work]
    assert None not in records
    splits: dict[str, Split] = {}
    for name in (TRAIN, VALIDATION):
        shards = tuple(record[name] for record in records if record and name in record)
        if shards:
            splits[name] = Split(shards=shards)
    return Manifest(
        tokenizer=tokenizer.fingerprint,
        vocab=tokenizer.vocab,
        end_id=tokenizer.end_id,
        dtype=token_dtype(tokenizer),
        splits=splits,
        sources=tuple(plan["sources"]),
        command=plan["command"],
    )
