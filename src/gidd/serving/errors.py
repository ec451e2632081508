"""Errors of a service, as OpenAI's clients expect them; never a traceback or the client's input."""

import logging
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from gidd.errors import GiddError, LimitReached, Overloaded
from gidd.serving.protocol import FIELD_NAMES
from gidd.serving.worker import Cancelled

_log = logging.getLogger("gidd.serving")

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
CLIENT_GONE = 499
_MAX_PROBLEMS = 5
_PROBLEMS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "finite_number": "must be finite",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer of fewer digits",
    "int_type": "must be an integer",
    "json_invalid": "must be JSON",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "is required",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "refused": "{message}",
    "string_too_long": "must have at most {max_length:,} characters",
    "string_too_short": "must not be empty",
    "string_type": "must be a text",
    "string_unicode": "must be valid Unicode",
    "too_long": "must have at most {max_length:,} items",
    "too_short": "must not be empty",
    "tuple_type": "must be [start, stop]",
}
"""What is wrong, by the type of pydantic's error."""


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
        return ServiceError(CLIENT_GONE, str(error))
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
    service_error, headers = as_service_error(error), dict[str, str]()
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.seconds)))
    if service_error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(service_error), service_error.status, headers)


def invalid_request(error: RequestValidationError) -> ServiceError:
    """Name the fields that are invalid and why, without their values."""
    problems, params = list[str](), list[str]()
    for detail in error.errors()[:_MAX_PROBLEMS]:
        context: dict[str, Any] = detail.get("ctx", {})
        # without the members of unions: names of fields and numbers of items
        loc = () if detail["type"] == "json_invalid" else detail["loc"]
        names = [part for part in loc if isinstance(part, int) or part in FIELD_NAMES]
        place = ".".join(map(str, [*names, *filter(None, [context.get("field")])]))
        problem = _PROBLEMS.get(detail["type"], "is invalid").format(
            **context, message=detail["msg"]
        )
        params.append(place)
        problems.append(f"{place or 'the body'}: {problem}")
    message = "; ".join(problems)
    message += "" if message.endswith(("?", ".")) else "."
    return ServiceError(400, message, "invalid_value", params[0] or None)


def _http_error(error: HTTPException, app: FastAPI) -> ServiceError:
    """Name the routes to a client that asked for another one; the rest is a body without JSON."""
    if error.status_code not in (404, 405):
        return ServiceError(error.status_code, "the body must be JSON.")
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    listed = (f"{next(iter(route.methods or ()))} {route.path}" for route in routes)
    return ServiceError(error.status_code, f"the request must be one of {', '.join(listed)}.")


def add_handlers(app: FastAPI) -> None:
    """Answer all errors in one format."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError):
            error = invalid_request(error)
        elif isinstance(error, HTTPException):
            error = _http_error(error, request.app)
        return error_response(error)

    for kind in (RequestValidationError, HTTPException, GiddError, Exception):
        app.add_exception_handler(kind, handle)
