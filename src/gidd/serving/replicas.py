"""Replicas of a service on a Ray cluster: Ray Serve routes requests, and scales."""

import math
import signal
import threading
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from gidd.common.actors import ray_session
from gidd.common.messages import print_message
from gidd.common.optional import optional_package
from gidd.errors import ConfigError

_TARGET_WAIT = 5.0  # seconds of waiting work of a replica, above which another one is started
_METRIC = "expected_wait"


def wanted_replicas(waits: list[float], least: int, most: int) -> int:
    """Return the number of replicas for the expected waits of the present ones, in seconds."""
    return min(most, max(least, math.ceil(sum(waits) / _TARGET_WAIT)))


def _policy(context: Any) -> tuple[int, dict[str, Any]]:
    waits = context.aggregated_metrics.get(_METRIC, {}).values()
    ends = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return wanted_replicas(list(waits), *ends), {}


def replica_application(
    build: Callable[[], FastAPI],
    *,
    replicas: int,
    max_replicas: int | None,
    max_requests: int,
    seconds: float,
    num_gpus: float = 0,
) -> Any:
    """Return an application of Ray Serve; `build` makes the service of a replica, in its process.

    A replica that ends has `seconds` to finish what it accepted.
    """
    serve = optional_package("ray.serve", "replicas")

    class Replica:
        """Tells the autoscaler how much work waits."""

        def record_autoscaling_stats(self) -> dict[str, float]:
            return {_METRIC: _SERVICES[-1].expected_wait if _SERVICES else 0.0}

    def build_app() -> FastAPI:
        app = build()
        _SERVICES.append(app.state.service)
        return app

    count: dict[str, Any] = {"num_replicas": replicas}
    if max_replicas is not None:
        count = {
            "autoscaling_config": {
                "min_replicas": replicas,
                "max_replicas": max_replicas,
                "look_back_period_s": 20,  # replicas report every 10 seconds
                "upscale_delay_s": 5,
                "policy": {"policy_function": _policy},
            }
        }
    deployment = serve.deployment(
        name="gidd",
        max_ongoing_requests=max_requests + 8,  # a replica refuses further ones itself
        graceful_shutdown_timeout_s=seconds,
        ray_actor_options={"num_gpus": num_gpus} if num_gpus else {},
        **count,
    )
    return deployment(serve.ingress(build_app)(Replica)).bind()


def serve_replicas(application: Any, *, host: str, port: int, seconds: float) -> None:
    """Serve an application until SIGTERM or SIGINT; a request fails after `seconds`."""
    serve = optional_package("ray.serve", "replicas")
    with ray_session(None):
        try:
            try:
                serve.start(http_options={"host": host, "port": port, "request_timeout_s": seconds})
                serve.run(application, route_prefix="/")
            except (RuntimeError, TimeoutError) as error:
                raise ConfigError(
                    f"Ray Serve must start in time, which failed: {error} Free memory and "
                    "processors or use fewer --replicas, and try again."
                ) from error
            stop = threading.Event()
            for signum in (signal.SIGTERM, signal.SIGINT):  # Ray has set its own
                signal.signal(signum, lambda *_: stop.set())  # pyright: ignore
            print_message(f"serving replicas at http://{host}:{port} (Ctrl+C ends it).")
            stop.wait()
        finally:
            serve.shutdown()


_SERVICES: list[Any] = []  # the service of this process, if it is a replica
