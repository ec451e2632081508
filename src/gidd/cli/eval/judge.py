"""Grade samples with a language model: clarity, grammaticality, factuality, style, creativity.

Each text gets five grades from 1 to 10, from any server with OpenAI's chat-completions API: OpenAI,
vLLM, llama.cpp, ... The API key is read from an environment variable and never stored or printed.
Answers are kept in OUT.answers.jsonl: after an interruption, run the same command again.

Examples:
  gidd eval judge before.jsonl after.jsonl
  gidd eval judge before.jsonl after.jsonl --base-url http://localhost:8000/v1 --model qwen --yes
"""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from gidd.cli.eval.report import ResultOptions, report
from gidd.cli.model_options import Flat, parse_checked
from gidd.common.messages import print_message, show_counts
from gidd.errors import ConfigError
from gidd.evaluation.judge import PROMPT_FILE, Judge, JudgeOptions, read_samples

_OUT = Path("judge.json")


@dataclass(frozen=True, kw_only=True)
class JudgeCommand:
    """Options of `gidd eval judge`."""

    before: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BEFORE.jsonl")]
    """Samples: output of `gidd sample --jsonl`, or lines with `original` and `text`."""
    after: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="AFTER.jsonl")] = None
    """The same samples after correction, line by line."""
    prompt: Path = PROMPT_FILE
    """File with another prompt with {text}; answers must be JSON with a grade of every aspect."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the API key; servers without keys need none."""
    yes: bool = False
    """Send the requests without asking for confirmation."""
    judge: Flat[JudgeOptions] = field(default_factory=JudgeOptions)
    result: Flat[ResultOptions] = field(default_factory=lambda: ResultOptions(out=_OUT))

    def problems(self) -> Iterable[str]:
        """Yield a message if the prompt or the name of the variable cannot be used."""
        if not self.api_key_variable.isidentifier():  # not shown: it may be the key
            yield "api_key_variable must be the name of an environment variable, not the key."
        if not self.prompt.is_file() or "{text}" not in self.prompt.read_text():
            yield "prompt must be a file that contains {text}."


def main(arguments: Sequence[str]) -> None:
    """Parse, show the number of requests, grade and report."""
    options = parse_checked(JudgeCommand, "gidd eval judge", __doc__, arguments)
    key, out = os.environ.get(options.api_key_variable, "").strip(), options.result.out or _OUT
    if not key and options.judge.base_url == JudgeOptions.base_url:
        raise ConfigError(f"set the environment variable {options.api_key_variable} to an API key.")
    samples = read_samples(options.before, options.after)
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.with_name(f"{out.name}.answers.jsonl")
    judge = Judge(options.judge, path, key or None, options.prompt.read_text())
    if pending := judge.pending(samples):
        tokens = sum(len(judge.prompt) + len(text) for text in pending.values()) // 4
        most, server = len(pending) * options.judge.max_tokens, options.judge.base_url
        print_message(
            f"{len(pending):,} requests to {options.judge.model} at {server}: about {tokens:,} "
            f"input tokens, at most {most:,} output tokens."
        )
        if not options.yes:
            if not (sys.stdin.isatty() and sys.stderr.isatty()):
                raise ConfigError("nothing was sent: without a terminal to confirm on, add --yes.")
            print("Send them? [y/N] ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                raise ConfigError("nothing was sent.")
    with show_counts("grading text") as on_progress:
        result = judge.grade(samples, on_progress)
    report(result, options.result)
    for failure in result.manifest["failed"][:3]:
        print_message(f"sample {failure['id']} was not graded and is excluded: {failure['reason']}")
