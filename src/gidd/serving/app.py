"""The HTTP service: OpenAI's routes, and those of diffusion models."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

import gidd
from gidd.common.config.allowed import require_allowed
from gidd.pipeline import Pipeline
from gidd.pipeline.chat import is_chat_model
from gidd.serving import endpoints
from gidd.serving.access import Access, AccessMiddleware
from gidd.serving.endpoints import Json, StreamEvent, describe_frame
from gidd.serving.errors import ServiceError, add_handlers, as_service_error, error_body
from gidd.serving.metrics import Metrics
from gidd.serving.options import ServiceOptions
from gidd.serving.protocol import (
    ChatBody,
    CompletionBody,
    CorrectBody,
    FimBody,
    InfillBody,
    SampledBody,
    ScoreBody,
)
from gidd.serving.worker import Cancelled, Worker

_T = TypeVar("_T")
_FRAME_SECONDS = 0.04
"""Least time between two frames of a stream; what happens between them is in the next."""

_FIELDS = ("index", "text", "logprobs", "finish_reason")


def create_app(
    workers: Mapping[str, Worker],
    options: ServiceOptions | None = None,
    keys: Mapping[str, str] | None = None,
) -> FastAPI:
    """Return the service of some models by their names; `keys` are names of API keys by hash."""
    service = Service(dict(workers), options or ServiceOptions(), dict(keys or {}))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        for worker in service.workers.values():
            worker.close()

    # the pages of FastAPI load scripts from elsewhere; /openapi.json is the document
    settings: Json = {"docs_url": None, "redoc_url": None, "lifespan": lifespan}
    app = FastAPI(title="gidd", version=gidd.__version__, redirect_slashes=False, **settings)
    add_handlers(app)
    app.add_middleware(AccessMiddleware, access=service.access, options=service.options)
    app.middleware("http")(service.measure)
    for path, route in {
        "/v1/completions": service.complete,
        "/v1/fim/completions": service.fim,
        "/v1/chat/completions": service.chat,
        "/v1/infill": service.infill,
        "/v1/correct": service.correct,
        "/v1/score": service.score,
    }.items():
        app.post(path, response_model=None)(route)
    for path, route in {
        "/v1/models": service.models,
        "/v1/models/{name:path}": service.model,
        "/healthz": service.health,
        "/readyz": service.ready,
        "/metrics": service.show_metrics,
        "/": page,
    }.items():
        app.get(path, response_model=None)(route)
    app.state.service = service
    return app


async def page() -> Response:
    """Return the demo page."""
    text = files("gidd.serving").joinpath("page.html").read_text(encoding="utf-8")
    policy = "default-src 'self' 'unsafe-inline' data:; frame-ancestors 'none'"
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


class Service:
    """The handlers of all routes."""

    def __init__(
        self, workers: dict[str, Worker], options: ServiceOptions, keys: dict[str, str]
    ) -> None:
        self.workers, self.options = workers, options
        require_allowed(options)
        self.access = Access(keys, options.requests_per_minute, options.cost_per_minute)
        self.metrics = Metrics(workers)
        self.created = int(time.time())

    @property
    def expected_wait(self) -> float:
        """Seconds until the open requests to all models are done."""
        return sum(worker.session.expected_wait for worker in self.workers.values())

    async def measure(
        self, request: Request, call: Callable[[Request], Coroutine[Any, Any, Response]]
    ) -> Response:
        """Measure the time until the answer begins."""
        start = time.perf_counter()
        response = await call(request)
        route = request.scope.get("route")
        path = getattr(route, "path", "other")
        seconds = time.perf_counter() - start
        self.metrics.latency.labels(path, str(response.status_code)).observe(seconds)
        return response

    # state

    async def models(self) -> Json:
        """List the models."""
        return {"object": "list", "data": [self._describe(name) for name in self.workers]}

    async def model(self, name: str) -> Json:
        """Describe one model."""
        return self._describe(name)

    def _describe(self, name: str) -> Json:
        pipe = self._worker(name).pipe
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "gidd",
            "context": pipe.context,
            "vocabulary": pipe.schedule.vocab.size,
            "can_correct": pipe.can_score_visible_tokens,
            "can_chat": is_chat_model(pipe),
            "examples": asdict(pipe.examples),
        }

    async def health(self) -> Response:
        """Tell whether all workers are alive."""
        is_alive = all(worker.is_alive for worker in self.workers.values())
        return JSONResponse({"alive": is_alive}, 200 if is_alive else 503)

    async def ready(self) -> Response:
        """Tell whether requests are accepted now."""
        is_ready = all(worker.is_alive and not worker.is_full for worker in self.workers.values())
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def show_metrics(self) -> Response:
        """Return metrics in the format of Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    # completions

    async def complete(self, body: CompletionBody, request: Request) -> Response:
        """Complete a prompt; with `suffix`, fill in the text between both."""
        call = self._begin(body, request, "cmpl")
        blocks = partial(endpoints.complete_in_blocks, call.pipe, body, call.seed)
        jobs = [
            partial(endpoints.complete, call.pipe, body, index, call.seed)
            for index in range(len(endpoints.prompts_of(body)))
        ]
        return await call.respond(body, blocks, jobs, _text_choice, _text_choice)

    async def fim(self, body: FimBody, request: Request) -> Response:
        """Fill in the text between `prompt` and `suffix`."""
        seed = body.random_seed if body.seed is None else body.seed
        return await self.complete(body.model_copy(update={"seed": seed}), request)

    async def chat(self, body: ChatBody, request: Request) -> Response:
        """Answer a conversation."""
        call = self._begin(body, request, "chatcmpl")
        if not is_chat_model(call.pipe):
            raise ServiceError(400, f"model: {call.model} was not trained on chats.", param="model")
        blocks = partial(endpoints.answer_in_blocks, call.pipe, body, call.seed)
        jobs = [partial(endpoints.answer, call.pipe, body, i, call.seed) for i in range(body.n)]
        return await call.respond(body, blocks, jobs, _message_choice, _delta_choice)

    # diffusion

    async def infill(self, body: InfillBody, request: Request) -> Response:
        """Fill the blanks of a text."""
        call = self._begin(body, request, "infill")
        run = partial(endpoints.infill, call.pipe, body, call.seed)
        return await call.result_or_frames(run, is_stream=body.stream)

    async def correct(self, body: CorrectBody, request: Request) -> Response:
        """Correct a text."""
        call = self._begin(body, request, "correct")
        call.pipe.require_visible_scores("correction")
        run = partial(endpoints.correct, call.pipe, body)
        return await call.result_or_frames(run, is_stream=body.stream)

    async def score(self, body: ScoreBody, request: Request) -> Response:
        """Compute the likelihood of a text and the probability of its tokens."""
        call = self._begin(body, request, "score")
        unused = [] if call.pipe.can_score_visible_tokens else ["top"]
        unused += [] if body.likelihood or not unused else ["prompt"]
        for name in unused:
            if getattr(body, name):
                needs = "a model that was trained with uniform noise"
                raise ServiceError(
                    400, f"{name}: needs {needs}, which {call.model} was not.", param=name
                )

        run = partial(endpoints.score, call.pipe, body)
        return await call.result_or_frames(lambda _: run(), is_stream=False)

    def _begin(self, body: Any, request: Request, kind: str) -> Call:
        name: str = request.scope.get("state", {}).get("key", "")
        self.access.begin(name)
        model = body.model or next(iter(self.workers))
        seed = body.seed if isinstance(body, SampledBody) else None
        return Call(
            request=request,
            worker=self._worker(model),
            model=model,
            id=f"{kind}-{secrets.token_hex(12)}",
            seed=secrets.randbelow(2**31) if seed is None else seed,
            key=name if self.access.has_several_keys else None,
            charge=partial(self.access.charge, name),
        )

    def _worker(self, model: str) -> Worker:
        if model not in self.workers:
            allowed = f"model: must be one of {', '.join(self.workers)}."
            raise ServiceError(404, allowed, "model_not_found", "model")
        return self.workers[model]


