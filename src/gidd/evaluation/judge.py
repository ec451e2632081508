"""Grades of samples by a language model, before and after correction (App. F.1 of the paper).

Judge(JudgeOptions(), Path("answers.jsonl"), key).grade(read_samples(Path("samples.jsonl")))
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from gidd import __version__
from gidd.common.config.allowed import integer, number
from gidd.common.optional import optional_package
from gidd.common.terminal import printable
from gidd.errors import ConfigError, DataError
from gidd.evaluation.compare import sign_flip_p_value
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.sample_files import json_objects, text_field

ASPECTS: Final = ("clarity", "grammaticality", "factuality", "style", "creativity")
PROMPT_FILE: Final = Path(__file__).with_name("judge_prompt.txt")
_SECONDS = number(lambda x: 0 < x <= 3600, "of seconds in (0, 3600]")
_MAX_RETRIES, _MAX_ANSWERS = 6, 3  # per request, and per text until one has five valid grades

Samples = Mapping[int | str, Mapping[str, str]]
"""Texts by sample id and suffix of their columns: "", or "_before" and "_after"."""


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """Which model grades, and how it is asked."""

    model: str = "gpt-4o-2024-08-06"
    """Model that grades, by default the model of the paper."""
    base_url: str = "https://api.openai.com/v1"
    """Address of the API, up to /chat/completions."""
    max_tokens: Annotated[int, integer(1)] = 1024
    """Maximum number of tokens of an answer; longer answers are invalid."""
    concurrency: Annotated[int, integer(1)] = 8
    """Number of requests at the same time."""
    timeout: Annotated[float, _SECONDS] = 60.0
    """Seconds to wait for an answer."""

    def problems(self) -> Iterable[str]:
        """Yield a message if there is no such address."""
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query:
            yield "base_url must be a URL such as http://localhost:8000/v1, without user and query."


def read_samples(before: Path, after: Path | None = None) -> Samples:
    """Read JSON lines with `text` and optionally `id`; line i of both files is the same sample.

    In a single file, a line with `original` is a correction: `original` is the text before it.
    """
    files = [list(json_objects(path)) for path in (before, after) if path is not None]
    if len(files[0]) != len(files[-1]) or not files[0]:
        raise DataError(f"{before}: both files must have the same samples, at least one.")
    samples: dict[int | str, dict[str, str]] = {}
    for i, lines in enumerate(zip(*files, strict=True)):
        texts = [text_field(row, "text", place) for row, place in lines]
        row, place = lines[0]
        if after is None and "original" in row:
            texts.insert(0, text_field(row, "original", place))
        name = row.get("id", i)
        if not isinstance(name, int | str) or name in samples:
            raise DataError(f"{place}: `id` must be a number or text, different for every sample.")
        samples[name] = dict(zip(("_before", "_after") if texts[1:] else ("",), texts, strict=True))
        if len(samples[name]) != len(next(iter(samples.values()))):
            raise DataError(f"{place}: either all lines or none must have `original`.")
    return samples


class Judge:
    """A model behind a chat-completions API that grades texts; answers are kept in a JSONL file."""

    def __init__(
        self, options: JudgeOptions, path: Path, key: str | None = None, prompt: str | None = None
    ) -> None:
        openai = optional_package("openai", "eval")
        self.options, self._error = options, openai.OpenAIError
        self.prompt = prompt or PROMPT_FILE.read_text()
        # the key and the samples go to the host of the URL only
        client = openai.DefaultHttpxClient(follow_redirects=False)
        limits = {"timeout": options.timeout, "max_retries": _MAX_RETRIES, "http_client": client}
        self._client = openai.OpenAI(base_url=options.base_url, api_key=key or "EMPTY", **limits)
        self._path, self._lock = path, Lock()
        self.answers: dict[str, dict[str, Any]] = {}
        data = path.read_bytes() if path.exists() else b""
        for line in data.splitlines():
            with suppress(ValueError, TypeError, KeyError):  # half-written when interrupted
                record = json.loads(line)
                self.answers[record["key"]] = record | {"grades": _grades(record["grades"])}
        self._start = b"\n" if data and not data.endswith(b"\n") else b""

    def key(self, text: str) -> str:
        """Return the key of an answer: a hash of the text and of everything sent with it."""
        data = json.dumps([self.options.base_url, self._request(0), self.prompt, text])
        return hashlib.sha256(data.encode()).hexdigest()

    def pending(self, samples: Samples) -> dict[str, str]:
        """Return the texts without grades by key; equal texts are graded once."""
        keys = {self.key(text): text for texts in samples.values() for text in texts.values()}
        return {key: text for key, text in keys.items() if key not in self.answers}

    def grade(
        self, samples: Samples, on_progress: Callable[[int, int], object] | None = None
    ) -> EvaluationResult:
        """Grade the texts without an answer; return the means over completely graded samples.

        A refused request, or a server that does not answer after all retries, stops everything.
        """
        failed: dict[str, str] = {}
        with ThreadPoolExecutor(self.options.concurrency) as pool:
            pending = self.pending(samples).items()
            futures = {pool.submit(self._grade, key, text): key for key, text in pending}
            try:
                for done, future in enumerate(as_completed(futures), start=1):
                    failed[futures[future]] = future.result()
                    if on_progress is not None:
                        on_progress(done, len(futures))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        rows, failures = list[dict[str, Any]](), list[dict[str, Any]]()
        for name, texts in samples.items():
            keys = {suffix: self.key(text) for suffix, text in texts.items()}
            if missing := [key for key in keys.values() if key not in self.answers]:
                failures.append({"id": name, "reason": failed[missing[0]]})
                continue
            rows.append({"id": name})
            for aspect in ASPECTS:
                found = {s: self.answers[key]["grades"][aspect] for s, key in keys.items()}
                rows[-1] |= {f"{aspect}{suffix}": grade for suffix, grade in found.items()}
                if len(found) > 1:
                    rows[-1][f"{aspect}_change"] = found["_after"] - found["_before"]
        if not rows:
            raise DataError(f"none of {len(samples)} samples was graded: {failures[0]['reason']}.")
        numbers: dict[str, Measurement] = {}
        for name in list(rows[0])[1:]:
            numbers[name] = Measurement.mean(values := [row[name] for row in rows])
            if name.endswith("_change"):
                p_value = Measurement(sign_flip_p_value(values))
                numbers[name.removesuffix("change") + "p_value"] = p_value
        numbers["failed_samples"] = Measurement(len(failures))
        manifest = {
            "gidd": __version__,
            "num_samples": len(samples),
            "judge": asdict(self.options),
            "prompt_sha256": hashlib.sha256(self.prompt.encode()).hexdigest(),
            "answered_as": sorted({answer["model"] for answer in self.answers.values()}),
            "failed": failures,
        }
        return EvaluationResult(kind="judge", measurements=numbers, manifest=manifest, rows=rows)

    def _grade(self, key: str, text: str) -> str:
        """Ask until an answer is valid and record it; return what is wrong with the last one."""
        reason = ""
        for attempt in range(_MAX_ANSWERS):
            try:
                line = json.dumps(answer := {"key": key} | self._ask(text, attempt)).encode()
                with self._lock, self._path.open("ab") as file:
                    file.write(self._start + line + b"\n")
                    self._start, self.answers[key] = b"", answer
                return ""
            except (ValueError, TypeError, AttributeError, LookupError) as error:
                reason = f"no valid grades in {_MAX_ANSWERS} answers: {error!r}"
            except self._error as error:
                raise ConfigError(
                    f"{urlsplit(self.options.base_url).hostname}: {self._public(str(error))}. "
                    "Check the API key, --base-url and --model."
                ) from None
        return self._public(reason)

    def _ask(self, text: str, attempt: int) -> dict[str, Any]:
        message = {"role": "user", "content": self.prompt.replace("{text}", text)}
        create = self._client.chat.completions.create
        reply = create(messages=[message], **self._request(attempt))
        (choice,) = reply.choices
        if choice.finish_reason == "length":
            raise ValueError("cut off at --max-tokens")
        content = choice.message.content.strip().removeprefix("```json").strip("`")
        grades, model = _grades(json.loads(content)), self._public(str(reply.model))
        return {"grades": grades, "model": model, "answer": self._public(content, len(content))}

    def _request(self, seed: int) -> dict[str, Any]:
        """Return what is sent with a prompt; another seed after an invalid answer."""
        model, length = self.options.model, self.options.max_tokens
        return {"model": model, "max_tokens": length, "temperature": 0.0, "seed": seed}

    def _public(self, text: str, longest: int = 300) -> str:
        return printable(text.replace(self._client.api_key, "..."))[:longest]  # some send it back


def _grades(record: dict[str, Any]) -> dict[str, int]:
    """Return the grades of an answer: ASPECT is a grade, or an object with a `score`."""
    found: dict[str, int] = {}
    for aspect in ASPECTS:
        value = record[aspect]["score"] if isinstance(record[aspect], dict) else record[aspect]
        if type(value) not in (int, float) or value not in range(1, 11):
            raise ValueError(f"{aspect} must be an integer from 1 to 10, got {value!r:.40}")
        found[aspect] = int(value)
    return found
