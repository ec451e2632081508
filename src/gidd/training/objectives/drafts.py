"""Self-generated corruption: random tokens become tokens of the model's own one-step draft."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, final

from gidd.common.config.allowed import number, require_allowed
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from gidd.diffusion.schedule import MixingSchedule
    from gidd.models import Denoiser
    from gidd.training.corruption import NoisyBatch
    from gidd.training.objective import NoisyLoss


_FRACTION = number(lambda p: 0 <= p <= 1, "in [0, 1]", "0 is the objective nelbo.")


@final
@dataclass(frozen=True)
class Drafts:
    """The NELBO, with the model's own mistakes in place of random tokens in some samples.

    In a `fraction` of the samples, every random token of z_t is masked and then drawn from
    x_theta, in one more forward pass without a gradient (after the self-generated errors of
    2606.17175, which drafts all masks). Masks stay masks. A drafted token is drawn as often as the
    schedule draws a random one; a draft that is right counts as a kept token.

    Divergence and weights are those of the schedule, so drafted samples have no bound of
    -log p(x): their noise is not q_t(z | x). What they teach follows from weights k(z, t) / q_t
    (`elbo`, `tight`; the others approximately): at the minimum

        x_theta(v | Z, t) q_t(z_i | v) is proportional to p(x_i = v | Z)

    for the sequences Z that the network was given, drafts included. Without drafts x_theta is
    the leave-one-out posterior, which Gibbs and self-correction assume. With drafts, x_theta is
    underestimated at plausible visible tokens: use posterior correction, not Gibbs or
    self-correction. The reported NELBO is the bound on the other samples; validation has no drafts.
    """

    fraction: Annotated[float, _FRACTION] = 0.5
    """Fraction of the samples whose random tokens are drafted; 0 is the objective `nelbo`."""
    __post_init__ = require_allowed

    def check(self, schedule: MixingSchedule) -> None:
        """Raise `ConfigError` for noise without random tokens, which a draft would replace."""
        from gidd.diffusion.error_rate import can_score_visible_tokens

        if self.fraction and not can_score_visible_tokens(schedule):
            raise ConfigError(
                "the objective drafts must have noise with random tokens, which it replaces, got "
                "masking alone. Use --noise hybrid --noise.p-uniform 0.2, or the objective nelbo."
            )

    def __call__(self, denoiser: Denoiser, noisy: NoisyBatch) -> NoisyLoss:
        """Draft random tokens of some samples, and return the loss of all samples."""
        from gidd.training.objectives import nelbo_objective

        if self.fraction == 0:
            return nelbo_objective(denoiser, noisy)
        import torch

        from gidd.diffusion.randomness import UNIT_BITS, Stream
        from gidd.training.objective import predict

        is_drafted = noisy.random(Stream.DRAFT)[:, 0] < self.fraction * 2**UNIT_BITS
        # visible and wrong: a random token; given tokens are never noised
        replaced = is_drafted[:, None] & (noisy.z != noisy.batch.tokens)
        mask_id, blank = noisy.schedule.vocab.mask_id, noisy
        if mask_id is not None:  # a random token would mislead the draft of its neighbours
            replaced = replaced & (noisy.z != mask_id)
            blank = replace(noisy, z=noisy.z.masked_fill(replaced, mask_id))
        z = torch.where(replaced, predict(denoiser, blank), noisy.z)
        return nelbo_objective(denoiser, replace(noisy, z=z))._replace(reported=~is_drafted)
