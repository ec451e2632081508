"""`gidd eval`: measure a model. Each subcommand is a module of this package with `main`."""

import importlib
from collections.abc import Sequence

from gidd.cli import choose_command

EVALUATIONS = {
    "ppl": "likelihood, perplexity and bits per byte of texts",
    "samples": "quality and diversity of samples: generative perplexity, entropy, self-accuracy",
    "self-correction": "effect of self-correction on samples: quality, diversity, changed tokens",
    "tasks": "accuracy on tasks of lm-evaluation-harness",
}

_HELP = """\
usage: gidd eval NAME ...

Measure a model. Every result has standard errors and a manifest of its settings;
--out FILE.json saves it for `gidd compare` and `gidd plot`.

examples:
  gidd eval ppl models/nano sotu
  gidd eval samples models/nano --grader smollm2
  gidd eval tasks models/nano arc_easy

evaluations:
{commands}

Run `gidd eval NAME --help` for the options of an evaluation."""


def main(arguments: Sequence[str]) -> None:
    """Run one evaluation."""
    module = choose_command("gidd eval", EVALUATIONS, list(arguments), _HELP)
    if module is not None:
        importlib.import_module(module).main(arguments[1:])
