"""What reading and preparing the data of a run costs, and which storage can serve it."""

import math
from dataclasses import dataclass
from typing import Any

from gidd.data.loading.order import BLOCK_BYTES, LANE_SAMPLES
from gidd.planning.hardware import Assumptions
from gidd.planning.step_trace import RankBatch

_READS_PER_BLOCK = 2  # tokens and index


@dataclass(frozen=True)
class Store:
    """What a kind of storage can serve."""

    name: str
    reads_per_second: float
    bytes_per_second: float
    capacity: float = math.inf  # bytes
    is_per_machine: bool = False
    """Whether each machine has one, with a copy of all data."""


STORES = (
    Store("local disk", 500e3, 5e9, capacity=7.68e12, is_per_machine=True),  # NVMe, PCIe 4.0
    Store("NFS", 10e3, 2e9),  # one server with 25 Gb/s
    Store("object storage", 5500, math.inf),  # Amazon S3: reads per second and prefix
)
"""Kinds of storage: data sheets for local disk and S3, and a guess for a single NFS server."""


def data_cost(
    speed: dict[str, Any], length: int, batch: RankBatch, ranks: int, assumptions: Assumptions
) -> dict[str, Any]:
    """Return reads of both orders, the fraction of each store that they use, and the preparation.

    Full shuffle: one read per sample. Blocks: all ranks with samples of the same lane read its
    blocks; of ranks on the same machine, one reads them from the store.
    """
    readers = min(ranks, -(-LANE_SAMPLES // batch.samples))
    copies = -(-readers // assumptions.ranks_per_machine)
    rate = speed["data_bytes_per_second"]
    samples, blocks = speed["tokens_per_second"] / length, _READS_PER_BLOCK * rate / BLOCK_BYTES
    reading = {
        "full shuffle": _reads(samples, rate, 1, 1, ranks),
        "blocks": _reads(blocks, rate, copies, readers, ranks),
    }
    machines = -(-ranks // assumptions.ranks_per_machine)
    for reads in reading.values():
        for store in STORES:
            stores = machines if store.is_per_machine else 1
            fractions = {
                "reads": reads["reads_per_second"] / store.reads_per_second / stores,
                "bandwidth": reads["bytes_per_second"] / store.bytes_per_second / stores,
                "capacity": speed["data_bytes"] / store.capacity,
            }
            fraction, limit = max(zip(fractions.values(), fractions, strict=True))
            reads[store.name] = {"limit": limit, "fraction": fraction}
    text_bytes = speed["tokens"] * assumptions.text_bytes_per_token
    hours = text_bytes / (assumptions.prepare_mb_per_second * 1e6) / 3600
    preparation = {
        "text_bytes": text_bytes,
        "core_hours": hours,
        "machine_hours": hours / assumptions.cores_per_machine,
    }
    return {"reading": reading, "preparation": preparation}


def _reads(reads: float, rate: float, copies: int, readers: int, ranks: int) -> dict[str, Any]:
    return {
        "reads_per_second": copies * reads,
        "bytes_per_second": copies * rate,
        "rank_reads_per_second": readers * reads / ranks,
        "rank_bytes_per_second": readers * rate / ranks,
    }
