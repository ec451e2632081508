"""The one estimator of likelihoods: the NELBO of texts with its ends and a standard error.

    -log p(x) <= integral over [eps, 1 - eps] of Eq. 14  +  reconstruction at eps  +  prior

A repeat is one unbiased estimate: a few times t for each text (`times.GRIDS`), one noisy text per
time. Times and noise are functions of (seed, repeat, index of the text, position): an estimate does
not depend on batches, order or ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast, final

import torch
from torch import Tensor

from gidd.common.config.allowed import SEED, choice, integer, require_allowed
from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.elbo import elbo_terms
from gidd.diffusion.likelihood.scoring import ScoredText, ScoringBatch, pair_batches
from gidd.diffusion.loss import CHUNK_TOKENS, FusedLoss, HiddenAndHead, fused_loss
from gidd.diffusion.process import marginal_at, noise, sample_prior
from gidd.diffusion.randomness import UNIT_BITS, Stream, random_integers, uniforms
from gidd.diffusion.schedule import TINY, MixingSchedule
from gidd.diffusion.times import GRIDS, Nodes
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float, Int


NUM_REPEATS = 4
"""Default number of repeats."""
_DENSE_TOKENS = 32
"""Tokens whose x_theta is in memory at once, if logits are not linear in hidden states."""


@final
@dataclass(frozen=True)
class NelboEstimate:
    """Estimates of the NELBO of texts in nats, in float64 on the CPU."""

    draws: Float[Tensor, "R B 2"]
    """Integral and reconstruction of each text in each repeat."""
    prior: Float[Tensor, " B"]
    """Cost of the first step from the prior, computed once: less than eps of the NELBO."""
    forward_passes: int
    """Forward passes of single texts."""

    @property
    def nelbo(self) -> Float[Tensor, " B"]:
        """Mean over the repeats of the sum of all three terms."""
        return self.draws.sum(-1).mean(0) + self.prior

    @property
    def standard_error(self) -> Float[Tensor, " B"]:
        """Standard error of each NELBO; it has repeats - 1 degrees of freedom."""
        return self.draws.sum(-1).std(0) / math.sqrt(len(self.draws))

    @property
    def total(self) -> float:
        """NELBO of all texts together."""
        return float(self.nelbo.sum())

    @property
    def total_error(self) -> float:
        """Standard error of `total`, for texts with different indices."""
        return float(self.standard_error.square().sum().sqrt())


def estimate_nelbo(
    estimator: NelboEstimator,
    texts: Sequence[ScoredText],
    *,
    repeats: int = NUM_REPEATS,
    max_se: float | None = None,
    max_forward_passes: int | None = None,
    on_forward_passes: Callable[[int, int], None] | None = None,
) -> NelboEstimate:
    """Estimate the NELBO of each text; under several ranks each gets the same result.

    Args:
        estimator: The model, its noise and the time grid.
        texts: Texts of any lengths that the model accepts.
        repeats: Number of repeats; with `max_se`, the smallest number.
        max_se: Continue until the standard error of the total, per scored token, is at most this,
            or is not a number because predictions are not finite.
        max_forward_passes: With `max_se`: start no repeat that would exceed this number.
        on_forward_passes: Called with the forward passes done and expected.
    """
    if repeats < 2:
        raise ConfigError(
            f"repeats must be at least 2, got {repeats}. The standard error is computed from them."
        )
    num_scored = sum(text.num_scored for text in texts)
    per_repeat = estimator.forward_passes_per_repeat(len(texts))
    forward_passes, draws = 0, list[Tensor]()

    def count(num_passes: int) -> None:
        nonlocal forward_passes
        forward_passes += num_passes
        if on_forward_passes is not None:
            on_forward_passes(forward_passes, first + max(repeats, len(draws) + 1) * per_repeat)

    first = len(texts) * estimator.has_ends
    limit = math.inf if max_forward_passes is None else max_forward_passes
    prior = estimator.prior(texts, count)
    while True:
        draws.append(estimator.draw(texts, len(draws), count))
        if len(draws) >= repeats:
            estimate = NelboEstimate(torch.stack(draws), prior, forward_passes)
            # the error of a prediction that is NaN never falls
            is_precise = max_se is None or not estimate.total_error > max_se * num_scored
            if is_precise or forward_passes + per_repeat > limit:
                return estimate


NUM_NODES = 12
"""Default number of times per repeat."""
TOKENS_PER_BATCH = 2048
"""Default number of tokens in a forward pass."""
_WORD64 = 2**64 - 1

Texts = Sequence[ScoredText]
OnForwardPasses = Callable[[int], None] | None
"""Called with the number of forward passes of each batch."""


class RankGroup(Protocol):
    """Processes that share the work; `gidd.training.World` is one."""

    @property
    def rank(self) -> int:
        """Number of this process."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return each number summed over all processes in float64."""
        ...


