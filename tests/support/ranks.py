"""Run a function on several ranks: real processes that open a world as under `torchrun`."""

import multiprocessing
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gidd.training.world import World

CONTEXT = multiprocessing.get_context("forkserver")
# processes are forked from one that has imported these (those that are installed), so that each
# starts in milliseconds
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.fsdp", "gidd.runs.fit", "gidd.planning.step_trace"]
    + ["transformers.models.llama.modeling_llama"]
)


def run_ranks(
    function: Callable[..., Any], size: int, *args: Any, timeout: float = 600
) -> list[Any]:
    """Return the results of `function(*args)` on all ranks; it calls `open_world` itself.

    The function must be defined at the top level of a module. If it raises on a rank, or a rank
    dies or hangs, all are killed and an `AssertionError` describes what happened on each.
    """
    processes, pipes = start_ranks(function, size, *args)
    try:
        outcomes = _outcomes(pipes, timeout)
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.join(5)
            process.kill()
            process.join()
            pipe.close()
    failed = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(outcomes) if not good]
    assert not failed, "\n".join(failed)
    return [value for _, value in outcomes]


def wait_for_all_ranks(world: "World") -> None:
    """Block until all ranks have called this."""
    import torch.distributed as dist

    dist.barrier(group=world.host_group)


def start_ranks(
    function: Callable[..., Any], size: int, *args: Any
) -> tuple[list[ForkServerProcess], list[Connection]]:
    """Start processes that run `function(*args)`; return them and the pipes of their results."""
    port = _free_port()
    processes, pipes = [], []
    for rank in range(size):
        ours, theirs = CONTEXT.Pipe(duplex=False)
        arguments = (function, args, rank, size, port, theirs)
        processes.append(CONTEXT.Process(target=_rank, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    return processes, pipes


def _outcomes(pipes: list[Connection], timeout: float) -> list[tuple[bool, Any]]:
    """Return for each rank whether it succeeded, and its result or what happened instead."""
    outcomes: list[tuple[bool, Any]] = [(False, f"hangs after {timeout} s")] * len(pipes)
    waiting, end = list(range(len(pipes))), time.monotonic() + timeout
    while waiting and (left := end - time.monotonic()) > 0:
        ready = wait([pipes[rank] for rank in waiting], left)
        for rank in [rank for rank in waiting if pipes[rank] in ready]:
            waiting.remove(rank)
            try:
                outcomes[rank] = pickle.loads(pipes[rank].recv_bytes())
            except EOFError:
                outcomes[rank] = False, "died without a result"
            if not outcomes[rank][0]:
                end = min(end, time.monotonic() + 10)  # the others may wait for this one forever
    return outcomes


def _rank(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    rank: int,
    size: int,
    port: int,
    pipe: Connection,
) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    try:
        outcome = True, function(*args)
    except BaseException:
        outcome = False, traceback.format_exc()
    pipe.send_bytes(pickle.dumps(outcome))
    pipe.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
