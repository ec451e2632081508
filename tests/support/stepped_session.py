"""A session without a thread, whose steps a test makes."""

from collections.abc import Callable
from typing import Any

from gidd.sampling import Event, Limits, Request, Sample, Session
from gidd.sampling.progress import Progress


class SteppedSession(Session):
    """Requests are submitted as by coroutines that do not wait; `step` makes one step."""

    def submit(
        self,
        request: Request,
        limits: Limits | None = None,
        *,
        on_step: Callable[[Any], None] | None = None,
        **settings: Any,
    ) -> Progress:
        """Let a request begin."""
        settings |= {"on_step": on_step or (lambda events: None)}
        return self.begin([request], limits, **settings)[0]

    def begin(
        self,
        requests: list[Request],
        limits: Limits | None = None,
        *,
        on_step: Callable[[list[Event]], None] | None = None,
        **settings: Any,
    ) -> list[Progress]:
        """Let the requests of a call begin."""
        call = self._call(_Loop(), requests, limits or Limits(), on_step=on_step, **settings)
        call.budget.use(sum(member.cost for member in call.members))
        self._begin(call)
        self._release(call.loop, 0)
        return call.members

    def cancel(self, progress: Progress) -> bool:
        """End a request, as its coroutine does when it is cancelled; whether it was open."""
        is_open = progress in self._open
        self._end(progress.call)
        return is_open

    def step(self) -> list[Progress]:
        """Make one step; return the requests that made it or ended, and were not cancelled."""
        self._stepped = []
        self._step()
        return [progress for progress in self._stepped if not progress.is_cancelled]

    @property
    def ready(self) -> int:
        """Number of requests and other forward passes that the next step may choose."""
        with self._lock:
            calls = [call for calls in self._outboxes.values() for call in calls]
            return self.pending - sum(len(call.members) for call in calls)

    def finish(self) -> None:
        """Step until nothing is pending."""
        while self.pending:
            self.step()

    def sample(self, requests: list[Request], **settings: Any) -> list[Sample]:
        """Sample requests, step by step."""
        members = self.begin(requests, **settings)
        self.finish()
        return [progress.sample for progress in members if progress.sample is not None]

    def _report(self, stepped: Any) -> None:
        self._stepped = list(stepped)
        super()._report(stepped)

    def _start(self) -> None:
        pass


class _Loop:
    """An event loop in which nobody waits."""

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> None:
        pass

    def call_soon(self, *_: Any) -> None:
        pass

    call_soon_threadsafe = call_soon
