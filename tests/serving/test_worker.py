"""A worker: calls in threads have the results of the pipeline, fail alone, and can be cancelled."""

import asyncio
import inspect
import threading
from functools import partial

import pytest
from support.service import small_pipelines

from gidd.diffusion.times import even_times
from gidd.errors import ConfigError, LimitReached, Overloaded
from gidd.pipeline import Pipeline
from gidd.sampling import Request, ancestral, blanks, sampling_plan
from gidd.serving import Worker, WorkerOptions
from gidd.serving.endpoints import frame_emitter
from gidd.serving.worker import Cancelled


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    return small_pipelines(tmp_path_factory.mktemp("models"))["hybrid"]


@pytest.fixture
def worker(pipe):
    found = Worker(pipe, WorkerOptions(max_requests=8))
    yield found
    found.close()
    assert not found.is_alive


TEXT = "I embrace with great satisfaction the opportunity"


def results(pipe, index: int):
    """Return what one of several different calls gives."""
    if index % 3 == 0:
        return pipe.generate(n=2, prompt="I", length=12, seed=index, steps=6)[1].tokens
    if index % 3 == 1:
        return pipe.infill("Peace[MASK:3] all", seed=index, steps=5)[0].text
    return pipe.correct(TEXT[: 20 + index]).text


def test_calls_at_once_have_the_results_of_the_pipeline(pipe, worker):
    async def all_calls():
        return await asyncio.gather(*(worker.call(lambda i=i: results(pipe, i)) for i in range(8)))

    assert asyncio.run(all_calls()) == [results(pipe, i) for i in range(8)]
    assert pipe.session.counters.used_rows and worker.num_open == 0
    assert pipe.session.expected_wait == 0


def test_pieces_of_a_stream_are_the_text_of_the_pipeline(pipe, worker):
    settings = {"prompt": "I", "length": 24, "seed": 3, "steps": 4, "block_length": 6}

    def emit_pieces(emit):
        for piece in pipe.stream(**settings).pieces():
            emit(piece)

    async def all_pieces():
        return [piece async for piece in worker.stream(emit_pieces)]

    pieces = asyncio.run(all_pieces())
    assert len(pieces) > 2 and "".join(pieces) == pipe.generate(**settings)[0].text


def test_no_sequence_of_a_stream_loses_a_frame_to_another(pipe, worker):
    """A frame replaces one that was not sent yet of its own sequence, with the edits of both."""
    options = {"max_tokens": 8, "steps": 8, "seed": 1}

    def emit_frames(emit):
        pipe.generate(n=3, on_step=frame_emitter(emit), **options)

    async def all_frames():
        return [frame async for frame in worker.stream(emit_frames)]

    frames = asyncio.run(all_frames())
    for index, generation in enumerate(pipe.generate(n=3, **options)):
        own = [frame for frame in frames if frame.request.sample_index == index]
        assert [edit for frame in own for edit in frame.edits] == list(generation.trace.edits)
        assert own[-1].tokens == generation.trace.tokens and own[-1].step == own[-1].steps == 8


def test_too_many_calls_are_refused_and_the_others_are_answered(pipe, worker):
    async def many():
        calls = [worker.call(lambda: results(pipe, 0)) for _ in range(11)]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(many())
    refused = [one for one in found if isinstance(one, Overloaded)]
    assert len(refused) == 3 and all(one.seconds >= 1 for one in refused)
    assert [one for one in found if one not in refused] == [results(pipe, 0)] * 8
    assert worker.num_refused == 3


def test_one_key_leaves_places_for_others(pipe, worker):
    async def flooded():
        calls = [
            asyncio.ensure_future(worker.call(lambda: endless(pipe), key="a", max_cost=None))
            for _ in range(6)
        ]
        while worker.num_open < 4 or not worker.session.pending:
            await asyncio.sleep(0.001)
        refused = [call.exception() for call in calls if call.done()]
        assert len(refused) == 2 and all(isinstance(error, Overloaded) for error in refused)
        assert all(1 <= error.seconds <= worker.options.seconds for error in refused)
        found = await worker.call(lambda: results(pipe, 0), key="b")
        for call in calls:
            call.cancel()
        return found

    assert asyncio.run(flooded()) == results(pipe, 0)


def test_the_wait_of_a_refused_call_is_at_most_the_time_that_is_left(pipe):
    worker = Worker(pipe, WorkerOptions(max_requests=1, seconds=30.0, max_cost=10**9))
    generate = partial(pipe.generate, length=16, steps=4)

    async def refused():
        await worker.call(generate)  # so that the speed is known
        running = asyncio.ensure_future(worker.call(lambda: endless(pipe)))
        while not worker.session.pending:
            await asyncio.sleep(0.001)
        with pytest.raises(Overloaded) as caught:
            await worker.call(generate)
        running.cancel()
        return caught.value.seconds

    try:
        assert asyncio.run(refused()) <= 30
    finally:
        worker.close()


