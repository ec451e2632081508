"""Repeat the paper's experiments: at the size of a laptop, or the commands for its own size.

- laptop: trains and measures about 30 small models; finished ones are skipped, so it can be
  interrupted. The page of results is OUT/results.md.
- paper: prints the commands of every table and figure.

Examples:
  gidd reproduce laptop --quick
  gidd reproduce laptop --corpus texts/ --out results/laptop
  gidd reproduce laptop --only mdm gidd-0.0-elbo
  gidd reproduce paper
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

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
    compile: bool = False,
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
        compile: Train with torch.compile: a quarter faster after a minute, needs a C++ compiler.
        only: Names of the runs to do; by default all.
        keep_models: Keep the models in OUT/models.
    """
    from gidd.evaluation.reproduce import LaptopPlan, paper_commands, reproduce
    from gidd.evaluation.reproduce_page import write_page

    if size == "paper":
        print(*paper_commands(), sep="\n")
        return
    plan = LaptopPlan(corpus=corpus, validation=validation, compile=compile)
    plan = plan.quick() if quick else plan
    results = reproduce(plan, out, only=only, keep_models=keep_models)
    words = ["gidd reproduce laptop", *(["--quick"] if quick else [])]
    words += ["--corpus", *corpus] if corpus != ("sotu",) else []
    page = out / "results.md"
    page.write_text(write_page(results, " ".join(words)), encoding="utf-8")
    print_message(f"wrote {page}")


def main(arguments: Sequence[str]) -> None:
    """Parse, run, write the page."""
    flags = (tyro.conf.FlagCreatePairsOff,)
    parse(reproduce_command, arguments, prog="gidd reproduce", description=__doc__, config=flags)
