"""Work on many actors of a Ray cluster, on one machine or many."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Annotated, Any

from gidd import errors
from gidd.common.config.allowed import integer, number
from gidd.common.optional import optional_package
from gidd.errors import ConfigError, DataError, GiddError

Worker = Callable[..., Callable[[Any], Any]]
CLUSTERS_OF_RAY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable of Ray, on every system: whether other machines may join, and so where it listens."""

_MOST_BLOCKS = 10_000  # tasks that Ray Data schedules; each has one or more items


_GPUS = number(lambda n: 0 <= n < 1e6, "of at least 0", "0 runs on the CPU.")


@dataclass(frozen=True, kw_only=True)
class ActorOptions:
    """Actors on a Ray cluster."""

    address: str | None = None
    """"auto", "ray://HOST:PORT" or "HOST:PORT". None: $RAY_ADDRESS, else start Ray locally."""
    num_actors: Annotated[int, integer(1)] | None = None
    """Number of actors, each with its own copy of the model. None: as many as the cluster has
    resources for."""
    num_cpus: Annotated[float, number(lambda n: 0 < n < 1e6, "above 0")] = 1
    """CPU cores per actor."""
    num_gpus: Annotated[float, _GPUS] = 0
    """GPUs per actor; below 1, several actors share one."""

    def actors_on(self, resources: Mapping[str, float]) -> int:
        """Return the number of actors to start on a cluster with these resources."""
        needed = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        fit = min(int(resources.get(name, 0) / n) for name, n in needed.items() if n)
        can_grow = self.address or os.environ.get("RAY_ADDRESS")  # a cluster may autoscale
        if not fit and not (can_grow and self.num_actors):
            available = ", ".join(f"{resources.get(name, 0):g} {name}s" for name in needed)
            raise ConfigError(
                f"ray.num_cpus {self.num_cpus:g} and ray.num_gpus {self.num_gpus:g} per actor must "
                f"be available on the Ray cluster, which has {available}, unless it "
                "grows on demand: "
                "set ray.num_actors."
            )
        return self.num_actors or fit


@contextmanager
def ray_session(address: str | None) -> Generator[ModuleType]:
    """Connect to a Ray cluster, or start Ray here; a session that is open is used and kept.

    Ray that is started here listens on 127.0.0.1, if nothing has imported it before.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        os.environ.setdefault(CLUSTERS_OF_RAY, "0")
    ray = optional_package("ray", "cluster")
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise ConfigError(
            f"ray.address must be the address of a running Ray cluster, got {address!r}: {error} "
            "Omit it to start Ray on this machine."
        ) from error
    except Exception as error:  # Ray raises errors of no common type
        raise ConfigError(
            f"Ray must start or connect in time, which failed: {error} Free memory and processors, "
            "and try again."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def map_on_ray(
    worker: Worker, arguments: tuple[Any, ...], items: Sequence[Any], options: ActorOptions
) -> Generator[tuple[int, Any]]:
    """Yield the position and the result of each item, in the order in which actors finish them.

    `worker(*arguments)`, of the top level of a module, makes a function of an item once per actor.
    Items and results are what JSON can hold. An item is computed again if its actor dies, so the
    result must not depend on the actor. A `GiddError` of an actor is raised here.
    """
    if not items:
        return
    optional_package("pandas", "cluster")  # Ray Data fails late without it
    with ray_session(options.address) as ray:
        ray_data = optional_package("ray.data", "cluster")
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        # the caller shows progress; Ray Data warns that it shows none
        logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
        ray_data.DataContext.get_current().enable_progress_bars = False
        rows = [{"position": i, "item": json.dumps(item)} for i, item in enumerate(items)]
        blocks = ray_data.from_items(rows, override_num_blocks=min(len(rows), _MOST_BLOCKS))
        results = blocks.map_batches(
            _Actor,
            fn_constructor_args=(worker, arguments),
            batch_size=1,
            compute=ray_data.ActorPoolStrategy(size=options.actors_on(ray.cluster_resources())),
            num_cpus=options.num_cpus,
            num_gpus=options.num_gpus or None,
        )
        for row in results.iter_rows():
            if row["error"]:
                raise getattr(errors, row["error"])(row["result"])
            yield int(row["position"]), json.loads(row["result"])


class _Actor:
    """Calls a worker on batches of one item; its errors are results, so that Ray does not retry."""

    def __init__(self, worker: Worker, arguments: tuple[Any, ...]) -> None:
        self._make = cache(lambda: worker(*arguments))

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        (item,) = batch["item"]
        try:
            result, error = json.dumps(self._make()(json.loads(item))), ""
        except (GiddError, OSError) as failure:
            names = (kind.__name__ for kind in type(failure).__mro__)
            error = next((name for name in names if hasattr(errors, name)), DataError.__name__)
            result = str(failure)
        return {"position": list(batch["position"]), "result": [result], "error": [error]}
