"""A batch of sequences of one shape, a row for each, and one denoising step of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from gidd.common.devices import upload
from gidd.diffusion.schedule import MixingSchedule, Times
from gidd.errors import CheckpointError, ConfigError
from gidd.sampling.cache import ContextRows, KeyValueCache
from gidd.sampling.constrained import Constrained
from gidd.sampling.guidance import guided
from gidd.sampling.network import UNUSABLE_PREDICTIONS, DenoisingNetwork
from gidd.sampling.plan import Step
from gidd.sampling.predict import NetworkPredict, Predict, Rows, processed
from gidd.sampling.progress import Progress, Shape
from gidd.sampling.request import Edit, Frame, Request
from gidd.sampling.state import State, start, time_dtype

if TYPE_CHECKING:
    from jaxtyping import Int
    from numpy.typing import NDArray


class Batch:
    """The rows of a shape, their state, and their steps.

    Every forward pass has `shape.rows` sequences, or the smallest of `row_buckets` that is enough,
    padded with copies. Sequences with different steps share it; each step function is called once.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        shape: Shape,
        device: torch.device,
        row_buckets: Sequence[int] = (),
        cache: KeyValueCache | None = None,
        max_length: int | None = None,
    ) -> None:
        self._network, self._schedule, self._device = network, schedule, device
        self._shape, self._cache, self._max_length = shape, cache, max_length
        self._context = None
        if cache is not None and shape.capacity is not None:
            sizes = shape.rows, shape.capacity, shape.length
            self._context = cache.context(shape, *sizes)
        self._row_buckets = sorted({*(n for n in row_buckets if n < shape.rows), shape.rows})
        self._members: list[Progress | None] = [None] * shape.rows
        self._parked: dict[Progress, tuple[State, NDArray[np.int64]]] = {}
        self._state: State | None = None
        self._tokens = np.zeros((shape.rows, shape.length), dtype=np.int64)
        """The tokens of the state, on the host."""

    @property
    def num_active(self) -> int:
        """Number of sequences with a row."""
        return sum(member is not None for member in self._members)

    def num_rows(self, num_active: int) -> int:
        """Return the number of rows of a forward pass for `num_active` sequences."""
        return next(rows for rows in self._row_buckets if rows >= num_active)

    def park(self, progress: Progress) -> None:
        """Free the row of a sequence, and keep its state until it joins again."""
        row = self._members.index(progress)
        assert self._state is not None
        state = self._state.rows(self._integers([row]))
        self._parked[progress] = state, self._tokens[row].copy()
        self._members[row] = None

    def leave(self, progress: Progress) -> None:
        """Free the row of a sequence that is done."""
        self._parked.pop(progress, None)
        if progress in self._members:
            self._members[self._members.index(progress)] = None

    def join(self, joining: Sequence[Progress]) -> None:
        """Give rows to sequences. Sequences that fail or have no step to make are done."""
        free = (row for row, member in enumerate(self._members) if member is None)
        rows = dict(zip(joining, free, strict=False))
        joining = [progress for progress in joining if self._load_context(rows[progress], progress)]
        parked = [progress for progress in joining if progress in self._parked]
        new = [progress for progress in joining if progress not in self._parked]
        for progress in parked:
            row = rows[progress]
            state, self._tokens[row] = self._parked.pop(progress)
            assert self._state is not None
            self._state.put(self._integers([row]), state)
            self._members[row] = progress
        if new:
            self._start_or_fail([rows[progress] for progress in new], new)

    @torch.no_grad()
    def _load_context(self, row: int, progress: Progress) -> bool:
        """Give a row the finished blocks before a sequence; return False if that fails."""
        if self._context is None or self._cache is None:
            return True
        request, settings = progress.request, self._shape.settings
        start = request.window_start(self._max_length)
        try:
            before = cast("tuple[int, ...]", request.tokens[start : request.row_start])
            length = request.block_length or 0
            self._cache.load(self._context, row, before, length, settings)
        except BaseException as error:
            progress.fail(error)
        return not progress.is_done

    @torch.no_grad()
    def _start_or_fail(self, rows: list[int], members: list[Progress]) -> None:
        """Start sequences; after an error one by one, so that only the failing sequences end."""
        try:
            self._start(rows, members)
        except BaseException as error:
            if len(rows) == 1:
                members[0].fail(error)
            else:
                for row, progress in zip(rows, members, strict=True):
                    self._start_or_fail([row], [progress])
            return
        for row, progress in zip(rows, members, strict=True):
            if all(progress.request.are_protected) or not progress.num_steps:
                progress.finish(self._tokens_of(row, progress))
            else:
                self._members[row] = progress

    def _start(self, rows: list[int], members: list[Progress]) -> None:
        """Put sequences before their first step into some rows."""
        shape = len(members), self._shape.length
        tokens, protected = np.zeros(shape, np.int64), np.ones(shape, np.bool_)
        valid = np.zeros(shape, np.bool_)
        requests = [progress.request for progress in members]
        for k, request in enumerate(requests):
            open_tokens = request.tokens[(first := request.row_start) :]
            tokens[k, : len(open_tokens)] = [-1 if v is None else v for v in open_tokens]
            protected[k, : len(open_tokens)] = request.are_protected[first:]
            valid[k, : len(open_tokens)] = True
        blank = tokens < 0
        state = start(
            self._schedule,
            torch.from_numpy(tokens).to(self._device),
            torch.from_numpy(protected).to(self._device),
            torch.from_numpy(blank).to(self._device) if blank.any() else None,
            torch.from_numpy(valid).to(self._device),
            self._integers([request.seed for request in requests]),
            self._integers([request.sample_index for request in requests]),
            self._integers([request.row_start for request in requests]),
        )
        if self._state is None:
            # rows without a sequence hold copies, which no step reads
            self._state = state.rows(self._integers([0] * self._shape.rows))
        self._state.put(self._integers(rows), state)
        self._tokens[rows] = state.tokens.cpu().numpy()

    def _tokens_of(self, row: int, progress: Progress) -> tuple[int, ...]:
        return self._whole(self._tokens[row].tolist(), progress.request)

    @staticmethod
    def _whole(row: Sequence[int], request: Request) -> tuple[int, ...]:
        """Return all tokens of a request, whose finished blocks are not in its row."""
        start = request.row_start
        before = cast("tuple[int, ...]", request.tokens[:start])
        return (*before, *row[: len(request.tokens) - start])

    @torch.no_grad()
    def step(self, rows: list[int] | None = None) -> list[Progress]:
        """Make one step of all sequences, or of some rows; return the sequences.

        If it fails, the rows are stepped one by one, so that only those that fail end.
        """
        if rows is None:
            rows = [row for row, member in enumerate(self._members) if member is not None]
        members = [self._member(row) for row in rows]
        for progress in members:
            progress.is_stepping = True
        assert self._state is not None
        try:
            num_rows = self.num_rows(len(rows))
            parts = self._state, rows, members, num_rows
            batch = _Rows(self._network, self._schedule, *parts, self._context)
            results = list[_Result]()
            for step, indices in batch.steps.items():
                results.append(batch.run_step(step, indices))
            results = _copy_to_host(results)
        except BaseException as error:
            if len(rows) > 1:
                return [progress for row in rows for progress in self.step([row])]
            members[0].fail(error)
            self._members[rows[0]] = None
            return members
        for result in results:
            self._apply(result)
        return members

    def _apply(self, result: _Result) -> None:
        """Write the result of a step, on the device and on the host."""
        assert self._state is not None
        is_full = result.rows == list(range(self._shape.rows))
        index = slice(None) if is_full else self._integers(result.rows)
        for name, values in result.stored.items():
            getattr(self._state, name)[index] = values
        edits, new = self._edits(result), result.numbers["end"]
        self._tokens[result.rows] = new
        is_known = np.all((new >= 0) & (new < self._schedule.vocab.size), axis=1)
        values = tuple(value.cpu() for value in result.values)
        best = self._best(result)
        for k, (row, frame) in enumerate(zip(result.rows, result.frames, strict=True)):
            progress = self._member(row)
            has_converged, was_read, is_finite = result.numbers["flags"][k].tolist()
            if not (is_finite and is_known[k]):
                unknown = ConfigError(
                    f"the step {progress.next_step.name} must return ids of the vocabulary at "
                    "positions that may change, got other numbers. Correct its function."
                )
                progress.fail(CheckpointError(UNUSABLE_PREDICTIONS) if is_known[k] else unknown)
                self._members[row] = None
                continue
            length = len(progress.request.tokens) - progress.request.row_start
            progress.advance(
                edits.get(k, []),
                frame,
                tuple(value[k, :length] for value in values),
                was_read=bool(was_read),
                ends_phase=bool(has_converged),
            )
            if progress.is_watched:
                progress.tokens = self._tokens_of(row, progress)
                progress.best = self._whole(best[k], progress.request) if k in best else ()
            if progress.steps_done == progress.num_steps:
                progress.finish(self._tokens_of(row, progress))
                self._members[row] = None

    def _best(self, result: _Result) -> dict[int, tuple[int, ...]]:
        """Return the best tokens of the rows that have any, if somebody watches."""
        is_watched = any(self._member(row).is_watched for row in result.rows)
        if "best" not in result.stored or not is_watched:
            return {}
        fields = (result.stored[name].tolist() for name in ("best", "best_score"))
        pairs = zip(*fields, strict=True)
        return {k: tuple(best) for k, (best, score) in enumerate(pairs) if score >= 0}

    def _edits(self, result: _Result) -> dict[int, list[Edit]]:
        """Return the edits of each row: tokens that the step changed, then restored tokens."""
        edits: dict[int, list[Edit]] = {}
        old, numbers = self._tokens[result.rows], result.numbers
        probability = numbers["bits"].astype(np.int32).view(np.float32)
        for new in (numbers["tokens"], numbers["end"]):
            for k, position in np.argwhere(old != new).tolist():
                progress = self._member(result.rows[k])
                if not progress.record_edits:
                    continue
                step, p = progress.next_step, float(probability[k, position])
                tokens = int(old[k, position]), int(new[k, position])
                place = progress.request.row_start + position
                edit = Edit(progress.steps_done, step.name, step.s, place, *tokens, p)
                edits.setdefault(k, []).append(edit)
            old, probability = new, np.zeros_like(probability)
        return edits

    def _member(self, row: int) -> Progress:
        progress = self._members[row]
        assert progress is not None, "only rows with a sequence are stepped"
        return progress

    def _integers(self, values: list[int]) -> Int[Tensor, " K"]:
        return upload(values, torch.int64, self._device)


