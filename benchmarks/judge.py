"""Grades of samples by a language model, before and after correction (App. F.1 of the paper).

gidd sample nano --num-samples 256 --self-correction.forward-passes 128 --jsonl > samples.jsonl
python benchmarks/judge.py samples.jsonl --base-url http://localhost:8000/v1 --model qwen --yes

The server needs OpenAI's chat-completions API; its key is the environment variable OPENAI_API_KEY.
Answers are kept in judge.answers.jsonl: the same command resumes. `gidd plot judge.json` draws it.
"""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import openai
from script import parser_of, size

from gidd import __version__
from gidd.common.terminal import printable
from gidd.errors import DataError, GiddError
from gidd.evaluation.compare import mean_difference
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.sample_files import json_objects, text_field

ASPECTS = ("clarity", "grammaticality", "factuality", "style", "creativity")
PROMPT = """\
Give each of these aspects of the text below an integer from 1 (very poor) to 10 (excellent). It may
be an excerpt: do not lower a grade because it starts or ends in the middle of a sentence.
- clarity: the text makes sense and its sentences belong together;
- grammaticality: grammar, spelling and punctuation are correct;
- factuality: claims that could be looked up are true; ignore everything else;
- style: the sentences flow and the words are well chosen;
- creativity: the ideas and their wording are original.
Answer with one JSON object and nothing else, with an entry for each of the five aspects:
{"clarity": {"reasoning": "one sentence", "score": 5}, "grammaticality": ...}
```
{text}
```
"""


def read_samples(path: Path) -> list[dict[str, str]]:
    """Return the texts of each line by suffix of their columns: "", or "_before" and "_after"."""
    samples = list[dict[str, str]]()
    for row, place in json_objects(path):
        texts = {"": text_field(row, "text", place)}
        if "original" in row:
            texts = {"_before": text_field(row, "original", place), "_after": texts[""]}
        if samples and texts.keys() != samples[0].keys():
            raise DataError(f"{place}: either all lines or none must have `original`.")
        samples.append(texts)
    return samples


def checked_grades(answer: str) -> dict[str, int]:
    """Return the grades of an answer, which may be a block of code."""
    record = json.loads(answer.strip().removeprefix("```json").strip("`"))
    grades = {aspect: record[aspect]["score"] for aspect in ASPECTS}
    if any(type(grade) is not int or not 1 <= grade <= 10 for grade in grades.values()):
        raise ValueError("grades must be integers from 1 to 10")
    return grades


class Judge:
    """A model behind a chat-completions API that grades texts; answers are kept in a file."""

    def __init__(self, path: Path, model: str, base_url: str, key: str) -> None:
        self.model, self.url, self._path, self._lock = model, base_url, path, Lock()
        http = openai.DefaultHttpxClient(follow_redirects=False)  # which would carry the key along
        options: dict[str, Any] = {"base_url": base_url, "api_key": key, "max_retries": 6}
        self._create = openai.OpenAI(http_client=http, **options).chat.completions.create
        self._key, self.grades = key, dict[str, dict[str, int]]()
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with suppress(ValueError, TypeError, AttributeError, LookupError):  # half-written
                name, answer = json.loads(line)
                self.grades[name] = checked_grades(answer)

    def key(self, text: str) -> str:
        """Return a hash of the text and of everything sent with it."""
        return hashlib.sha256(json.dumps([self.url, self.model, PROMPT, text]).encode()).hexdigest()

    def grade(self, text: str) -> None:
        """Ask until an answer is valid, at most three times, and append it to the file."""
        prompt: Any = {"role": "user", "content": PROMPT.replace("{text}", text)}
        options: dict[str, Any] = {"model": self.model, "temperature": 0, "max_tokens": 1024}
        for seed in range(3):  # at temperature 0 the same seed may repeat an invalid answer
            with suppress(ValueError, TypeError, AttributeError, LookupError):
                reply = self._create(messages=[prompt], seed=seed, **options)
                answer = str(reply.choices[0].message.content).replace(self._key, "...")
                self.grades[self.key(text)] = checked_grades(answer)
                with self._lock, self._path.open("a") as file:  # the last line may be half-written
                    file.write(f"\n{json.dumps([self.key(text), answer])}\n")
                return

    def result(self, samples: list[dict[str, str]]) -> EvaluationResult:
        """Return means over samples with grades of all their texts, and tests of the changes."""
        rows = list[dict[str, Any]]()
        for i, texts in enumerate(samples):
            grades = {s: self.grades[k] for s in texts if (k := self.key(texts[s])) in self.grades}
            if len(grades) < len(texts):
                continue
            rows.append({"id": i} | {f"{a}{s}": grades[s][a] for a in ASPECTS for s in grades})
            for a in ASPECTS if len(grades) > 1 else ():
                rows[-1][f"{a}_change"] = grades["_after"][a] - grades["_before"][a]
        numbers = dict[str, Measurement]()
        for name in list(rows[0])[1:] if rows else ():
            numbers[name] = Measurement.mean(values := [row[name] for row in rows])
            if name.endswith("_change") and (p := mean_difference(values).p_value) is not None:
                numbers[name.removesuffix("change") + "p_value"] = Measurement(p)
        numbers["failed_samples"] = Measurement(len(samples) - len(rows))
        manifest = {"gidd": __version__, "model": self.model, "prompt": PROMPT}
        return EvaluationResult(kind="judge", measurements=numbers, manifest=manifest, rows=rows)


def main() -> None:
    """Show what will be sent, grade, print and save."""
    parser = parser_of(__doc__)
    parser.add_argument("samples", type=Path, help="lines of JSON with `text` and maybe `original`")
    parser.add_argument("--model", default="gpt-4o-2024-08-06", help="model that grades")
    parser.add_argument("--base-url", default="https://api.openai.com/v1", help="API address")
    parser.add_argument("--out", type=Path, default=Path("judge.json"), help="file for the result")
    parser.add_argument("--yes", action="store_true", help="send the requests without asking")
    options, key = parser.parse_args(), os.environ.get("OPENAI_API_KEY", "").strip() or "EMPTY"
    path = options.out.with_suffix(".answers.jsonl")
    try:
        judge = Judge(path, options.model, options.base_url, key)
        samples = read_samples(options.samples)[: size(None, 2)]
        texts = sorted({text for sample in samples for text in sample.values()})
        pending = [text for text in texts if judge.key(text) not in judge.grades]
        if pending and not options.yes:
            parser.error(f"{len(pending):,} requests to {options.base_url}: --yes sends them.")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(judge.grade, pending))
        result = judge.result(samples)
    except (GiddError, openai.OpenAIError, OSError) as error:  # a refused request stops everything
        parser.error(printable(str(error).replace(key, "...")))
    result.save(options.out)
    for name, value in result.measurements.items():
        print(f"{name:24} {value}")
    if options.json:
        print(json.dumps(result.to_dict()))


if __name__ == "__main__":
    main()
