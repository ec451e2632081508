"""Grades of samples by a language model, before and after correction (App. F.1, Tab. 4).

judge = Judge(endpoint=ChatEndpoint(base_url=..., model="gpt-4o-2024-08-06", key=key))
samples = read_samples(Path("before.jsonl"), Path("after.jsonl"))
with open_journal(Path("judge.json.journal.jsonl")) as journal:
    failed = judge.grade(judge.pending(samples, journal), journal)
    result = judge.result(samples, journal, failed)

Every answer is on disk before the next text is sent: an interrupted evaluation pays again only for
requests that were in flight, whose answers nobody received.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, Final, NamedTuple, cast, final

from gidd import __version__
from gidd.common.files import parse_json
from gidd.errors import DataError
from gidd.evaluation.judge.judge_client import ChatEndpoint, InvalidReply, NoReply, Reply
from gidd.evaluation.judge.judge_journal import ASPECTS, Journal, require_grades
from gidd.evaluation.judge.judge_samples import JudgedSample
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.significance import (
    PERMUTATIONS,
    Difference,
    paired_difference,
    sign_flip_p_value,
)

JUDGE_PROMPT: Final = """\
Your task is to grade the following excerpt from a document in five aspects of quality. \
The scoring should be done on a scale of 1 to 10, where 1 is the worst and 10 is the best. \
The aspects to be graded are:
1. Clarity and coherence: Keeping in mind that the text may be cut off in the beginning and at the \
end due to it being an excerpt, how clear and understandable is the text?
2. Grammaticality: Are there any grammatical errors in the text?
3. Factuality: If applicable, is the factually verifiable information stated in the text (e.g. \
facts about geography, history, etc.) accurate and reliable?
4. Writing style: How well is the text written in terms of style and fluency? Do the sentences \
flow well, is the vocabulary appropriate?
5. Creativity: How original and creative is the text?

For each category, give a short justification before providing the final score. Your answer \
should be following the JSON format, with one top-level key for each aspect (`clarity`, \
`grammaticality`, `factuality`, `style`, and `creativity`).
Each aspect, in turn, should be a JSON object consisting of a `reasoning` and `score` key in that \
order. The `reasoning` key should contain a short justification for the score, and the `score` key \
should contain the score itself.

Please keep the following in mind:
- Give your justification first before deciding on a final score.
- Only output the JSON containing the justifications and scores and nothing else.
- Keep in mind that the presented paragraph may be an excerpt from a longer document, so it may \
not be fully self-contained. Do not deduct points for issues arising from this.

The text to be graded is as follows:
```
{text}
```"""
"""The prompt of the paper, word for word (figure in App. F.1)."""

MAX_ANSWERS: Final = 3
"""Answers per text, until one has five valid grades; each is paid for."""

_SILENT_TEXTS = 3
"""Texts in a row without any answer after which the server is considered to be down."""

_FENCE = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)


class GradeChange(NamedTuple):
    """The mean grade of an aspect before and after correction."""

    aspect: str
    before: Measurement
    after: Measurement
    difference: Difference
    """Its p-value is that of the sign-flip test."""

    @property
    def stars(self) -> str:
        """Marks of the paper's table: * for more than 2 standard errors, ** for more than 5."""
        sigmas = self.difference.num_sigmas or 0.0
        return "**" if sigmas > 5 else "*" if sigmas > 2 else ""


