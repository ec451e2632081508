"""Errors of a service, as OpenAI's clients expect them; never a traceback or the client's input."""

import logging
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gidd.errors import GiddError, LimitReached, Overloaded
from gidd.serving.worker import Cancelled

_log = logging.getLogger("gidd.serving")

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_CLIENT_GONE = 499
_MAX_PROBLEMS = 5


class ServiceError(GiddError):
    """An error with an HTTP status."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


def as_service_error(error: BaseException) -> ServiceError:
    """Return any error as one with a status."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, Overloaded):
        return ServiceError(429, str(error), "overloaded")
    if isinstance(error, LimitReached):
        return ServiceError(504, "the request was not finished in time. Use fewer steps.", "late")
    if isinstance(error, Cancelled):
        return ServiceError(_CLIENT_GONE, str(error))
    if isinstance(error, GiddError):
        return ServiceError(400, str(error))
    _log.error("a request failed", exc_info=error)
    return ServiceError(500, "the service failed. Its log says why.")


def error_body(error: ServiceError) -> dict[str, Any]:
    """Return the JSON of an error."""
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else _KINDS[400])
    # a message may quote what a client sent, such as half of a surrogate pair
    message = str(error).encode("utf-8", "replace").decode()
    return {"error": {"message": message, "type": kind, "param": error.param, "code": error.code}}


def error_response(error: BaseException) -> JSONResponse:
    """Return the answer to a request that failed."""
    found, headers = as_service_error(error), dict[str, str]()
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.seconds)))
    if found.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(found), found.status, headers)


def _invalid(error: RequestValidationError) -> ServiceError:
    """Name the fields that are invalid and why, without their values."""
    problems, params = list[str](), list[str]()
    for found in error.errors()[:_MAX_PROBLEMS]:
        place = ".".join(str(part) for part in found["loc"] if part != "body")
        params.append(place)
        problems.append(f"{place or 'the body'}: {found['msg']}")
    return ServiceError(400, "; ".join(problems) + ".", "invalid_value", params[0] or None)


def add_handlers(app: FastAPI) -> None:
    """Answer all errors in one format."""

    async def handle(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError):
            error = _invalid(error)
        elif isinstance(error, HTTPException):
            error = ServiceError(error.status_code, f"{error.detail}.")
        return error_response(error)

    for kind in (RequestValidationError, HTTPException, GiddError, Exception):
        app.add_exception_handler(kind, handle)
