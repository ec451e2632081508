"""Requests of lm-evaluation-harness as questions: those of one document belong together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple


class QuestionKey(NamedTuple):
    """A document of a task."""

    task: str | None
    document: int | None
    context: str = ""
    """For requests without a document: those with the same context are a question."""


def question_key(request: Any) -> QuestionKey:
    """Return the question of a request, an `lm_eval.api.instance.Instance`."""
    if request.doc_id is None:
        return QuestionKey(request.task_name, None, request.args[0])
    return QuestionKey(request.task_name, request.doc_id)


def group_requests(requests: Sequence[Any]) -> dict[QuestionKey, list[tuple[str, str]]]:
    """Return the different pairs (context, continuation) of each question, in order of choices."""
    ordered = sorted(requests, key=lambda request: (_order(question_key(request)), request.idx))
    return {
        key: list(dict.fromkeys(request.args[:2] for request in group))
        for key, group in groupby(ordered, key=question_key)
    }


def _order(key: QuestionKey) -> tuple[str, int, str]:
    return (key.task or "", -1 if key.document is None else key.document, key.context)
