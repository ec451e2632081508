"""A session: requests join and leave at every denoising step, and share forward passes."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import torch

from gidd.common.config.allowed import integer, optional, require_allowed, require_arguments
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError, Overloaded
from gidd.sampling.batch import Batch
from gidd.sampling.cache import KeyValueCache, padded_to
from gidd.sampling.limits import Budget
from gidd.sampling.network import DenoisingNetwork
from gidd.sampling.plan import Plan
from gidd.sampling.progress import OnStep, Progress, Shape, as_failure
from gidd.sampling.request import Limits, Request, Sample
from gidd.sampling.scheduler import Pass, Scheduler, Turn
from gidd.sampling.tasks import run_sync

_T = TypeVar("_T")
_log = logging.getLogger("gidd.sampling")
_NO_LIMITS = Limits()

_TURNS: Final = 8
"""Turns of an event loop before what it has submitted begins: coroutines that go on at the same
time submit their next requests together, and these share forward passes."""

_RESUME_SECONDS: Final = 1.0
"""Longest time that the thread waits for coroutines that go on, which share their next passes with
those that are open; it waits if all are of one event loop, so for nobody else."""

_LINGER_SECONDS: Final = 0.02
"""Time that the thread waits for further work before it ends: a new one would start torch's
threads again."""


@dataclass
class Counters:
    """Counts of the steps, tokens and requests of a session since it was made."""

    steps: int = 0
    """Denoising steps and other forward passes."""
    seconds: float = 0.0
    """Time in them."""
    rows: int = 0
    """Sequences in forward passes of steps, copies included."""
    used_rows: int = 0
    """Sequences in these forward passes that made a step."""
    work: int = 0
    """Tokens in all forward passes, padding and copies included."""
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    """Requests that were refused because too many waited."""


class _ThreadSettings(NamedTuple):
    """Thread-local settings of torch that change the bits of a prediction."""

    num_threads: int
    autocast: torch.dtype | None

    @classmethod
    def current(cls, device: str) -> _ThreadSettings:
        is_enabled = torch.is_autocast_enabled(device)
        return cls(
            torch.get_num_threads(), torch.get_autocast_dtype(device) if is_enabled else None
        )

    @contextmanager
    def applied(self, device: str) -> Generator[None]:
        if torch.get_num_threads() != self.num_threads:
            torch.set_num_threads(self.num_threads)
        if self.autocast is None:
            yield
        else:
            with torch.autocast(device, self.autocast):
                yield


class _Call:
    """One awaited call: its requests, or its forward pass."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, device: str, on_step: OnStep | None = None
    ) -> None:
        self.loop, self.on_step = loop, on_step
        self.budget, self.context = Budget.current(), contextvars.copy_context()
        self.settings = _ThreadSettings.current(device)
        self.future: asyncio.Future[None] = loop.create_future()
        self.members: list[Progress | Pass] = []
        self.num_done = 0
        self.error: BaseException | None = None

    def notify(self, members: Sequence[Progress | Pass]) -> BaseException | None:
        """Call `on_step`; return what it raises."""
        live = [
            member for member in members if isinstance(member, Progress) and not member.is_cancelled
        ]
        if self.on_step is not None and live:
            try:
                self.context.run(self.on_step, [progress.event for progress in live])
            except BaseException as error:
                return as_failure(error)
        return None

    def resolve(self) -> None:
        """Resume the coroutine; called by its event loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(self.error)
            self.future.exception()  # nobody may be left to read it


class Session:
    """Samples requests of one model, and makes its other forward passes.

        session = Session(network, schedule, batch_size=16, pad_to_multiple_of=64)
        sample = await session.run(request)          # in a coroutine
        samples = session.sample([request, other])   # elsewhere

    Its thread starts when there is work, and ends when there is none. It makes one forward pass
    after the other, each for at most `batch_size` requests of one shape (`scheduler` says whose).
    Plans, times and processors of these may differ.

    Samples are bit-identical regardless of which other requests share the batch: shapes depend on
    the request, `batch_size` and `pad_to_multiple_of` alone, and random numbers on its seed. (With
    `row_buckets` shapes also depend on the number of active requests.) A request that fails
    affects no other. Every request that is not cancelled has exactly one sample or error.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        *,
        batch_size: int = 1,
        row_buckets: Sequence[int] = (),
        pad_to_multiple_of: int = 1,
        max_length: int | None = None,
        max_waiting: int | None = None,
        block_lengths: Sequence[int] = (),
        cache_bytes: int = 1 << 30,
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without requests.

        Args:
            network: Predicts x_theta.
            schedule: Its noise.
            batch_size: Sequences in a forward pass; incomplete batches are padded with copies,
                because the last bits of a matrix product depend on its shape. 1 is best on a CPU.
            row_buckets: Smaller batch sizes, for when no more requests are active.
            pad_to_multiple_of: Sequences are padded to a multiple of this many tokens; 1 pads none.
            max_length: The context of the network: the longest sequence, padding included.
            max_waiting: Requests that may wait for their first step; others raise `Overloaded`.
            block_lengths: Lengths of the blocks that the network was trained with, if it was:
                finished blocks are then read by their keys and values.
            cache_bytes: Keys and values of finished blocks that are kept, in bytes, for requests
                with a `block_length`; 0 keeps none, and computes them for every block.
            device: Where the network is.
            clock: Returns the time in seconds, for `Limits.seconds`.
        """
        require_arguments(
            batch_size=(batch_size, integer(1, fix="It counts sequences in a forward pass.")),
            pad_to_multiple_of=(pad_to_multiple_of, integer(1, fix="64 is common; 1 pads none.")),
            max_waiting=(max_waiting, optional(integer(1, fix="None is no limit."))),
            cache_bytes=(cache_bytes, integer(0, fix="0 keeps no keys and values.")),
        )
        if pad_to_multiple_of > 1 and not getattr(network, "accepts_padding", False):
            raise ConfigError(
                "pad_to_multiple_of must be 1 for a network that does not accept padding, got "
                f"{pad_to_multiple_of}. See accepts_padding in docs/extending.md."
            )
        self.network, self.schedule = network, schedule
        self.batch_size, self.max_length = batch_size, max_length
        self.use_row_buckets(row_buckets)
        self.pad_to_multiple_of = pad_to_multiple_of if batch_size > 1 else 1
        self.max_waiting = max_waiting
        self.cache_bytes, self.block_lengths = cache_bytes, tuple(block_lengths)
        if block_lengths and not getattr(network, "accepts_context", False):
            raise ConfigError(
                "block_lengths must be () for a network that does not read sequences in blocks, "
                f"got {self.block_lengths}. See accepts_context in docs/howto/network.md."
            )
        self.device = torch.device(device)
        self.counters = Counters()
        self.clock = clock
        self._checked: WeakValueDictionary[int, Plan] = WeakValueDictionary()
        """Plans that were checked and are still in use."""
        self._clear()

    def use_row_buckets(self, row_buckets: Sequence[int]) -> None:
        """Set smaller batch sizes for batches that begin from now on."""
        buckets = {f"row_buckets[{i}]": n for i, n in enumerate(row_buckets)}
        require_arguments(**{name: (n, integer(1, self.batch_size)) for name, n in buckets.items()})
        self.row_buckets = tuple(row_buckets)

    def _clear(self) -> None:
        """Drop all work; a forked process calls it, as its parent does the work."""
        self._process = os.getpid()
        self._lock = threading.Condition()  # held while calls begin and end, by any thread
        self._thread: threading.Thread | None = None
        self._numbers = count()
        self._outboxes: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
        """Calls that begin after some turns of their event loop."""
        self._inbox = list[_Call]()
        self._resuming: asyncio.AbstractEventLoop | None = None
        """The event loop of all that is open, if its coroutines may submit their next requests."""
        self._ended = deque[Progress | Pass]()
        """What was cancelled, and may have a row."""
        self._open: set[Progress | Pass] = set()
        self._open_cost = 0
        self._scheduler = Scheduler()
        self._batches: dict[Shape, Batch] = {}
        self.cache = KeyValueCache(self.network, self.cache_bytes, self.device)

    @property
    def pending(self) -> int:
        """Number of requests and other forward passes that are not done."""
        return len(self._open)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a row, and of other forward passes."""
        return max(0, len(self._open) - self._scheduler.num_active)

    @property
    def expected_wait(self) -> float:
        """Seconds until everything that waits is done, at the speed of this session so far."""
        work = self._open_cost + self._scheduler.reserved
        return work * self.counters.seconds / self.counters.work if self.counters.work else 0.0

    def cost(self, request: Request, batch_size: int | None = None) -> int:
        """Return the largest number of tokens that go through the network for a request."""
        passes = 2 if request.is_guided else 1
        if request.block_length is not None:
            tokens = request.tokens[request.window_start(self.max_length) : request.row_start]
            pages = self.cache.num_missing(tokens, request.block_length)
            return len(request.plan) * request.row_length + pages
        return passes * len(request.plan) * self.padded_length(len(request.tokens), batch_size)

    def padded_length(self, num_tokens: int, batch_size: int | None = None) -> int:
        """Return the padded length of a sequence, which depends on its length alone.

        With a `batch_size` of its own it is not padded.
        """
        multiple = self.pad_to_multiple_of if batch_size is None else 1
        padded = -(-num_tokens // multiple) * multiple
        return padded if self.max_length is None else max(num_tokens, min(padded, self.max_length))

    async def run(self, request: Request, limits: Limits = _NO_LIMITS, **settings: Any) -> Sample:
        """Return the sample of a request; for the settings see `run_all`."""
        (sample,) = await self.run_all([request], limits, **settings)
        return sample

    async def run_all(
        self,
        requests: Sequence[Request],
        limits: Limits = _NO_LIMITS,
        *,
        on_step: OnStep | None = None,
        record_frames: bool = False,
        record_edits: bool = True,
        priority: int = 0,
        batch_size: int | None = None,
        first_index: int = 0,
    ) -> list[Sample]:
        """Return the samples of requests; the first error is raised and cancels the others.

        A coroutine that is cancelled ends its requests, and so does the end of its `Budget`.

        Args:
            requests: What to sample. All are checked, and their cost is reserved, before the first.
            limits: When each of them ends early.
            on_step: Called after each step, in the session's thread. If it raises, the call ends
                with its error.
            record_frames: Record state and prediction before every step. It costs a pass of the
                head per step, and a forward pass where the step would have needed none.
            record_edits: Whether events and samples have edits.
            priority: Requests of a higher priority come first.
            batch_size: Sequences in a forward pass, in place of the session's, without padding.
            first_index: Index of the first request in events.
        """
        if not requests:
            return []
        session = self._for_this_thread()
        call = session._call(
            asyncio.get_running_loop(),
            requests,
            limits,
            on_step=on_step,
            record_frames=record_frames,
            record_edits=record_edits,
            priority=priority,
            batch_size=batch_size,
            first_index=first_index,
        )
        await session._await(call)
        samples = [cast(Sample, member.result) for member in call.members]
        call.members.clear()  # what refers to itself is freed late
        return samples

    async def compute(self, function: Callable[[], _T], cost: int) -> _T:
        """Return the result of a function that makes one forward pass, of `cost` tokens."""
        session = self._for_this_thread()
        call = _Call(asyncio.get_running_loop(), self.device.type)
        call.members.append(forward_pass := Pass(function, cost, call.budget, call))
        await session._await(call)
        return forward_pass.result

    def sample(self, requests: Sequence[Request], **settings: Any) -> list[Sample]:
        """Return the samples of requests: `run_all` for code that is no coroutine."""
        return run_sync(self.run_all(requests, **settings))

    async def _await(self, call: _Call) -> None:
        """Let a call begin, and wait for its end."""
        call.budget.check()
        call.budget.use(sum(member.cost for member in call.members))
        self._begin(call)
        with call.budget.covers(partial(self._cancel, call)):
            try:
                await call.future
            finally:
                self._end(call)
                call.budget.add_computed(sum(member.computed for member in call.members))

    # calls, from any thread

    def _for_this_thread(self) -> Session:
        """Return this session, or a copy for a callback or step, for which its thread waits."""
        if threading.current_thread() is not self._thread:
            return self
        session = copy(self)
        session._clear()
        return session

    def _call(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Sequence[Request],
        limits: Limits,
        *,
        on_step: OnStep | None = None,
        first_index: int = 0,
        batch_size: int | None = None,
        **settings: Any,
    ) -> _Call:
        """Check requests; return the call of `run_all`, which has not begun."""
        call = _Call(loop, self.device.type, on_step)
        require_allowed(limits)
        for index, request in enumerate(requests, first_index):
            request.check(self.schedule, self.max_length)
            self._check_blocks(request)
            if self._checked.get(id(request.plan)) is not request.plan:
                request.plan.check(self.schedule)
                self._checked[id(request.plan)] = request.plan
            shape = self._shape(request, batch_size, call.settings)
            cost, settings["is_watched"] = self.cost(request, batch_size), on_step is not None
            numbers = next(self._numbers), index
            progress = Progress(request, limits, shape, cost, *numbers, call, **settings)
            call.members.append(progress)
        return call

    def _check_blocks(self, request: Request) -> None:
        """Raise if the network was not trained to read as many tokens together."""
        if request.block_length is not None and not self.block_lengths:
            raise ConfigError(
                "request.block_length must be None for a network that was not trained in blocks, "
                f"got {request.block_length}. sample_blocks works with every network."
            )
        if self.block_lengths and request.row_length > (most := max(self.block_lengths)):
            raise ConfigError(
                f"at most {most} tokens can be read together by this network, which was trained in "
                f"blocks of {', '.join(map(str, self.block_lengths))} tokens, got "
                f"{request.row_length}. Use shorter blocks, fewer of them (revise), or a shorter "
                "text; what reads a text of several blocks as a whole needs another model."
            )

    def _shape(self, request: Request, batch_size: int | None, settings: _ThreadSettings) -> Shape:
        """Return the shape of the forward passes of a request.

        Attention without a mask may have other bits than attention with one, except on a CPU: on
        other devices, sequences that fill their padded length have a shape of their own.
        """
        rows = batch_size or self.batch_size
        if request.block_length is not None:  # always with a mask
            before = request.row_start - request.window_start(self.max_length)
            shape = Shape(rows, request.row_length, settings=settings)
            return shape._replace(capacity=padded_to(before), block_length=request.block_length)
        num_tokens = len(request.tokens)
        length = self.padded_length(num_tokens, batch_size)
        is_full = self.device.type == "cpu" or num_tokens == length
        kind = is_full, request.is_guided, bool(request.constraints)
        return Shape(rows, length, *kind, settings)

    def _begin(self, call: _Call) -> None:
        """Open what a call awaits, or raise if too much waits."""
        if self._process != os.getpid():
            self._clear()
        with self._lock:
            waiting = self.waiting
            if self.max_waiting is not None and waiting + len(call.members) > self.max_waiting:
                self.counters.refused += 1
                seconds = self.expected_wait
                raise Overloaded(
                    f"{waiting} requests wait, at most {self.max_waiting} may. Try again in "
                    f"{seconds:.0f} seconds.",
                    seconds,
                )
            now = self.clock()
            for member in call.members:
                self._open.add(member)
                self._open_cost += member.cost
                if isinstance(member, Progress):
                    member.set_deadlines(now)
            outbox = self._outboxes.setdefault(call.loop, [])
            outbox.append(call)
        if len(outbox) == 1:
            call.loop.call_soon(self._release, call.loop, _TURNS)

    def _release(self, loop: asyncio.AbstractEventLoop, turns: int) -> None:
        """Let the calls of an event loop begin after some turns, and the thread wait no longer."""
        if turns:
            loop.call_soon(self._release, loop, turns - 1)
            return
        with self._lock:
            self._inbox += self._outboxes.pop(loop, [])
            if self._resuming is loop:
                self._resuming = None
            try:
                self._start()
            except RuntimeError as error:  # the system has no other thread
                self._thread = None
                self._fail_all(error)

    def _start(self) -> None:
        """Let the thread work, if there is something to do; with the lock."""
        self._lock.notify()
        if self._thread is None and self._is_busy:
            self._thread = threading.Thread(target=self._work, name="gidd-session")
            self._thread.start()

    def _cancel(self, call: _Call) -> None:
        """End a call with `CancelledError`."""
        self._end(call)
        with suppress(RuntimeError):  # its loop is closed
            call.loop.call_soon_threadsafe(call.future.cancel)

    def _end(self, call: _Call) -> None:
        """Cancel what is open of a call."""
        with self._lock:
            for member in call.members:
                if member in self._open:
                    member.is_cancelled = True
                    self._close(member)
                    self.counters.cancelled += 1
                    if self._is_busy:
                        self._ended.append(member)
            self._lock.notify()
            outbox = self._outboxes.get(call.loop, [])
            if call in outbox:
                outbox.remove(call)
            if not outbox:
                self._outboxes.pop(call.loop, None)

    def _close(self, member: Progress | Pass) -> None:
        """Count something as done; with the lock."""
        self._open.remove(member)
        self._open_cost -= member.cost

    # steps, in the thread of the session

    def _work(self) -> None:
        """Make steps until nothing is left."""
        while self._has_work():
            try:
                self._step()
            except BaseException as error:  # a defect: nobody may wait for ever
                _log.exception("a step failed")
                self._fail_all(error)

    def _has_work(self) -> bool:
        """Wait for work; return False, and forget this thread, if there is none."""
        with self._lock:
            if self._resuming is not None:
                self._lock.wait_for(self._has_resumed, _RESUME_SECONDS)
                self._resuming = None
            if not self._lock.wait_for(lambda: self._is_busy, _LINGER_SECONDS):
                self._thread = None
            return self._thread is not None

    @property
    def _is_busy(self) -> bool:
        return bool(self._inbox or self._ended or self._scheduler)

    def _step(self) -> None:
        """Make one step of a batch, or another forward pass, and tell its callers."""
        start, device = time.perf_counter(), self.device.type
        self._receive()
        stepped = self._scheduler.late(self.clock())
        for member in stepped:
            self._forget(member)
        turn = self._scheduler.next()
        if isinstance(turn, Pass):
            with turn.call.settings.applied(device):
                self._make(turn)
            stepped.append(turn)
        elif turn is not None:
            with turn.shape.settings.applied(device):
                batch = self._join(turn)
                stepped += [
                    *turn.failed,
                    *(progress for progress in turn.joining if progress.is_done),
                ]
                if batch is not None and (num_active := batch.num_active):
                    stepped += batch.step()
                    self._count(turn, num_active, batch.num_rows(num_active))
        self.counters.seconds += time.perf_counter() - start
        self._report(stepped)

    def _join(self, turn: Turn) -> Batch | None:
        """Let requests join their batch, if there is memory for it."""
        try:
            if (batch := self._batches.get(turn.shape)) is None:
                parts = self.network, self.schedule, turn.shape, self.device, self.row_buckets
                batch = Batch(*parts, self.cache, self.max_length)
                self._batches[turn.shape] = batch
        except Exception as error:
            for progress in turn.joining:
                progress.fail(error)
            return None
        if turn.parked is not None:
            batch.park(turn.parked)
        for progress in turn.failed:
            batch.leave(progress)
        batch.join(turn.joining)
        return batch

    def _count(self, turn: Turn, num_active: int, num_rows: int) -> None:
        work = turn.shape.length * num_rows
        self.counters.steps += 1
        self.counters.rows += num_rows
        self.counters.used_rows += num_active
        self.counters.work += work
        self._scheduler.count_step(work, turn.rule)

    def _receive(self) -> None:
        """Take what was submitted, and forget what was cancelled."""
        with self._lock:
            calls, self._inbox = self._inbox, []
            ended = list(self._ended)
            self._ended.clear()
        for member in (member for call in calls for member in call.members):
            if not member.is_done:
                self._scheduler.add(member)
        for member in ended:
            self._forget(member)

    def _forget(self, member: Progress | Pass) -> None:
        """Remove something that is done."""
        self._scheduler.remove(member)
        if isinstance(member, Pass) or (batch := self._batches.get(member.shape)) is None:
            return
        batch.leave(member)
        if not self._scheduler.has(member.shape):
            del self._batches[member.shape]

    @torch.no_grad()
    def _make(self, forward_pass: Pass) -> None:
        """Make a forward pass that is no denoising step."""
        with self._lock:
            if forward_pass.is_cancelled:
                return
            forward_pass.is_made = True
        self.counters.steps += 1
        self.counters.work += forward_pass.cost
        try:
            forward_pass.result = forward_pass.function()
        except BaseException as error:
            forward_pass.error = as_failure(error)

    def _report(self, stepped: Sequence[Progress | Pass]) -> None:
        """Tell callers what has happened, and let those go on whose call is done."""
        calls: dict[_Call, list[Progress | Pass]] = {}
        for member in stepped:
            calls.setdefault(member.call, []).append(member)
        for call, members in calls.items():
            error = call.notify(members)
            with self._lock:
                for member in filter(self._open.__contains__, members):
                    member.error = member.error or error
                    if member.is_done:
                        self._close(member)
                        call.num_done += 1
                        call.error = call.error or member.error
                        if isinstance(member, Progress):
                            self.counters.finished += member.error is None
                            self.counters.failed += member.error is not None
            if call.error is not None or call.loop.is_closed():
                self._end(call)
            for member in members:
                if member.is_done:
                    self._forget(member)
        done = [call for call in calls if call.error or call.num_done == len(call.members)]
        loops = {call.loop for call in done}
        with self._lock:
            if len(loops) == 1 and {member.call.loop for member in self._open} == loops:
                (self._resuming,) = loops  # nobody else waits
        _resolve(done)
        for loop in loops:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._release, loop, _TURNS)

    def _has_resumed(self) -> bool:
        """Whether the thread need not wait for coroutines: they went on, ended, or others came."""
        others = (call for call in self._inbox if call.loop is not self._resuming)
        return self._resuming is None or not self._open or any(others)

    def _fail_all(self, error: BaseException) -> None:
        """End everything with an error."""
        with self._lock:
            calls: set[_Call] = {member.call for member in self._open}
            for call in calls:
                call.error = error
                self._end(call)
            self._inbox.clear()
            self._ended.clear()
            self._scheduler, self._batches = Scheduler(), {}
        _resolve(calls)


def _resolve(calls: Iterable[_Call]) -> None:
    """Let coroutines go on, those of an event loop together."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)

    def resolve(calls: list[_Call]) -> None:
        for call in calls:
            call.resolve()

    for loop, of_loop in by_loop.items():
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(resolve, of_loop)