def endless(pipe):
    return pipe.generate(length=16, steps=60_000, sampler="ancestral")


def test_a_call_that_is_cancelled_leaves_nothing(pipe, worker):
    async def cancelled():
        running = asyncio.ensure_future(worker.call(lambda: endless(pipe)))
        while not worker.session.pending:
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while worker.num_open:
            await asyncio.sleep(0.001)
        return await worker.call(lambda: results(pipe, 1))

    assert asyncio.run(cancelled()) == results(pipe, 1)
    assert not worker.session.pending


def test_a_thread_whose_call_was_cancelled_ends_with_an_error(pipe, worker):
    errors = []

    def watched():
        try:
            endless(pipe)
        except BaseException as error:
            errors.append(error)
            raise

    async def cancelled():
        running = asyncio.ensure_future(worker.call(watched))
        while not worker.session.pending:
            await asyncio.sleep(0.001)
        running.cancel()
        while worker.num_open:
            await asyncio.sleep(0.001)

    asyncio.run(cancelled())
    assert [type(error) for error in errors] == [asyncio.CancelledError]
    assert issubclass(Cancelled, Exception)


def test_a_call_that_is_late_or_costs_too_much_fails_alone(pipe):
    worker = Worker(pipe, WorkerOptions(max_cost=1000 * 16))

    async def calls():
        return await asyncio.gather(
            worker.call(lambda: endless(pipe)),
            worker.call(lambda: pipe.generate(length=16, steps=1000), seconds=0.0),
            worker.call(lambda: results(pipe, 0)),
            return_exceptions=True,
        )

    try:
        dear, late, good = asyncio.run(calls())
    finally:
        worker.close()
    assert isinstance(dear, ConfigError) and "cost at most 16,000" in str(dear)
    assert isinstance(late, LimitReached) and good == results(pipe, 0)


class Mine(Exception):
    """The error of a callback."""


def fail(*_: object) -> None:
    raise Mine


REQUEST = Request(tokens=blanks(8), plan=sampling_plan(even_times(4), ancestral))
CHAT = [{"role": "user", "content": "Peace"}]
CALLS = {
    "chat": lambda pipe, **own: pipe.chat(CHAT, max_tokens=8, steps=4, **own),
    "choice_probabilities": lambda pipe, **own: pipe.choice_probabilities(
        "I[MASK:1]", ["a", "b"], **own
    ),
    "correct": lambda pipe, **own: pipe.correct(TEXT, **own),
    "generate": lambda pipe, **own: pipe.generate(n=2, prompt="I", max_tokens=8, steps=4, **own),
    "infill": lambda pipe, **own: pipe.infill("I[MASK:4]", steps=4, **own),
    "noise_level": lambda pipe, **own: pipe.noise_level(TEXT, **own),
    "run": lambda pipe, **own: pipe.run([REQUEST], **own),
    "score": lambda pipe, **own: pipe.score(TEXT, nodes=2, **own),
    "self_correct": lambda pipe, **own: pipe.self_correct(TEXT, forward_passes=4, **own),
    "stream": lambda pipe, **own: [*pipe.stream(prompt="I", max_tokens=8, steps=4, **own)],
    "stream_chat": lambda pipe, **own: [*pipe.stream_chat(CHAT, max_tokens=8, steps=4, **own)],
}
POSITIONS = [
    (method, name)
    for method, function in inspect.getmembers(Pipeline, inspect.isfunction)
    for name in inspect.signature(function).parameters
    if not method.startswith("_") and (name.startswith("on_") or name == "processors")
]


@pytest.mark.parametrize("method, position", POSITIONS)
def test_a_callback_that_raises_ends_its_own_call(pipe, worker, method, position):
    """With its own error, whether the steps are made here or by the thread that steps for all."""
    own = {position: [fail] if position == "processors" else fail}
    with pytest.raises(Mine):
        CALLS[method](pipe, **own)

    async def calls():
        bad, *good = (lambda: CALLS[method](pipe, **own), *[lambda: results(pipe, 0)] * 2)
        each = [worker.call(function) for function in (good[0], bad, good[1])]
        return await asyncio.gather(*each, return_exceptions=True)

    before, error, after = asyncio.run(calls())
    assert type(error) is Mine and before == after == results(pipe, 0)
    assert worker.is_alive and not worker.session.pending


def test_an_interrupt_in_a_step_ends_its_own_call(pipe, worker):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    async def calls():
        bad = worker.call(lambda: pipe.generate(prompt="I", steps=4, processors=[interrupt]))
        good = worker.call(lambda: results(pipe, 0))
        return await asyncio.gather(bad, good, return_exceptions=True)

    error, good = asyncio.run(calls())
    assert type(error) is RuntimeError and good == results(pipe, 0)


def test_an_idle_worker_has_no_thread_that_steps(pipe, worker):
    asyncio.run(worker.call(lambda: results(pipe, 0)))
    threads = [one for one in threading.enumerate() if one.name == "gidd-session"]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert worker.is_alive
