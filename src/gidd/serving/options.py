"""Options of a service; without torch, so that the command line reports mistakes at once."""

from dataclasses import dataclass
from typing import Annotated

from gidd.common.config.allowed import POSITIVE, integer


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Limits of the requests to one model."""

    max_requests: Annotated[int, integer(1, 10_000)] = 64
    """Requests that are open at once, waiting ones included; further ones are refused. Of several
    API keys, one may have as many as places are free."""
    max_cost: Annotated[int, integer(1)] = 1_000_000
    """Largest cost of a request: forward passes times tokens, of all its samples and blocks."""
    seconds: Annotated[float, POSITIVE] = 120.0
    """Time after which a request fails."""
    row_buckets: tuple[int, ...] = ()
    """Smaller batch sizes, for when fewer sequences are sampled. Samples then depend on the load,
    by rounding, as they do on the device."""


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Limits of all requests."""

    requests_per_minute: Annotated[float, POSITIVE] | None = None
    """Requests that each API key may send in a minute."""
    cost_per_minute: Annotated[float, POSITIVE] | None = None
    """Forward passes times tokens that each API key may use in a minute."""
    max_bytes: Annotated[int, integer(1)] = 1_000_000
    """Largest body of a request."""
    body_seconds: Annotated[float, POSITIVE] = 30.0
    """Time in which a client must send the head of a request, then its body, and read answers."""
    allowed_hosts: tuple[str, ...] = ()
    """Names of this machine for clients, besides localhost, --host and IP addresses; * allows all.
    Web pages may give it other names (DNS rebinding)."""
