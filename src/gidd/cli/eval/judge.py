"""Grade samples with a language model: clarity, grammaticality, factuality, style, creativity.

- Each text gets five grades from 1 to 10, by the prompt of the paper (App. F.1).
- Two files are the same samples before and after correction, line by line.
- Any server with OpenAI's chat-completions API will do: OpenAI, vLLM, llama.cpp, ...
- The API key is read from an environment variable and never stored or printed.
- The number of requests and tokens is shown before anything is sent.
- Answers are kept in OUT.journal.jsonl: after an interruption, run the same command again.

Examples:
  gidd eval judge before.jsonl after.jsonl
  gidd eval judge samples.jsonl --price-input 2.5 --price-output 10
  gidd eval judge before.jsonl after.jsonl --base-url http://localhost:8000/v1 --model qwen --yes
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from gidd.cli.console import CliConsole
from gidd.cli.eval.display import show_counts
from gidd.cli.eval.report import ResultOptions, parse_evaluation, report
from gidd.cli.messages import print_message
from gidd.cli.model_options import Flat
from gidd.common.allowed import SEED, field_problems, integer, number, optional
from gidd.errors import ConfigError, GiddError

if TYPE_CHECKING:
    from gidd.evaluation.judge.judge import Judge
    from gidd.evaluation.judge.judge_journal import Journal
    from gidd.evaluation.judge.judge_samples import JudgedSample
    from gidd.evaluation.results import EvaluationResult

_OPENAI = "https://api.openai.com/v1"
_PRICE = optional(number(lambda x: 0 <= x < 1e9, "of at least 0, per million tokens"))
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """Options of `gidd eval judge`."""

    before: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BEFORE.jsonl")]
    """Samples: output of `gidd sample --jsonl`, or lines with `original` and `text`."""

    after: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="AFTER.jsonl")] = None
    """The same samples after correction, line by line."""

    model: str = "gpt-4o-2024-08-06"
    """Model that grades; the default is that of the paper."""

    base_url: str = _OPENAI
    """Address of the API, up to /chat/completions."""

    api_key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the API key; servers without keys need none."""

    concurrency: int = 8
    """Number of requests at the same time."""

    max_retries: int = 6
    """Retries of a request after a rate limit, a timeout or another temporary error."""

    timeout: float = 60.0
    """Seconds to wait for an answer."""

    max_tokens: int = 1024
    """Maximum number of tokens of an answer; longer ones are cut off and invalid."""

    seed: int = 0
    """Seed sent with each request, for servers that sample reproducibly; temperature is 0."""

    yes: bool = False
    """Send the requests without asking for confirmation."""

    price_input: Annotated[float | None, tyro.conf.DisallowNone] = None
    """Price of a million input tokens, to show the cost beforehand."""

    price_output: Annotated[float | None, tyro.conf.DisallowNone] = None
    """Price of a million output tokens, to show the cost beforehand."""

    result: Flat[ResultOptions] = field(
        default_factory=lambda: ResultOptions(out=Path("judge.json"))
    )

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from field_problems(
            self,
            concurrency=integer(1, 256),
            max_retries=integer(0, 100),
            timeout=number(lambda x: 0 < x <= 3600, "of seconds in (0, 3600]"),
            max_tokens=integer(1, 1 << 20),
            seed=SEED,
            price_input=_PRICE,
            price_output=_PRICE,
        )
        if not re.fullmatch(r"[A-Za-z_]\w*", self.api_key_variable):
            # not shown: it may be the key
            yield "api_key_variable must be the name of an environment variable, not the key."
        if self.result.out is None:
            yield "out must name a file: answers are kept beside it. Leave it out for judge.json."


def main(arguments: Sequence[str]) -> None:
    """Parse, show the cost, grade and report."""
    options = parse_evaluation(JudgeOptions, "gidd eval judge", __doc__, arguments)
    judge = _judge(options)
    from gidd.common.files import sha256
    from gidd.evaluation.judge.judge_journal import open_journal
    from gidd.evaluation.judge.judge_samples import read_samples

    samples = read_samples(options.before, options.after)
    files = {"before": options.before, "after": options.after}
    sources = {
        name: {"file": str(path), "sha256": sha256(path)} for name, path in files.items() if path
    }
    out = options.result.out
    assert out is not None  # checked by `problems`
    path = out.with_name(f"{out.name}.journal.jsonl")
    with open_journal(path) as journal:
        pending = judge.pending(samples, journal)
        if pending:
            _confirm(options, judge, samples, pending)
        failed = _grade(judge, pending, journal, path)
        result = judge.result(samples, journal, failed, sources)
    for failure in result.manifest["failed"][:3]:
        print_message(f"sample {failure['id']} was not graded and is excluded: {failure['reason']}")
    if num_failed := len(result.manifest["failed"]):
        print_message(f"{num_failed} of {len(samples)} samples failed. Run again to retry them.")
    _report(result, options.result)


