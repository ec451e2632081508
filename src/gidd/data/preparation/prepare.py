"""Tokenize documents into shards on all cores; an interrupted preparation can be resumed.

Shards (`train/00000.ds`, ...) are written atomically, then the record of their task (`tasks/`),
last `manifest.json`; the bytes depend neither on the workers nor on interruptions.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path

from gidd.common.files import file_lock, remove_leftovers
from gidd.common.messages import show_counts
from gidd.common.urls import without_credentials
from gidd.data.corpora import CorpusSource, corpora_of, resolve
from gidd.data.corpora.documents import Documents
from gidd.data.corpora.formats import whole_lines
from gidd.data.manifest import DataManifest, Split
from gidd.data.preparation.tasks import (
    TASKS,
    TRAIN,
    VALIDATION,
    DataFormat,
    Validation,
    ValidationOrder,
    Work,
    finished,
    load_or_create_plan,
    make_work,
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
            above 2 GB. The shards depend on it, unlike on `workers`.
        workers: Number of processes. Scripts need `if __name__ == "__main__":` if it is not 1.
        quiet: Show no progress.
    """
    settings = (validation, validation_order, format, tasks, workers)
    with start_preparation(sources, tokenizer, out, *settings) as started:
        return run_locally(started, workers, quiet=quiet)


def run_locally(preparation: Preparation, workers: int, *, quiet: bool = False) -> DataManifest:
    """Run the unfinished tasks on `workers` processes of this machine; write the manifest."""
    remove_leftovers(preparation.out)
    left = preparation.unfinished()
    total, done = sum(item.documents(split) for item in left for split in item.parts), 0
    with nullcontext() if quiet else show_counts("preparing documents") as show:

        def advance(documents: int) -> None:
            nonlocal done
            done += documents
            if show is not None:
                show(done, total)

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

    def finish(self) -> DataManifest:
        """Write the manifest; raise `DataError` if a task is not finished."""
        records = {item.name: finished(item) for item in self.work}
        if missing := [name for name, record in records.items() if record is None]:
            names = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
            raise DataError(
                f"{self.out}: {len(missing)} of {len(self.work)} tasks are not finished ({names}). "
                f"See {self.out / LOGS}. Run the same command again: finished tasks are kept."
            )
        shards = {
            name: [record[name] for record in records.values() if record and name in record]
            for name in (TRAIN, VALIDATION)
        }
        plan = read_plan(self.out)
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


@contextmanager
def start_preparation(
    sources: CorpusSource | Sequence[CorpusSource],
    tokenizer: Tokenizer | FastTokenizer,
    out: str | Path,
    validation: Validation | None = None,
    validation_order: ValidationOrder = "last",
    format: DataFormat = "text",
    tasks: int | None = None,
    workers: int = 1,
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
        plan = load_or_create_plan(out, documents, settings, notes, workers)
        tokenizer.save(out)
        work = make_work(out, plan, documents, tokenizer)
        for folder in {out / split for item in work for split in item.parts}:
            folder.mkdir(exist_ok=True)
        if format == "text" and not any((out / TASKS).glob("[0-9]*.json")):
            _warn_if_lossy(tokenizer, documents)
        yield Preparation(out=out, work=work)


def _warn_if_lossy(tokenizer: Tokenizer, documents: Sequence[Documents]) -> None:
    """Log a warning if the first characters of a few documents change in encoding and decoding."""
    sources = documents[:: max(1, len(documents) // _SAMPLED)][:_SAMPLED]
    for source in sources:
        with suppress(GiddError):  # unreadable documents are reported by their task
            for text in source.read(0, _SAMPLED // len(sources)):
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
