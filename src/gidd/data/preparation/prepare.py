"""Tokenize documents into shards on all cores; an interrupted preparation can be resumed.

Shards (`train/00000.ds`, ...) are written atomically, then the record of their task (`tasks/`).
The numbers of documents in the records say which of them are held out: these are moved to
`validation/`, and last comes `manifest.json`. The bytes depend neither on the workers nor on
interruptions.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from os.path import commonprefix
from pathlib import Path
from statistics import median_low
from typing import Any

from gidd.common.files import file_lock, remove_leftovers
from gidd.common.messages import print_message, show_counts
from gidd.common.urls import without_credentials
from gidd.data.corpora import CorpusSource, corpora_of, resolve
from gidd.data.corpora.documents import Documents
from gidd.data.corpora.formats import whole_lines
from gidd.data.manifest import DataManifest, ShardRecord, Split
from gidd.data.preparation.tasks import (
    TASKS,
    TRAIN,
    VALIDATION,
    DataFormat,
    Validation,
    ValidationOrder,
    Work,
    finished,
    held_out_by_task,
    hold_out,
    load_or_create_plan,
    make_work,
    no_documents,
    num_held_out,
    plan_settings,
    read_plan,
    tokenizer_of,
    write_shards,
)
from gidd.data.processes import run_tasks
from gidd.data.tokenizers import FastTokenizer, Tokenizer, as_tokenizer
from gidd.errors import ConfigError, DataError, GiddError

LOGS = "logs"  # folder for the logs of cluster jobs
_SAMPLED, _SAMPLED_CHARACTERS = 4, 1000
_LARGE = 3  # times the median: tasks that the summary of a plan names
_log = logging.getLogger(__name__)


def prepare(
    sources: CorpusSource | Sequence[CorpusSource],
    tokenizer: Tokenizer | FastTokenizer,
    out: str | Path,
    *,
    validation: Validation | None = None,
    validation_order: ValidationOrder = "last",
    format: DataFormat = "text",
    tasks: int | None = None,
    workers: int = 1,
    quiet: bool = False,
) -> DataManifest:
    """Tokenize documents into a folder of shards; end-of-text is appended to each document.

    Args:
        sources: Files, folders, URLs and names of corpora; documents keep this order.
        tokenizer: The tokenizer, or a fast tokenizer of `transformers`.
        out: Output folder. An interrupted run is resumed if the other arguments are the same.
        validation: Number of documents to hold out, or a fraction below 1. Default: as the corpus
            defines, and none for files. "auto": as the corpus defines, otherwise a tenth of the
            documents, at least one, spaced evenly.
        validation_order: Which documents to hold out: the last ones, or the last ones of every
            task, which are spaced evenly over all documents.
        format: "text", or "chat": JSON lines with "messages", or with "prompt" and "response", of
            which the answers are generated and all else is given (`gidd.data.chat`).
        tasks: Number of tasks, each of at most one shard per split; by default 8, or one per 256 MB
            above 2 GB; fewer if files cannot be divided. Documents do not depend on it, but which
            of them share a shard does.
        workers: Number of processes. Scripts need `if __name__ == "__main__":` if it is not 1.
        quiet: Show no progress.
    """
    settings = (validation, validation_order, format, tasks)
    with start_preparation(sources, tokenizer, out, *settings) as started:
        if not quiet:
            print_message(started.summary())
        return run_locally(started, workers, quiet=quiet)


def run_locally(preparation: Preparation, workers: int, *, quiet: bool = False) -> DataManifest:
    """Run the unfinished tasks on `workers` processes of this machine; write the manifest."""
    remove_leftovers(preparation.out)
    left = preparation.unfinished()
    done = 0
    with nullcontext() if quiet else show_counts("preparing tasks") as show:

        def advance(tasks: int) -> None:
            nonlocal done
            done += tasks
            if show is not None:
                show(done, len(left))

        run_tasks(write_shards, left, workers, advance)
    return preparation.finish()


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A planned preparation, split into tasks that any process on any machine can run."""

    out: Path
    work: tuple[Work, ...]

    def unfinished(self) -> list[Work]:
        """Return the tasks that are not finished."""
        return [item for item in self.work if finished(item) is None]

    def summary(self) -> str:
        """Return the number of tasks, their bytes and the largest tasks, in a sentence or two."""
        total, median = sum(item.size for item in self.work), median_low(i.size for i in self.work)
        text = (
            f"{len(self.work):,} tasks read {_megabytes(total)}, each {_megabytes(median)} (median)"
        )
        if not (large := [item for item in self.work if item.size > _LARGE * median]):
            return f"{text}, the largest {_megabytes(max(item.size for item in self.work))}."
        large.sort(key=lambda item: item.size, reverse=True)
        names = ", ".join(
            f"{item.name} reads {_megabytes(item.size)} of {item.parts[0][0].name}"
            for item in large[:3]
        )
        return (
            f"{text}. Tasks of more than {_LARGE} times the median: {len(large):,}. {names}. "
            "Compressed files, text files and files of HTTP servers are read by one task each: "
            "split them, or convert them to Parquet, if this takes too long."
        )

    def finish(self) -> DataManifest:
        """Hold documents out and write the manifest; raise `DataError` if a task is unfinished."""
        records = {item.name: finished(item) for item in self.work}
        if missing := [name for name, record in records.items() if record is None]:
            names = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
            raise DataError(
                f"{self.out}: {len(missing)} of {len(self.work)} tasks are not finished ({names}). "
                f"See {self.out / LOGS}. Run the same command again: finished tasks are kept."
            )
        plan = read_plan(self.out)
        recorded = self._hold_out(
            plan, [record for record in records.values() if record is not None]
        )
        shards = {
            name: [record[name] for record in recorded if name in record]
            for name in (TRAIN, VALIDATION)
        }
        tokenizer = tokenizer_of(self.out, self.work[0].plan)  # cached if tasks ran in this process
        manifest = DataManifest(
            tokenizer=tokenizer.fingerprint,
            vocab=tokenizer.vocab,
            end_id=tokenizer.end_id,
            dtype=self.work[0].dtype,
            splits={name: Split.of(listed) for name, listed in shards.items() if listed},
            sources=tuple(plan["sources"]),
            command=plan["command"],
            known=plan["known"],
        )
        remove_leftovers(self.out)  # of workers that ended after a killed parent
        manifest.write(self.out)
        return manifest

    def _hold_out(
        self, plan: Mapping[str, Any], records: Sequence[Mapping[str, ShardRecord]]
    ) -> list[Mapping[str, ShardRecord]]:
        """Return the shards of all tasks after the validation documents are moved."""
        counts = [sum(shard.documents for shard in record.values()) for record in records]
        if not sum(counts):
            raise no_documents(plan["sources"])
        try:
            total = num_held_out(plan["validation"], sum(counts))
        except DataError:  # nothing is lost by starting again with another number
            for item in self.work:
                item.record.unlink()
            raise
        held_out = held_out_by_task(counts, total, plan["validation_order"])
        return [
            hold_out(item, record[TRAIN], documents)
            if documents and VALIDATION not in record
            else record
            for item, record, documents in zip(self.work, records, held_out, strict=True)
        ]