class _Result(NamedTuple):
    """The result of a step of K sequences; nothing is written to the state yet."""

    rows: list[int]
    """Rows of the batch."""
    stored: dict[str, Tensor]
    """Fields of the state after the step, and what is restored at the end of a phase."""
    numbers: dict[str, Any]
    """What the host reads, tensors of the device and after `_copy_to_host` arrays:

    - `tokens` after the step, and those at its `end`, where the best may be restored, [K, L];
    - the `bits` of x_theta of the tokens that the step drew, [K, L];
    - `flags` [K, 3]: whether the step has converged, x_theta was read, and all of it was finite.
    """
    frames: list[Frame | None]
    values: tuple[Tensor, ...]
    """`State.values`."""


def _copy_to_host(results: list[_Result]) -> list[_Result]:
    """Copy the numbers of all steps to the host, with one synchronization."""
    tensors = [tensor for result in results for tensor in result.numbers.values()]
    numbers = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    parts = iter(numbers.split([tensor.numel() for tensor in tensors]))
    return [
        result._replace(
            numbers={k: next(parts).view(t.shape).numpy() for k, t in result.numbers.items()}
        )
        for result in results
    ]


class _Rows:
    """The sequences of one forward pass; copies of the first pad it to a fixed number of rows."""

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        state: State,
        rows: list[int],
        members: list[Progress],
        num_rows: int,
        context: ContextRows | None = None,
    ) -> None:
        """Take some rows from the state of a batch, and what is before them."""
        self._schedule, self._rows, self._members = schedule, rows, members
        self.steps: dict[Step, list[int]] = {}
        """The members that make each step."""
        for k, progress in enumerate(members):
            self.steps.setdefault(progress.next_step.step, []).append(k)
        num_copies, device = num_rows - len(rows), state.tokens.device
        padded = members + members[:1] * num_copies
        planned = [progress.next_step for progress in padded]
        ends = [[step.t for step in planned], [step.s for step in planned]]
        self._t, self._s = upload(ends, time_dtype(device), device)
        places = rows + rows[:1] * num_copies
        integers = [places, [member.request.first_step + member.steps_done for member in padded]]
        index, step_index = upload(integers, torch.int64, device)
        before = None if context is None else context.blocks
        if places == list(range(len(state.seed))):
            part = state._replace(tokens=state.tokens.clone())  # frames keep it
        else:
            part, before = state.rows(index), before and before.rows(index)
        self._state = part._replace(step_index=step_index)
        requests = [progress.request for progress in padded]
        sizes = schedule.vocab.size, num_rows, device
        self._network = NetworkPredict(network, *sizes, before)
        self._predict: Predict = self._network
        guidances = [request.guidance for request in requests if request.guidance is not None]
        if requests[0].is_guided:  # and so are the others
            self._predict = guided(self._predict, guidances)
        if any(request.processors for request in requests):
            self._predict = processed(self._predict, [r.processors for r in requests], requests)
        self._constrained = None
        if any(request.constraints for request in requests):
            self._constrained = Constrained(self._predict, schedule, requests)
            self._predict = self._constrained

    def run_step(self, step: Step, indices: list[int]) -> _Result:
        """Call a step with the sequences that make it.

        It gets all of them, whoever makes it: its bits must not depend on how many others do.
        """
        state, t, s, num = self._state, self._t, self._s, len(indices)
        members = [self._members[k] for k in indices]
        index = upload(indices, torch.int64, t.device)
        is_member = torch.zeros_like(state.is_converged).index_fill(0, index, value=True)

        def predict(state: State, t: Times, where: Tensor) -> Rows:
            return self._predict(state, t, where & is_member[:, None])

        output = step(self._schedule, s, t, state, predict)
        output.check(state, members[0].next_step.name)
        tokens = torch.where(state.protected, state.tokens, output.tokens)
        ends = [k for k in indices if self._members[k].is_at_phase_end]
        is_last = torch.zeros_like(is_member)
        is_last[upload(ends, torch.int64, t.device)] = True
        # at the end of a phase that scores states the best is restored, with no score from then on
        is_restored = (is_last | output.is_converged) & (output.best_score >= 0)
        end = torch.where(is_restored[:, None], output.best, tokens)
        if self._constrained is not None:
            has_converged = output.is_converged.tolist()
            rows = [k for k in indices if self._members[k].is_clean_after(has_converged[k])]
            end = self._constrained.finish(state, t, end, rows)
            tokens = torch.where(is_restored[:, None], tokens, end)
        was_read = self._network.was_read.clone()
        frames = _frames(members, indices, state, t, predict)  # may read more
        numbers = {
            "tokens": tokens,
            "end": end,
            "bits": output.probability.float().view(torch.int32),
            "flags": torch.stack([output.is_converged, was_read, self._network.is_finite], 1),
        }
        stored = {
            "tokens": end,
            "best_score": torch.where(is_restored, -1, output.best_score),
            "best_age": torch.where(is_restored, 0, output.best_age),
        }
        if output.best is not state.best:
            stored["best"] = output.best
        index = (
            slice(num) if indices == list(range(num)) else upload(indices, torch.int64, t.device)
        )
        return _Result(
            [self._rows[k] for k in indices],
            {name: value[index] for name, value in stored.items()},
            {name: value[index] for name, value in numbers.items()},
            frames,
            tuple(value[index] for value in output.values),
        )


def _frames(
    members: Sequence[Progress], indices: list[int], state: State, t: Tensor, predict: Predict
) -> list[Frame | None]:
    """Return the state and the prediction before the step, for requests that record frames."""
    frames: list[Frame | None] = [None] * len(members)
    recorded = [k for k, member in zip(indices, members, strict=True) if member.record_frames]
    if not recorded:
        return frames
    everywhere = torch.zeros_like(state.protected)
    everywhere[upload(recorded, torch.int64, t.device)] = True
    rows = predict(state, t, everywhere)
    observed = state.tokens, rows.current, rows.entropy, rows.top, rows.top_probability
    for i, (k, progress) in enumerate(zip(indices, members, strict=True)):
        if progress.record_frames:
            planned, request = progress.next_step, progress.request
            length = len(request.tokens) - request.row_start
            values = (value[k, :length] for value in observed)
            frames[i] = Frame(progress.steps_done, planned.name, planned.t, *values)
    return frames
