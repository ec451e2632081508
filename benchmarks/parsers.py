"""CPU time of the parsers of outside text on the worst inputs known, at three sizes.

python benchmarks/parsers.py            # a table; a minute
python benchmarks/parsers.py --json     # print a JSON object at the end

The least CPU time of calls with inputs of n, 2n and 4n; `growth` is the larger of the two
ratios. Growth above 2.3 ends the program with exit status 1. Parsers of gidd-proof are measured if
it is installed.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from script import parser_of, size

from gidd.data import tokenizers
from gidd.data.chat import encode_chat, parse_chat, render
from gidd.data.corpora import texts
from gidd.errors import DataError
from gidd.pipeline.chat import build_chat_request
from gidd.pipeline.text import EncodedText, protected_tokens
from gidd.sampling.request import parse_template

LIMIT = 2.3
USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


def refused(parse: Callable[[str], object], text: str) -> None:
    """Parse a text that may be refused."""
    with suppress(DataError):
        parse(text)


def cut(tokenizer: tokenizers.Tokenizer, size: int) -> None:
    """Cut a conversation to what fits; building its request stops there."""
    pipe: Any = SimpleNamespace(tokenizer=tokenizer, context=256)
    messages = [USER | {"content": "a b " * 90}, ANSWER] * size
    with suppress(AttributeError):  # this pipeline has no network
        build_chat_request(pipe, [*messages, USER], 8, 0, (), None, None, cast("Any", None))


def gidd_parsers() -> dict[str, tuple[int, Callable[[int], object]]]:
    """Return for each parser of gidd the smallest size, and what parses an input of a size."""
    tokenizer = tokenizers.byte_level()
    bare, different = tokenizers.byte_level(), count()

    def protect(size: int) -> None:
        encoded = EncodedText((0,) * size, ("a",) * size, (False,) * size)
        protected_tokens(encoded, [(i, size - 1) for i in range(1, size - 1)])

    def compile_template(size: int) -> None:
        part = "{% if messages %}{{ '{{' }}{% endif %}" * size
        bare.chat_template = part + f"{{# {next(different)} #}}"  # templates are kept compiled
        render(bare, [USER])

    def read_lines(size: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.jsonl"
            path.write_text('{"text": "a"}\n' * size)
            assert sum(map(len, texts(path))) == size

    def line(size: int) -> str:
        return json.dumps({"messages": [USER, ANSWER] * size})

    return {
        "blanks without ends": (50_000, lambda n: refused(blanks, "[MASK:" * n)),
        "blanks": (10_000, lambda n: blanks("a[MASK:3]" * n)),
        "blanks of many digits": (50_000, lambda n: refused(blanks, "[MASK:" + "9" * n)),
        "protected spans": (10_000, protect),
        "JSON lines": (10_000, read_lines),
        "chat, messages": (125, lambda n: encode_chat(tokenizer, [USER, ANSWER] * n)),
        "chat, characters": (
            50_000,  # less fits into the processor's caches
            lambda n: encode_chat(tokenizer, [USER | {"content": "<|im_" * n}, ANSWER]),
        ),
        "chat, line of JSON": (5_000, lambda n: parse_chat(line(n), "line 1")),
        "chat, nested line": (20_000, lambda n: refused(parse_line, '{"messages":' + "[" * n)),
        "chat, cut to the context": (500, partial(cut, tokenizer)),
        "chat template": (100, compile_template),
    }


def blanks(text: str) -> None:
    """Parse a template with blanks; a token for each character."""
    parse_template(text, lambda piece, _: range(len(piece)))


def parse_line(text: str) -> None:
    """Parse a line of chats."""
    parse_chat(text, "line 1")


def proof_parsers() -> dict[str, tuple[int, Callable[[int], object]]]:
    """Return the same for gidd-proof; nothing if it is not installed."""
    try:
        from gidd_proof.protect import protected_spans
        from gidd_proof.serve import AnnotatedText, find_sentences, read_annotation
    except ModuleNotFoundError:
        return {}

    def annotation(size: int) -> None:
        part = {"markup": "<b>", "interpretAs": "\n"}
        AnnotatedText.of(read_annotation(json.dumps({"annotation": [part] * size}))[0])

    units = ("a", "~", "`", "``` \n", "$a ", "\\cite[", "](", "a.b", "a/", "a@", "aA")
    bounded = {"\\(": 6_000, "<code>": 6_000}  # their ends are looked for in 2,000 characters
    return {
        "sentences, one word": (100_000, lambda n: find_sentences("a" * n + ".b")),
        "sentences, dots": (50_000, lambda n: find_sentences("." * n + "a")),
        "annotated text": (4_000, annotation),
        **{
            f"markup, {unit!r}": (length, lambda n, unit=unit: protected_spans(unit * n + "_b"))
            for unit, length in {**dict.fromkeys(units, 1_000), **bounded}.items()
        },
    }


def times(parse: Callable[[int], object], sizes: list[int], rounds: int) -> list[float]:
    """Return the least CPU time of each size; each round calls all sizes.

    More rounds follow while other programs make a time grow faster than its input.
    """
    least = [float("inf")] * len(sizes)
    for done in range(rounds):
        if done >= 5 and growth(least) <= LIMIT:
            break
        for index, length in enumerate(sizes):
            gc.collect()
            start = time.process_time()
            parse(length)
            least[index] = min(least[index], time.process_time() - start)
    return least


def growth(least: list[float]) -> float:
    """Return the larger ratio of times of which the later one is for twice the input."""
    return max(later / max(earlier, 1e-9) for earlier, later in pairwise(least))


def main() -> None:
    """Measure, print a row per parser, and fail if one grows faster than its input."""
    parser = parser_of(__doc__)
    arguments = parser.parse_args()
    gc.disable()  # its collections grow with all objects that live
    results: dict[str, dict[str, Any]] = {}
    for name, (shortest, parse) in (gidd_parsers() | proof_parsers()).items():
        sizes = [shortest // size(1, 50) * factor for factor in (1, 2, 4)]
        least = times(parse, sizes, size(40, 1))
        results[name] = {"seconds": least, "growth": growth(least)}
        shown = " ".join(f"{1000 * value:9.2f}" for value in least)
        print(f"{name:28} {shown} ms, growth {growth(least):.2f}", flush=True)
    if arguments.json:
        print(json.dumps(results))
    slow = [name for name, row in results.items() if row["growth"] > LIMIT]
    if slow and not arguments.quick:
        raise SystemExit(f"faster than {LIMIT} times for twice the input: {', '.join(slow)}")


if __name__ == "__main__":
    main()
