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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gidd.cli.model_options import parse_checked
from gidd.common.messages import print_message


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Options of `gidd reproduce`."""

    size: Annotated[Literal["laptop", "paper"], tyro.conf.Positional]
    """laptop runs the experiments; paper prints the commands of the paper's."""

    out: Path = Path("results/laptop")
    """Folder of the results."""

    corpus: tuple[str, ...] = ("sotu",)
    """Texts to train on: corpora by name, files or folders, as for `gidd data prepare`."""

    validation: Annotated[int | None, tyro.conf.DisallowNone] = None
    """Hold out the last N documents; by default as the corpus defines, or a tenth."""

    quick: bool = False
    """A reduced version, in minutes."""

    compile: bool = False
    """Train with torch.compile: a quarter faster after a minute, needs a C++ compiler."""

    only: tuple[str, ...] = ()
    """Names of the runs to do; by default all."""

    keep_models: bool = False
    """Keep the models in OUT/models."""


def main(arguments: Sequence[str]) -> None:
    """Parse, run, write the page."""
    options = parse_checked(ReproduceOptions, "gidd reproduce", __doc__, arguments)
    from gidd.evaluation.reproduce import LaptopPlan, paper_commands, reproduce
    from gidd.evaluation.reproduce_page import write_page

    if options.size == "paper":
        print(*paper_commands(), sep="\n")
        return
    plan = LaptopPlan(corpus=options.corpus, validation=options.validation, compile=options.compile)
    results = reproduce(
        plan.quick() if options.quick else plan,
        options.out,
        only=options.only,
        keep_models=options.keep_models,
    )
    words = ["gidd reproduce laptop", *(["--quick"] if options.quick else [])]
    words += ["--corpus", *options.corpus] if options.corpus != ("sotu",) else []
    page = options.out / "results.md"
    page.write_text(write_page(results, " ".join(words)), encoding="utf-8")
    print_message(f"wrote {page}")
