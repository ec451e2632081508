"""How long the collectives of a step take, by their bytes and the slowest link they meet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from gidd.planning.memory import Collective
from gidd.training.config import RunConfig


@final
@dataclass(frozen=True, kw_only=True)
class ClusterNetwork:
    """Ranks in machines, neighbours together."""

    ranks: int
    ranks_per_machine: int
    between: float
    """Bytes per second that a device receives from other machines."""

    within: float | None
    """Bytes per second that a device receives from its own machine."""

    hop_seconds: float
    """Delay of passing something on to the next machine."""


@final
@dataclass(frozen=True, kw_only=True)
class Flow:
    """All collectives of one kind in one step."""

    collective: Collective
    machines: int
    """That each call spans."""

    between_bytes: float
    """That a device receives from other machines."""

    seconds: float
    """If nothing else happened meanwhile."""


@final
@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Communication of one step."""

    flows: tuple[Flow, ...]
    seconds: float
    """Of all flows, one after the other; computation can go on meanwhile."""


def traffic(
    run: RunConfig, collectives: tuple[Collective, ...], network: ClusterNetwork
) -> Traffic | None:
    """Communication of a step, from that of a micro-batch; None if links are not known."""
    if network.within is None:
        return None
    flows: list[Flow] = []
    for c in collectives:
        # sums over copies of the model wait for the last micro-batch
        times = 1 if c.kind == "all-reduce" else run.train.accumulate
        whole = c._replace(calls=c.calls * times, bytes=c.bytes * times)
        flows.append(_flow(whole, network, network.within))
    return Traffic(flows=tuple(flows), seconds=sum(flow.seconds for flow in flows))


def _flow(collective: Collective, network: ClusterNetwork, within: float) -> Flow:
    """Rings that enter a machine over all its adapters at once.

    Gathering and dividing: all bytes enter every machine once, shared among its devices, and are
    handed round inside. Summing over copies of the model: twice the bytes of a part, once to add
    and once to tell; devices that hold the same part of the model share the way out.
    """
    ranks, per_machine = collective.ranks, min(network.ranks_per_machine, network.ranks)
    rounds = 1
    if collective.kind == "all-reduce":
        rounds, copies = 2, ranks
        inside = max(1, per_machine * copies // network.ranks)  # members in one machine
        machines = -(-copies // inside)
        hops = 2 * math.ceil(math.log2(machines)) if machines > 1 else 0  # up a tree and down
    else:
        inside = min(ranks, per_machine)
        machines = -(-ranks // inside)
        hops = machines - 1  # around a ring
    entering = rounds * collective.bytes * (machines - 1) / machines / inside
    handed = rounds * collective.bytes * (inside - 1) / inside
    moving = max(entering / network.between, handed / within)
    return Flow(
        collective=collective,
        machines=machines,
        between_bytes=entering,
        seconds=moving + collective.calls * hops * network.hop_seconds,
    )
