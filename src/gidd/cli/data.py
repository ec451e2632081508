"""`gidd data`: train tokenizers, tokenize documents into shards, show and check shards."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from rich.table import Table

from gidd.cli.output import CliConsole, plain, print_text
from gidd.cli.parsing import parse
from gidd.common.config.allowed import problems_of, require_none, unused_problems
from gidd.common.messages import print_message
from gidd.common.urls import redacted_argument
from gidd.data.chat import chat_texts
from gidd.data.corpora import Files, corpora_of, named_corpora, texts
from gidd.data.manifest import DataManifest, verify
from gidd.data.preparation import (
    TRAIN,
    DataFormat,
    RayOptions,
    SlurmOptions,
    ValidationOrder,
    run_locally,
    run_on_ray,
    start_preparation,
    submit_to_slurm,
)
from gidd.data.preparation.executors import job_name, require_submittable
from gidd.data.tokenizers import (
    TOKENIZER_FILE,
    Tokenizer,
    tokenizer_for,
    train_characters,
    train_tokenizer,
)
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from gidd.data.loading.shards import TokenShard

Sources = Annotated[
    tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(name="sources", metavar="SOURCE...")
]
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
_EXAMPLE_TOKENS, _BAR = 80, 40
_SLURM, _RAY = SlurmOptions(), RayOptions()


def tokenizer_command(
    sources: Sources,
    /,
    *,
    kind: Literal["bpe", "chars"] = "bpe",
    vocab_size: int | None = None,
    out: Path,
) -> None:
    """Train a tokenizer: byte-level BPE, or the characters of the sources.

    Some examples:
      gidd data tokenizer --vocab-size 4096 --out tokenizer speeches/ more.txt
      gidd data tokenizer --kind chars --out characters speeches/

    Args:
        sources: Files (.txt, .jsonl, .jsonl.gz, .bz2 or .zst, .parquet), folders, URLs, datasets
            (hf:ORG/NAME), or corpora.
        kind: What tokens are: pieces of words (bpe), or the characters of the sources (chars).
        vocab_size: Vocabulary size with the special tokens at the end. For bpe at least 259: 256
            bytes, end-of-text, [PAD] and [MASK]. For chars the maximum, by default 4,099: 4,096
            characters, [UNK], end-of-text and [MASK].
        out: Folder to write tokenizer.json to.
    """
    if kind == "chars":
        tokenizer = train_characters(texts(sources), vocab_size)
    elif vocab_size is not None:
        tokenizer = train_tokenizer(texts(sources), vocab_size)
    else:
        raise ConfigError("--vocab-size must be given for --kind bpe, got none. Use e.g. 4096.")
    tokenizer.save(out)
    size, fingerprint = tokenizer.vocab.size, tokenizer.fingerprint[:12]
    print_text(f"{out / TOKENIZER_FILE}: {size:,} tokens, fingerprint {fingerprint}")


def prepare_command(
    sources: Sources,
    /,
    *,
    tokenizer: int | str | None = None,
    mask: str | None = None,
    end: str | None = None,
    pad: str | None = None,
    revision: str | None = None,
    out: Path,
    validation: int | float | None = None,
    validation_order: ValidationOrder = "last",
    format: DataFormat = "text",
    tasks: int | None = None,
    workers: int = 1,
    executor: Literal["local", "slurm", "ray"] = "local",
    slurm: SlurmOptions = _SLURM,
    ray: RayOptions = _RAY,
) -> None:
    """Tokenize documents into shards. If interrupted, run the same command again to resume.

    Some examples:
      gidd data prepare sotu --tokenizer gpt2 --out data/sotu
      gidd data prepare sotu --tokenizer chars --out data/characters
      gidd data prepare pages/ --tokenizer tokenizer --out data/pages --validation 0.01 --workers 8
      gidd data prepare 'https://host/a.jsonl?signature=${KEY}' --tokenizer gpt2 --out data/a
      gidd data prepare "hf:ORG/NAME?split=train&text=content" --tokenizer gpt2 --out data/name
      gidd data prepare markov --out data/markov
      gidd data prepare chats.jsonl --format chat --tokenizer gpt2 --out data/chats
      gidd data prepare pages/ --tokenizer gpt2 --out out --executor slurm --slurm.partition cpu

    On a cluster all machines must see the sources, the output folder and this installation under
    the same paths. --executor ray waits for all tasks. --executor slurm submits an array of jobs,
    and a job after them that writes manifest.json, and returns; if tasks fail, the same command
    submits the missing ones. Logs are in the folder logs/ of --out.

    Args:
        sources: Files (.txt, .jsonl, .jsonl.gz, .bz2 or .zst, .parquet), folders, URLs of either
            (https://, s3://, gs://, file://; "*" matches any name; in user, password and query,
            ${NAME} is an environment variable and ${/path} a file), datasets on the Hugging Face
            hub (hf:ORG/NAME?config=...&split=...&text=...), or names from `gidd data list`.
            Documents keep this order; the files of a folder are sorted by name.
        tokenizer: gpt2 (50,258 tokens), gpt2+pad (50,259 tokens), bytes (259 tokens), chars (the
            characters of the sources), a number (a byte-level BPE of that many tokens, trained on
            the sources), a tokenizer.json, a folder with one, an installed model such as nano, or a
            name on the Hugging Face hub. Not needed for exact sources.
        mask: Mask token of the tokenizer, such as "<|mdm_mask|>", if it is not found by itself.
        end: End-of-text token, if it is not found by itself.
        pad: Padding token, if it is not found by itself.
        revision: Branch, tag or commit of a tokenizer on the Hugging Face hub.
        out: Output folder.
        validation: Number of documents to hold out, or a fraction below 1.
        validation_order: Which documents to hold out: the last ones, or the last ones of every
            task, which are spaced evenly. Use spaced for sources sorted by date or topic.
        format: text, or chat: JSON lines with "messages", or with "prompt" and "response". Answers
            are learned, and all else is given.
        tasks: Number of tasks, each of one shard; by default 8, or one per 256 MB above 2 GB; fewer
            if files cannot be divided (text files, compressed files, https://).
        workers: Number of processes on this machine; the shards do not depend on it.
        executor: Where to run the tasks: on this machine, as Slurm jobs, or on a Ray cluster.
        slurm: Options of the Slurm jobs.
        ray: Resources of the Ray cluster.
    """
    for kind, resources in (("slurm", slurm), ("ray", ray)):
        require_none(problems_of(resources, f"--{kind}."))
        if executor != kind:
            require_none(unused_problems(resources, f"--{kind}.", f"--executor {kind}"))
    if executor != "local" and workers != 1:
        raise ConfigError(
            f"--workers has no effect with --executor {executor}, got {workers}. Set "
            f"--{executor}.tasks-at-once."
        )
    if tokenizer is not None:
        named = {"mask": mask, "end": end, "pad": pad, "revision": revision}
        read = chat_texts if format == "chat" else texts
        chosen = tokenizer_for(read(sources), tokenizer, **named)
    elif (chosen := corpora_of(sources)[-1].tokenizer()) is None:
        raise ConfigError("--tokenizer must be given, got none. Use e.g. gpt2, bytes or chars.")
    if executor == "slurm":
        require_submittable(sources, out, slurm)  # before sources are listed
    options: dict[str, Any] = {"validation_order": validation_order, "tasks": tasks}
    options |= {"validation": validation, "format": format}
    words = map(redacted_argument, ["gidd", *sys.argv[1:]])
    with start_preparation(
        sources, chosen, out, command=shlex.join(words), **options
    ) as preparation:
        print_message(preparation.summary())
        if executor == "local":
            manifest = run_locally(preparation, workers)
        elif executor == "ray":
            manifest = run_on_ray(preparation, ray)
        else:
            manifest = submit_to_slurm(preparation, slurm)
    if manifest is None:
        print_text(f"{out}: submitted; `squeue --name {job_name(out)}` shows the jobs.")
    for name, split in manifest.splits.items() if manifest else ():
        print_text(f"{out / name}: {split.documents:,} documents, {split.tokens:,} tokens")


def list_command() -> None:
    """List the corpora that can be prepared by name."""
    table = Table("corpus", "description")
    for name, corpus in named_corpora().items():
        table.add_row(name, corpus.description)
    table.add_row("PATH or URL", Files.description)
    table.add_row(
        "hf:ORG/NAME", "a dataset on the Hugging Face hub; ?config=...&split=...&text=..."
    )
    CliConsole().print(table)


def show_command(folder: Folder, /) -> None:
    """Show the contents of a prepared folder: counts, document lengths, two examples.

    Example: gidd data show data/sotu

    Args:
        folder: A folder made by `gidd data prepare`.
    """
    manifest = DataManifest.read(folder)
    from gidd.data.loading import open_split
    from gidd.data.loading.shards import invalid_tokens

    tokenizer = Tokenizer.load(folder)
    manifest.require_tokenizer(tokenizer, folder / TOKENIZER_FILE)
    train = open_split(folder, TRAIN).shards
    shards = [shard for name in manifest.splits for shard in open_split(folder, name).shards]
    console = CliConsole()
    table = Table("split", "documents", "tokens", "tokens per document", "shards")
    for name, split in manifest.splits.items():
        mean = split.tokens / split.documents
        numbers = (f"{split.documents:,}", f"{split.tokens:,}", f"{mean:,.1f}")
        table.add_row(plain(name), *numbers, f"{len(split.shards):,}")
    console.print(table)
    vocab = manifest.vocab
    about = (
        f"vocabulary size {vocab.size:,}, stored as {manifest.dtype}; mask {vocab.mask_id}, "
        f"padding {vocab.pad_id}, end-of-text {manifest.end_id}; "
        f"tokenizer {tokenizer.kind}, fingerprint {manifest.tokenizer[:12]}"
    )
    items = manifest.known.items()
    if figures := ", ".join(f"{name.replace('_', ' ')} {value:.6g}" for name, value in items):
        about += f"\nexact source: {figures} (nats)"
    console.print(plain(about))
    console.print(_histogram(shards))
    for index, document in ((0, 0), (-1, len(train[-1]) - 1)):
        shard, name = train[index], manifest.splits[TRAIN].shards[index].file
        start, stop = shard.bounds(document)
        ids: list[int] = shard.tokens[start : min(stop, start + _EXAMPLE_TOKENS)].tolist()
        if max(ids, default=0) >= vocab.size:
            raise invalid_tokens(f"{shard.file}: document {document}", vocab.size)
        text = tokenizer.decode(ids) + (" ..." if stop - start > len(ids) else "")
        console.rule(plain(f"{name}, document {document}, {stop - start:,} tokens"))
        console.print(plain(text))


def verify_command(folder: Folder, /, *, tokenizer: str | None = None) -> None:
    """Read every byte of a prepared folder and check it against the manifest.

    Example: gidd data verify data/sotu

    Args:
        folder: A folder made by `gidd data prepare`.
        tokenizer: If given, must be the tokenizer that the shards were made with.
    """
    manifest = verify(folder, None if tokenizer is None else Tokenizer.load(tokenizer))
    num_shards = sum(len(split.shards) for split in manifest.splits.values())
    print_text(f"{folder}: all {num_shards:,} shards are valid.")


def main(arguments: Sequence[str]) -> None:
    """Run `gidd data ...`."""
    commands = (tokenizer_command, prepare_command, list_command, show_command, verify_command)
    parse(
        {command.__name__.removesuffix("_command"): command for command in commands},
        arguments,
        prog="gidd data",
        description="Tokenize documents into shards.",
        config=(tyro.conf.DisallowNone,),  # `--tasks INT`, not `{None}|INT`
    )


def _histogram(shards: Iterable[TokenShard]) -> Table:
    counts = np.zeros(65, dtype=np.int64)
    for shard in shards:
        ends = shard.ends[:]
        for document in np.flatnonzero(ends[1:] < ends[:-1])[:1]:
            shard.bounds(int(document) + 1)  # raises `DataError`: ends must not decrease
        lengths = np.diff(ends.astype(np.int64), prepend=0)
        power = np.frexp(lengths - 0.5)[1]  # 2^(power-1) < length <= 2^power
        counts += np.bincount(power, minlength=65)[:65]
    used = np.flatnonzero(counts)
    table = Table("tokens, at most", "documents", "")
    for power in range(used[0], used[-1] + 1):
        bar = "█" * round(_BAR * counts[power] / counts.max())
        table.add_row(f"{2**power:,}", f"{counts[power]:,}", bar)
    return table
