"""Sampling of requests from the first step to the last, by a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch

from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.network import DenoisingNetwork
from gidd.sampling.request import Request, Sample
from gidd.sampling.session import Session
from gidd.sampling.ticket import Event

OnStep = Callable[[Sequence[Event]], None]
"""Called after each step of a session, with an event for each request that made a step."""


@final
class Engine:
    """A network, its schedule, and the shape of a forward pass.

    Every forward pass has exactly `rows_per_call` sequences, padded to one length; an incomplete
    batch is padded with copies. The last bits of a matrix product depend on its shape, so the fixed
    shape makes a sequence bit-identical alone and in a batch. `rows_per_call=1` wastes nothing and
    is as fast as any on a CPU. On a GPU choose the batch size that saturates it; then a row must
    also have the same bits at every place in the batch. Kernels usually guarantee that for one
    shape, and the tests check it.

    An engine has no state: it may be used from several threads at once. Each call of `sample` has a
    session of its own.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        *,
        rows_per_call: int = 1,
        lengths: int = 1,
        max_length: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if rows_per_call < 1:
            raise ConfigError(
                f"engine.rows_per_call must be at least 1, got {rows_per_call}. It is the number "
                "of sequences in one forward pass."
            )
        self.network = network
        self.schedule = schedule
        self.rows_per_call = rows_per_call
        self.lengths = lengths
        self.max_length = max_length
        self.device = torch.device(device)

    def session(self) -> Session:
        """Start a session without requests."""
        return Session(
            self.network,
            self.schedule,
            rows=self.rows_per_call,
            lengths=self.lengths,
            max_length=self.max_length,
            device=self.device,
        )

    def sample(
        self,
        requests: Sequence[Request],
        *,
        on_step: OnStep | None = None,
        record_frames: bool = False,
    ) -> list[Sample]:
        """Sample all requests; the result of each does not depend on the others.

        The first request that fails raises its error. Use a session to go on with the others.

        Args:
            requests: Sequences of any lengths, with plans of any lengths.
            on_step: Called after each step of the session.
            record_frames: Record state and predictions before every step. Costs a pass of the head
                per step, and a forward pass where the step would have needed none.
        """
        session = self.session()
        tickets = [session.submit(request, record_frames=record_frames) for request in requests]
        while session.pending:
            events = session.step()
            for event in events:
                if event.error is not None:
                    raise event.error
            if on_step is not None:
                on_step(events)
        return [ticket.sample for ticket in tickets if ticket.sample is not None]
