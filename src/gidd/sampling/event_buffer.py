"""Events of a request for a reader that may be slower than the session."""

from __future__ import annotations

from threading import Lock
from typing import final

from gidd.common.allowed import integer, require_arguments
from gidd.sampling.ticket import Event
from gidd.sampling.trace import Edit


@final
class EventBuffer:
    """Keeps the unread events of one request, in bounded memory.

    When there are more than `capacity`, they are merged into one, with the net edits of all of
    them: a slow reader misses states in between, and ends with the same tokens. `put` and `take`
    may be called from different threads.
    """

    def __init__(self, capacity: int = 64) -> None:
        require_arguments(capacity=(capacity, integer(1)))
        self._capacity = capacity
        self._events: list[Event] = []
        self._lock = Lock()

    def put(self, event: Event) -> None:
        """Add an event."""
        with self._lock:
            self._events.append(event)
            if len(self._events) > self._capacity:
                self._events = [_merge(self._events)]

    def take(self) -> list[Event]:
        """Remove and return all unread events, the oldest first."""
        with self._lock:
            events, self._events = self._events, []
        return events


def _merge(events: list[Event]) -> Event:
    """Return one event with the net edits of several: one per position, in order of position."""
    edits: dict[int, Edit] = {}
    for edit in (edit for event in events for edit in event.edits):
        first = edits.get(edit.position, edit)
        edits[edit.position] = edit._replace(old=first.old)
    changed = (edits[position] for position in sorted(edits))
    return events[-1]._replace(edits=tuple(edit for edit in changed if edit.old != edit.new))