def _judge(options: JudgeOptions) -> Judge:
    from gidd.evaluation.judge.judge import Judge
    from gidd.evaluation.judge.judge_client import ChatEndpoint

    key = os.environ.get(options.api_key_variable, "").strip() or None
    endpoint = ChatEndpoint(
        base_url=options.base_url,
        model=options.model,
        key=key,
        max_tokens=options.max_tokens,
        timeout=options.timeout,
        max_retries=options.max_retries,
    )
    if key is None and options.base_url.rstrip("/") == _OPENAI:
        raise ConfigError(
            f"the environment variable {options.api_key_variable} must hold the API key, but is "
            f"not set. Set it (read -rs {options.api_key_variable}; export "
            f"{options.api_key_variable}), or name another server with --base-url."
        )
    if endpoint.sends_key_unencrypted:
        print_message(
            f"warning: {endpoint.host} is not https, so that others on the network can read the "
            "API key and the samples."
        )
    return Judge(endpoint=endpoint, seed=options.seed, concurrency=options.concurrency)


def _confirm(
    options: JudgeOptions,
    judge: Judge,
    samples: Sequence[JudgedSample],
    pending: Mapping[str, str],
) -> None:
    """Show what the requests cost; ask on a terminal, and refuse elsewhere without --yes."""
    from gidd.evaluation.judge.judge import JUDGE_PROMPT

    num_texts = sum(1 + (sample.after is not None) for sample in samples)
    characters = sum(len(JUDGE_PROMPT) + len(text) for text in pending.values())
    tokens_in = -(-characters // _CHARACTERS_PER_TOKEN)
    tokens_out = len(pending) * options.max_tokens
    variable = options.api_key_variable
    key = "without an API key" if judge.endpoint.key is None else f"with the key in ${variable}"
    price = "Give --price-input and --price-output to see the cost."
    if options.price_input is not None and options.price_output is not None:
        cost = (tokens_in * options.price_input + tokens_out * options.price_output) / 1e6
        price = f"At the given prices this costs at most about {cost:,.2f}, retries not counted."
    print_message(
        f"{len(pending):,} requests to {options.model} at {judge.endpoint.host}, {key}.\n"
        f"Of {num_texts:,} texts, {num_texts - len(pending):,} are graded already or equal another."
        f"\nAbout {tokens_in:,} input tokens ({_CHARACTERS_PER_TOKEN} characters each), at most "
        f"{tokens_out:,} output tokens ({options.max_tokens:,} each).\n{price}"
    )
    if options.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("nothing was sent: without a terminal to confirm on, add --yes.")
    print("Send them? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was sent.")


def _grade(
    judge: Judge, pending: Mapping[str, str], journal: Journal, path: Path
) -> dict[str, str]:
    """Grade the texts; if this stops early, say what has been kept."""
    num_before = len(journal.answers)
    try:
        with show_counts("grading text") as on_progress:
            return judge.grade(pending, journal, on_progress)
    except (GiddError, KeyboardInterrupt):
        if num_new := len(journal.answers) - num_before:
            print_message(
                f"{num_new} of {len(pending)} answers received; they are kept in {path}. Run the "
                "same command again to continue."
            )
        raise


def _report(result: EvaluationResult, options: ResultOptions) -> None:
    """Print the table of the paper if there are grades before and after; save the result."""
    if options.json or "after" not in result.rows[0]:
        report(result, options)
        return
    from rich.table import Table

    from gidd.evaluation.judge.judge import grade_changes

    table = Table("", "before", "after", "change", "", "p", box=None, pad_edge=False)
    for change in grade_changes(result.rows):
        value = result.measurements[f"{change.aspect}_change"]
        before, difference = change.before.value, change.difference
        table.add_row(
            change.aspect,
            str(change.before),
            str(change.after),
            f"{'+' if value.value > 0 else ''}{value}",
            f"{difference.value / before:+.1%}{change.stars}",
            f"{difference.p_value:.2g}",
        )
    CliConsole(highlight=False).print(table)
    print_message(
        f"means of {len(result.rows)} samples ± standard error; * more than 2, ** more than 5 "
        "standard errors of the paired difference; p: sign-flip test."
    )
    assert options.out is not None
    result.save(options.out)
    print_message(f"wrote {options.out}.")