def _text_choice(choice: Json) -> Json:
    """Return a choice of /v1/completions."""
    return {name: choice.get(name) for name in _FIELDS} | {"text": choice.get("text") or ""}


def _message_choice(choice: Json) -> Json:
    """Return a choice of /v1/chat/completions."""
    message = {"role": "assistant", "content": choice["text"]}
    listed = {name: choice.get(name) for name in ("index", "logprobs", "finish_reason")}
    return listed | {"message": message}


def _delta_choice(choice: Json) -> Json:
    """Return a choice of a stream of /v1/chat/completions."""
    text = choice.get("text")
    delta = {} if text is None else {"role": "assistant", "content": text}
    return {"index": choice["index"], "delta": delta, "finish_reason": choice["finish_reason"]}


_ToChoice = Callable[[Json], Json]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request of a client to a model."""

    request: Request
    worker: Worker
    model: str
    id: str
    seed: int
    key: str | None
    charge: Callable[[int], None]

    @property
    def pipe(self) -> Pipeline:
        """The model."""
        return self.worker.pipe

    async def run_all(self, functions: list[Callable[[], _T]]) -> list[_T]:
        """Run functions in the worker; cancel them if the client disconnects."""
        # masked models have no other record of the probability of a token
        record_edits = not self.pipe.can_score_visible_tokens
        calls = self.worker.call_all(functions, record_edits=record_edits, **self._settings)
        return await self._unless_gone(calls)

    @property
    def _settings(self) -> Json:
        return {"key": self.key, "charge": self.charge}

    async def _unless_gone(self, work: Awaitable[_T]) -> _T:
        """Await a task; cancel it if the client disconnects."""
        running = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._client_gone())
        try:
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise Cancelled("the client is gone.")
            return running.result()
        finally:
            gone.cancel()
            running.cancel()

    async def _client_gone(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    async def respond(
        self,
        body: CompletionBody | ChatBody,
        blocks: Callable[[Any], None],
        jobs: list[Callable[[Any], list[Json]]],
        to_choice: _ToChoice,
        to_chunk: _ToChoice,
    ) -> Response:
        """Return the choices of all jobs, or stream finished blocks, or frames of a single job."""
        if not body.stream:
            results = await self.run_all([partial(job, None) for job in jobs])
            choices = [choice for result in results for choice in result]
            listed = {"choices": [to_choice(choice) for choice in choices]}
            head = self._head(is_chunk=False)
            return JSONResponse({**head, **listed, "usage": _usage(choices), "seed": self.seed})
        has_usage = body.stream_options is not None and body.stream_options.include_usage
        if not body.diffusing:
            return await self._event_stream(self._blocks(blocks, to_chunk, body.n, has_usage))
        if len(jobs) > 1:
            required = "n = 1" if isinstance(body, ChatBody) else "a single prompt"
            raise ServiceError(400, f"diffusing: needs {required}.", param="diffusing")
        return await self._event_stream(self._texts(jobs[0], to_chunk, has_usage))

    def _head(self, *, is_chunk: bool) -> Json:
        kind = "chat.completion" if self.id.startswith("chat") else "text_completion"
        if is_chunk and kind == "chat.completion":
            kind += ".chunk"
        return {
            "id": self.id,
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": f"gidd-{gidd.__version__}",
        }

    async def _blocks(
        self, run: Callable[[Any], None], to_chunk: _ToChoice, num_samples: int, has_usage: bool
    ) -> AsyncGenerator[Json]:
        """Yield the finished blocks of texts."""
        head, ended = self._head(is_chunk=True), list[Json]()
        async for index, piece in self.worker.stream(run, **self._settings):
            choice: Json = {"index": index, "text": piece, "finish_reason": None}
            if not isinstance(piece, str):
                choice["finish_reason"] = "stop" if piece.is_stopped else "length"
                choice["text"] = None
                num_given = 0 if index % num_samples else piece.num_given  # once per prompt
                ended.append({"tokens": piece.num_tokens, "prompt_tokens": num_given})
            yield head | {"choices": [to_chunk(choice)]}
        if has_usage:
            yield head | {"choices": [], "usage": _usage(ended)}

    async def _texts(
        self, run: Callable[[Any], list[Json]], to_chunk: _ToChoice, has_usage: bool
    ) -> AsyncGenerator[Json]:
        """Yield the whole text after each step, as clients of Mercury expect it."""
        head = self._head(is_chunk=True)
        async for item in self._frames(run):
            if isinstance(item, StreamEvent):
                request = item.request
                end = request.first_blank + sum(token is None for token in request.tokens)
                frame = describe_frame(self.pipe, item, item.start, end)
                progress = item.step / max(1, item.steps)
                yield _mercury(head, frame["index"], frame.pop("text"), progress, to_chunk, frame)
                continue
            for choice in item:
                index, text = choice["index"], choice["text"]
                yield _mercury(head, index, text, 1.0, to_chunk, {"edits": []})
                end = {"index": index, "finish_reason": choice["finish_reason"]}
                yield head | {"choices": [to_chunk(end)]}
            if has_usage:
                yield head | {"choices": [], "usage": _usage(item)}

    async def result_or_frames(self, run: Callable[[Any], Json], *, is_stream: bool) -> Response:
        """Return a result or, as a stream, frames and then the result."""
        if not is_stream:
            (result,) = await self.run_all([partial(run, None)])
            return JSONResponse({"model": self.model, **result})

        async def chunks() -> AsyncGenerator[Json]:
            async for item in self._frames(run):
                if isinstance(item, StreamEvent):
                    yield {"frame": describe_frame(self.pipe, item)}
                else:
                    yield {"result": {"model": self.model, **item}}

        return await self._event_stream(chunks())

    async def _frames(self, run: Callable[[Any], _T]) -> AsyncGenerator[StreamEvent | _T]:
        """Yield frames, at a limited rate, and then the result."""

        def emit_result(emit: Callable[[Any], None]) -> None:
            emit(run(emit))

        last = 0.0
        async for item in self.worker.stream(emit_result, **self._settings):
            if isinstance(item, StreamEvent):
                await asyncio.sleep(max(0.0, last + _FRAME_SECONDS - time.monotonic()))
                last = time.monotonic()
            yield item

    async def _event_stream(self, chunks: AsyncGenerator[Json]) -> Response:
        """Return server-sent events; what fails before the first of them is an ordinary error."""
        first = await self._unless_gone(anext(chunks))

        async def events() -> AsyncGenerator[bytes]:
            try:
                yield _event(first)
                async for chunk in chunks:
                    yield _event(chunk)
            except Exception as error:
                yield _event(error_body(as_service_error(error)))
            finally:
                await chunks.aclose()
            yield b"data: [DONE]\n\n"

        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


def _mercury(
    head: Json, index: int, text: str, progress: float, to_chunk: _ToChoice, frame: Json
) -> Json:
    """Return a chunk whose text replaces the text before."""
    choice = to_chunk({"index": index, "text": text, "finish_reason": None})
    meta = {"diffusion_content": True, "diffusion_progress": round(progress, 4)}
    return head | {"choices": [choice], "diffusion_meta": meta, "gidd": frame}


def _usage(choices: list[Json]) -> Json:
    prompt_tokens = sum(choice.get("prompt_tokens", 0) for choice in choices)
    new = sum(choice["tokens"] for choice in choices)
    passes = sum(choice.get("forward_passes", 0) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new,
        "total_tokens": prompt_tokens + new,
        "forward_passes": passes,
    }


def _event(chunk: Json) -> bytes:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode()
