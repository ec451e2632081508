"""Constants that configurations need without importing torch."""

TRAINING_EPS = 1e-4
"""Training times lie in [eps, 1 - eps] (App. E)."""
MAX_TEMPERATURE = 1e38
"""Largest sampling temperature: a larger one overflows float32."""
MAX_GUIDANCE_SCALE = 100
"""Largest scale of classifier-free guidance: float32 logits times more lose their digits."""
PAPER_CEILING = 1e4
"""Upper limit of the ELBO weights in the paper's training runs, for stability (App. E)."""
