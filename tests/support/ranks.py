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
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
# processes are forked from one that has imported these, so that each starts in milliseconds
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.fsdp", "gidd.training.checkpoints.checkpoints"]
)


def run_ranks(
    function: Callable[..., Any], size: int, *args: Any, timeout: float = 60
) -> list[Any]:
    """What `function(*args)` returned on each rank; it calls `open_world` itself.

    The function stands at the top level of a module. If it raises on any rank, or a rank ends or
    hangs, all are ended and an `AssertionError` tells what each of those did.
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


def start_ranks(
    function: Callable[..., Any], size: int, *args: Any
) -> tuple[list[ForkServerProcess], list[Connection]]:
    """Processes that begin to run `function(*args)`, and where each will tell how it ended."""
    port = _free_port()
    processes, pipes = [], []
    for rank in range(size):
        ours, theirs = CONTEXT.Pipe(duplex=False)
        words = (function, args, rank, size, port, theirs)
        processes.append(CONTEXT.Process(target=_rank, args=words, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    return processes, pipes


def _outcomes(pipes: list[Connection], timeout: float) -> list[tuple[bool, Any]]:
    """Whether each rank ended well, and its value or what happened instead."""
    outcomes: list[tuple[bool, Any]] = [(False, f"hangs after {timeout} s")] * len(pipes)
    waiting, end = list(range(len(pipes))), time.monotonic() + timeout
    while waiting and (left := end - time.monotonic()) > 0:
        ready = wait([pipes[rank] for rank in waiting], left)
        for rank in [rank for rank in waiting if pipes[rank] in ready]:
            waiting.remove(rank)
            try:
                outcomes[rank] = pickle.loads(pipes[rank].recv_bytes())
            except EOFError:
                outcomes[rank] = False, "ended without a word"
            if not outcomes[rank][0]:
                end = min(end, time.monotonic() + 10)  # others may wait for this one in vain
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