@contextmanager
def start_preparation(
    sources: CorpusSource | Sequence[CorpusSource],
    tokenizer: Tokenizer | FastTokenizer,
    out: str | Path,
    validation: Validation | None = None,
    validation_order: ValidationOrder = "last",
    format: DataFormat = "text",
    tasks: int | None = None,
    command: str = "",
) -> Generator[Preparation]:
    """Plan a preparation, or resume one, in a locked folder; arguments as in `prepare`.

    `command` is the command line to record in the manifest.
    """
    out, tokenizer = Path(out), as_tokenizer(tokenizer)
    corpora, documents = corpora_of(sources), resolve(sources)
    if format == "chat":
        documents = [whole_lines(source) for source in documents]
    last, names = corpora[-1], [without_credentials(corpus.name) for corpus in corpora]
    if (fixed := last.tokenizer()) and fixed.fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"the tokenizer of {last.name} must be its own, got another: the tokens are those "
            "of an exact source. Leave --tokenizer out, or use the corpus's `tokenizer()`."
        )
    # the last documents are held out, so the last corpus sets the default
    held_out = last.validation() if validation in (None, "auto") else 0
    if validation == "auto" and not held_out:
        validation_order = "spaced"
    elif validation in (None, "auto"):
        validation = held_out
    (out / TASKS).mkdir(parents=True, exist_ok=True)
    busy = f"{out} is being written by another `gidd data prepare`. Wait for it, or stop it."
    with file_lock(out / TASKS / "lock", DataError(busy)):
        settings = plan_settings(documents, tokenizer, validation, validation_order, tasks, format)
        written = command.encode(errors="backslashreplace").decode()  # names may not be UTF-8
        notes = {"sources": names, "command": written, "known": last.known()}
        plan = load_or_create_plan(out, documents, settings, notes)
        tokenizer.save(out)
        work = make_work(out, plan, documents, tokenizer)
        (out / TRAIN).mkdir(exist_ok=True)
        if format == "text" and not any((out / TASKS).glob("[0-9]*.json")):
            _warn_if_lossy(tokenizer, documents)
        yield Preparation(out=out, work=work)


def _warn_if_lossy(tokenizer: Tokenizer, documents: Sequence[Documents]) -> None:
    """Log a warning if the first characters of a few documents change in encoding and decoding."""
    sources = documents[:: max(1, len(documents) // _SAMPLED)][:_SAMPLED]
    for source in sources:
        with suppress(GiddError):  # unreadable documents are reported by their task
            for text in islice(source.texts(), _SAMPLED // len(sources)):
                text = text[:_SAMPLED_CHARACTERS]
                decoded = tokenizer.decode(tokenizer.encode(text))
                if decoded != text:
                    start = len(commonprefix([text, decoded]))
                    _log.warning(
                        "warning: the tokenizer is lossy: %r in %s becomes %r. Use a byte-level "
                        "tokenizer, such as gpt2, if this is not intended.",
                        *(text[start:][:40], source.name, decoded[start:][:40]),
                    )
                    return


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