@final
@dataclass(frozen=True, kw_only=True)
class Judge:
    """A model that grades texts, and how it is asked."""

    endpoint: ChatEndpoint
    seed: int = 0
    concurrency: int = 8
    """Requests at the same time."""

    wait: Callable[[Event, float], object] = Event.wait
    """How to wait before a retry: until an event (the evaluation stops) or for some seconds."""

    def key(self, text: str) -> str:
        """Return the key of a text: equal for texts that would get the same answer."""
        settings = {"prompt": JUDGE_PROMPT, "host": self.endpoint.host, **self._sampling()}
        data = json.dumps([settings, text], sort_keys=True)
        return hashlib.sha256(data.encode()).hexdigest()

    def pending(self, samples: Iterable[JudgedSample], journal: Journal) -> dict[str, str]:
        """Return the texts without grades by key; equal texts are graded once."""
        texts = (text for sample in samples for text in (sample.before, sample.after))
        keys = {self.key(text): text for text in texts if text is not None}
        return {key: text for key, text in keys.items() if key not in journal.answers}

    def grade(
        self,
        texts: Mapping[str, str],
        journal: Journal,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> dict[str, str]:
        """Grade texts by key, write the answers to the journal, return the reasons of failures.

        A text fails if no answer has valid grades. An interruption, a refused request or a server
        that is down stops everything: answers already received stay in the journal. `on_progress`
        is called with the number of texts done and their total.
        """
        failed: dict[str, str] = {}
        stop, silent = Event(), 0
        with ThreadPoolExecutor(self.concurrency) as pool:
            try:
                futures = {
                    pool.submit(self._grade_one, key, text, journal, stop): key
                    for key, text in texts.items()
                }
                for done, future in enumerate(as_completed(futures), start=1):
                    try:
                        future.result()
                        silent = 0
                    except (InvalidReply, NoReply) as error:
                        failed[futures[future]] = str(error)
                        silent = silent + 1 if isinstance(error, NoReply) else 0
                        if silent == _SILENT_TEXTS:
                            raise
                    except CancelledError:
                        continue  # the error that stopped this text comes later
                    if on_progress is not None:
                        on_progress(done, len(texts))
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return failed

    def _grade_one(self, key: str, text: str, journal: Journal, stop: Event) -> None:
        try:
            self._ask(key, text, journal, stop)
        except (InvalidReply, NoReply):
            raise
        except BaseException:  # refused, or the disk is full: no other thread should pay
            stop.set()
            raise

    def _ask(self, key: str, text: str, journal: Journal, stop: Event) -> None:
        sleep, reason = partial(self._sleep, stop), ""
        for attempt in range(MAX_ANSWERS):
            sleep(0)
            try:
                # the same seed would repeat the invalid answer
                prompt, seed = JUDGE_PROMPT.replace("{text}", text), self.seed + attempt
                reply = self.endpoint.ask(prompt, seed=seed, sleep=sleep)
                grades = parse_grades(reply)
            except InvalidReply as error:
                reason = str(error)
                continue
            journal.add(key, grades, reply)
            return
        raise InvalidReply(f"no valid grades in {MAX_ANSWERS} answers; the last one: {reason}")

    def _sleep(self, stop: Event, seconds: float) -> None:
        if seconds:
            self.wait(stop, seconds)
        if stop.is_set():
            raise CancelledError

    def result(
        self,
        samples: Sequence[JudgedSample],
        journal: Journal,
        failed: Mapping[str, str],
        sources: Mapping[str, Any] | None = None,
    ) -> EvaluationResult:
        """Return the mean grades; a sample counts if all its texts have been graded."""
        rows: list[dict[str, Any]] = []
        failures: list[dict[str, Any]] = []
        for sample in samples:
            texts = {"before": sample.before, "after": sample.after}
            keys = {name: self.key(text) for name, text in texts.items() if text is not None}
            missing = [key for key in keys.values() if key not in journal.answers]
            if missing:
                reason = failed.get(missing[0], "not graded")
                failures.append({"id": sample.id, "reason": reason})
                continue
            grades = {name: dict(journal.answers[key].grades) for name, key in keys.items()}
            rows.append({"id": sample.id, **grades})
        if not rows:
            reason = failures[0]["reason"] if failures else "there are none"
            raise DataError(f"none of {len(samples)} samples has been graded: {reason}")
        manifest = self._manifest(samples, journal) | {"samples": dict(sources or {})}
        manifest["failed"] = failures
        numbers = {**_measurements(rows), "failed_samples": Measurement(len(failures))}
        return EvaluationResult(kind="judge", measurements=numbers, manifest=manifest, rows=rows)

    def _manifest(self, samples: Sequence[JudgedSample], journal: Journal) -> dict[str, Any]:
        used = {self.key(text) for s in samples for text in (s.before, s.after) if text is not None}
        answers = [journal.answers[key] for key in used if key in journal.answers]
        return {
            "gidd": __version__,
            "num_samples": len(samples),
            "judge": {
                "endpoint": self.endpoint.url,
                **self._sampling(),
                "answered_as": sorted({answer.model for answer in answers}),
                "prompt_sha256": hashlib.sha256(JUDGE_PROMPT.encode()).hexdigest(),
                "invalid_answers": f"asked again with the next seed, up to {MAX_ANSWERS} answers",
            },
            "test": (
                "paired: mean of after - before, its standard error over samples; p-value of the "
                f"two-sided sign-flip test, {PERMUTATIONS} permutations, seed 0"
            ),
            "usage": {
                "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
                "completion_tokens": sum(answer.completion_tokens for answer in answers),
            },
        }

    def _sampling(self) -> dict[str, Any]:
        endpoint = self.endpoint
        return {
            "model": endpoint.model,
            "temperature": endpoint.temperature,
            "max_tokens": endpoint.max_tokens,
            "seed": self.seed,
        }


def parse_grades(reply: Reply) -> dict[str, int]:
    """Return the grades of an answer: nothing but JSON, or one ``` block of it.

    Raises `InvalidReply` for anything else: text around it, missing grades, a cut-off answer.
    """
    content = reply.content.strip()
    if fenced := _FENCE.fullmatch(content):
        content = fenced[1]
    try:
        if not reply.is_complete:
            raise ValueError("it was cut off at --max-tokens")
        record = parse_json(content.encode(), "the answer")
        if not isinstance(record, dict):
            raise ValueError("it is not a JSON object")
        aspects = cast("dict[str, Any]", record)
        return require_grades({name: _score(aspects.get(name)) for name in ASPECTS})
    except ValueError as error:
        raise InvalidReply(f"the answer has no valid grades: {error}") from None


def _score(aspect: Any) -> Any:
    if not isinstance(aspect, dict):
        raise ValueError("an aspect is missing or has no `score`")
    return cast("dict[str, Any]", aspect).get("score")


def grade_changes(rows: Sequence[Mapping[str, Any]]) -> list[GradeChange]:
    """Return the change of every aspect from the rows of a result with `before` and `after`."""
    changes: list[GradeChange] = []
    for aspect in ASPECTS:
        before, after = ([float(row[time][aspect]) for row in rows] for time in ("before", "after"))
        p_value = sign_flip_p_value([b - a for a, b in zip(before, after, strict=True)])
        difference = paired_difference(before, after)._replace(p_value=p_value)
        means = Measurement.mean(before), Measurement.mean(after)
        changes.append(GradeChange(aspect, *means, difference))
    return changes


def _measurements(rows: Sequence[Mapping[str, Any]]) -> dict[str, Measurement]:
    if "after" not in rows[0]:
        return {name: Measurement.mean([row["before"][name] for row in rows]) for name in ASPECTS}
    numbers: dict[str, Measurement] = {}
    for aspect, before, after, change in grade_changes(rows):
        error, p_value = change.standard_error, change.p_value
        numbers[f"{aspect}_before"], numbers[f"{aspect}_after"] = before, after
        numbers[f"{aspect}_change"] = Measurement(change.value, error, len(rows))
        numbers[f"{aspect}_p_value"] = Measurement(1.0 if p_value is None else p_value)
    return numbers