def run_now(function: Callable[[], Tensor], cost: int) -> Tensor:
    """Make a forward pass of `cost` tokens at once."""
    return function()


@final
@dataclass(frozen=True)
class NelboEstimator:
    """Draws single unbiased estimates; `estimate_nelbo` averages them."""

    model: HiddenAndHead
    """The denoiser, in evaluation mode."""
    schedule: MixingSchedule
    grid: Annotated[str, choice(tuple(GRIDS))] = "sine"
    """Name of the time grid, one of `GRIDS`."""
    nodes: Annotated[int, integer(1)] = NUM_NODES
    """Times per text and repeat."""
    seed: Annotated[int, SEED] = 0
    """Determines times and noise."""
    tokens_per_batch: Annotated[int, integer(1)] = TOKENS_PER_BATCH
    """Tokens in a forward pass."""
    ranks: RankGroup | None = None
    """Processes that share the forward passes; all of them call the same methods."""
    device: torch.device | str = "cpu"
    strata: int | None = None
    """Number of texts of which each has few times: their times are then evenly spaced together,
    in the order of their indices. By default the times of each text are independent."""
    block_length: Annotated[int, integer(1)] | None = None
    """Tokens in a block: the bound is then the sum over blocks of their NELBO given the tokens
    before them. By default a text is one block."""
    run: Callable[[Callable[[], Tensor], int], Tensor] = run_now
    """Makes each forward pass; `gidd.sampling.compute` keeps the limits of a service."""

    __post_init__ = require_allowed

    @property
    def has_ends(self) -> bool:
        """Whether reconstruction and prior are part of the estimate."""
        return GRIDS[self.grid].has_ends

    def forward_passes_per_repeat(self, num_texts: int) -> int:
        """Return the number of forward passes of single texts in a repeat."""
        return num_texts * (self.nodes + self.has_ends)

    def draw(
        self, texts: Texts, repeat: int, on_forward_passes: OnForwardPasses = None
    ) -> Float[Tensor, "B 2"]:
        """Return one estimate of the integral and of the reconstruction of each text."""
        both = self.integral, self.reconstruction
        return torch.stack([part(texts, repeat, on_forward_passes) for part in both], dim=-1)

    def integral(
        self, texts: Texts, repeat: int, on_forward_passes: OnForwardPasses = None
    ) -> Float[Tensor, " B"]:
        """Return one estimate of the integral of Eq. 14 over [eps, 1 - eps]."""
        t, weight = self._times(texts, repeat)

        def weighted(rows: ScoringBatch) -> Tensor:
            return self._integrand(rows, repeat, rows.pick(t)) * rows.pick(weight)

        return self._run(texts, range(self.nodes), weighted, on_forward_passes)

    def reconstruction(
        self, texts: Texts, repeat: int, on_forward_passes: OnForwardPasses = None
    ) -> Float[Tensor, " B"]:
        """Return one estimate of the cost below eps; 0 if the grid has no ends."""
        compute = partial(self._reconstruction, repeat=repeat)
        return self._run(texts, range(self.has_ends), compute, on_forward_passes)

    def prior(self, texts: Texts, on_forward_passes: OnForwardPasses = None) -> Float[Tensor, " B"]:
        """Return the KL of the first step, from one sample of the prior; 0 without ends."""
        return self._run(texts, range(self.has_ends), self._prior_kl, on_forward_passes)

    def _times(self, texts: Sequence[ScoredText], repeat: int) -> Nodes:
        """Return times and weights [B, T] in float64 on the CPU, in increasing order of t."""
        index = torch.tensor([text.index for text in texts])
        group = index if self.strata is None else torch.zeros_like(index)
        address = self.seed, Stream.TIMES, repeat, group, index.new_zeros(1)
        shift = uniforms(*address, dtype=torch.float64)
        if self.strata is not None:
            shift = (shift + index[:, None] / self.strata) % 1
        nodes = GRIDS[self.grid].nodes(self.nodes, TRAINING_EPS, shift.squeeze(-1))
        order = nodes.t.argsort(-1)
        return Nodes(nodes.t.gather(-1, order), nodes.weight.gather(-1, order))

    @torch.no_grad()
    def _run(
        self,
        texts: Texts,
        nodes: range,
        compute: Callable[[ScoringBatch], Tensor],
        on_forward_passes: OnForwardPasses,
    ) -> Float[Tensor, " B"]:
        """Sum a number over the nodes of each text, in batches shared by all ranks.

        As ranks of a sharded model synchronize, a rank without a batch repeats the last one.
        """
        values_at = torch.zeros(len(texts), len(nodes), dtype=torch.float64)
        rank, size = (0, 1) if self.ranks is None else (self.ranks.rank, self.ranks.size)
        results: list[tuple[Tensor, Tensor, Tensor]] = []
        batches = pair_batches(texts, nodes, self.tokens_per_batch)
        for start in range(0, len(batches), size):
            mine = start + rank
            pairs = batches[min(mine, len(batches) - 1)]
            rows = ScoringBatch.load(texts, pairs, self.device)
            # in another thread, perhaps
            cost = rows.x.numel() * (1 if self.block_length is None else 2)
            values = self.run(partial(torch.no_grad()(compute), rows), cost)
            if mine < len(batches):
                results.append((rows.text, rows.node, values))
            if on_forward_passes is not None:
                on_forward_passes(sum(map(len, batches[start : start + size])))
        for text, node, values in results:  # at the end: one synchronization
            values_at[text, node] = values.double().cpu()
        if self.ranks is not None and batches:
            total = self.ranks.sum(values_at.flatten().tolist())
            values_at = torch.tensor(total, dtype=torch.float64).view_as(values_at)
        return values_at.sum(-1)

    def _integrand(self, rows: ScoringBatch, repeat: int, t: Tensor) -> Float[Tensor, " N"]:
        """Eq. 14 at one time and one noisy text for each row, summed over the text."""
        place = rows.node.to(rows.x.device) + 1
        z = rows.keep_given(noise(self.schedule, t, rows.x, self._integers(rows, repeat, place)))
        terms = self._terms(rows, t, z, self._hidden(rows, z, t))
        return (terms.weight * (terms.kl + terms.itakura_saito)).sum(-1)

    def _reconstruction(self, rows: ScoringBatch, repeat: int) -> Float[Tensor, " N"]:
        """`elbo.reconstruction`, summed over the text, without the [N, L, V] tensor of x_theta."""
        t = torch.full((len(rows.x),), TRAINING_EPS, device=rows.x.device)
        u = self._integers(rows, repeat, torch.zeros_like(rows.index))
        z = rows.keep_given(noise(self.schedule, t, rows.x, u))
        log_x, log_z = _log_x_theta(self.model, self._hidden(rows, z, t), rows.x, z)
        q_z = marginal_at(self.schedule, t, z, (z == rows.x).to(t.dtype))
        p_z = marginal_at(self.schedule, t, z, log_z.exp())
        cost = p_z.clamp_min(TINY).log() - q_z.clamp_min(TINY).log() - log_x
        return (cost if rows.scored is None else cost.masked_fill(~rows.scored, 0)).sum(-1)

    def _prior_kl(self, rows: ScoringBatch) -> Float[Tensor, " N"]:
        """`elbo.prior_kl`, summed over the text: the KL term at 1 - eps of a prediction at 1."""
        end = torch.ones(len(rows.x), device=self.device)
        u = random_integers(self.seed, Stream.PRIOR, 0, rows.index, rows.position)
        z = rows.keep_given(sample_prior(self.schedule, u))
        hidden = self._hidden(rows, z, end)
        return self._terms(rows, end - TRAINING_EPS, z, hidden, force=True).kl.sum(-1)

    def _hidden(self, rows: ScoringBatch, z: Tensor, t: Tensor) -> Float[Tensor, "N L D"]:
        """Return hidden states of noisy texts; of blocks given the clean blocks before them."""
        if self.block_length is None:
            return self.model.hidden(z, t)
        block_index = (rows.position // self.block_length).expand_as(z)
        return cast(Any, self.model).hidden(z, t, clean=rows.x, block_index=block_index)

    def _terms(
        self, rows: ScoringBatch, t: Tensor, z: Tensor, hidden: Tensor, *, force: bool = False
    ) -> FusedLoss:
        if not _has_linear_head(self.model):
            return self._terms_by_definition(rows, t, z, hidden)
        loss_weight = torch.full(z.shape, float(force), device=z.device)
        return fused_loss(
            self.schedule, t, rows.x, z, hidden, *self.model.head(), loss_weight, scored=rows.scored
        )

    def _terms_by_definition(
        self, rows: ScoringBatch, t: Tensor, z: Tensor, hidden: Tensor
    ) -> FusedLoss:
        """Return `elbo_terms` of scored tokens, in chunks, for a model without a linear head."""
        scored = torch.ones_like(z, dtype=torch.bool) if rows.scored is None else rows.scored
        index = scored.flatten().nonzero().squeeze(-1)
        t = t[:, None].expand_as(z)
        dense = (tensor.flatten(0, 1)[index] for tensor in (t, rows.x, z, hidden))
        values = (tensor.split(_DENSE_TOKENS) for tensor in dense)
        predict: Any = cast(Any, self.model).distribution
        parts = [
            elbo_terms(self.schedule, t, x[:, None], z[:, None], predict(states)[:, None])
            for t, x, z, states in zip(*values, strict=True)
        ]
        zeros = hidden.new_zeros(z.numel())
        terms = (torch.cat(part).squeeze(-1).to(zeros) for part in zip(*parts, strict=True))
        return FusedLoss(zeros.sum(), *(zeros.index_copy(0, index, v).view_as(z) for v in terms))

    def _integers(self, rows: ScoringBatch, repeat: int, place: Tensor) -> Int[Tensor, "N L"]:
        """Random integers of the noise; `place` counts the times of a text, 0 is the early end.

        On a coupled grid every position has one random number per repeat; to it, each time adds a
        multiple of the position's rotation, modulo 1. Positions stay independent, so each noisy
        text has the right distribution, while the numbers of the times are evenly spread: whether a
        token is noisy varies less between repeats.
        """
        if not GRIDS[self.grid].is_coupled:
            step = repeat * (self.nodes + 1) + place
            return random_integers(self.seed, Stream.NOISE, step, rows.index, rows.position)
        first = random_integers(self.seed, Stream.NOISE, repeat, rows.index, rows.position)
        step = _rotations(len(rows.position)).to(rows.x.device)
        return (first + place[:, None] * step) & (2**UNIT_BITS - 1)


@lru_cache(maxsize=64)
def _rotations(length: int) -> Int[Tensor, " L"]:
    """Return an irrational number for each position, in fixed point.

    Its continued fraction has only entries 1 and 2: its multiples are evenly spread on the circle.
    """
    rotations: list[int] = []
    for position in range(length):
        bits = (position + 1) * 0x9E3779B97F4A7C15 & _WORD64  # the mixer of splitmix64
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _WORD64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _WORD64
        rotation = 0.5
        for place in range(40):
            rotation = 1 / (1 + (bits >> place & 1) + rotation)
        rotations.append(round(rotation * 2**UNIT_BITS))
    return torch.tensor(rotations)


def _has_linear_head(model: HiddenAndHead) -> bool:
    """Whether a model has a `head`; otherwise it has `distribution`, from hidden states."""
    return bool(getattr(model, "has_linear_head", True))


def _log_x_theta(
    model: HiddenAndHead, hidden: Tensor, *tokens: Tensor
) -> list[Float[Tensor, "N L"]]:
    """Return log x_theta of some tokens at each position, in chunks: no [N, L, V] tensor."""
    weight, bias = model.head() if _has_linear_head(model) else (None, None)
    parts: list[Tensor] = []
    wanted = torch.stack([ids.flatten() for ids in tokens], dim=-1)
    with torch.autocast(hidden.device.type, enabled=False):
        for states, columns in zip(
            hidden.flatten(0, 1).split(CHUNK_TOKENS), wanted.split(CHUNK_TOKENS), strict=True
        ):
            if weight is None or bias is None:
                logits = cast(Any, model).distribution(states).clamp_min(TINY).log()
            else:
                logits = torch.addmm(bias.float(), states.float(), weight.float().T)
            parts.append(logits.gather(-1, columns) - logits.logsumexp(-1, keepdim=True))
    return [part.view_as(tokens[0]) for part in torch.cat(parts).unbind(-1)]
