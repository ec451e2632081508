"""Values that options of samplers may have; without torch, so that mistakes are found at once."""

from gidd.common.config.allowed import integer, number

MAX_TEMPERATURE = 1e38
"""Largest sampling temperature: a larger one overflows float32."""

MAX_GUIDANCE_SCALE = 100
"""Largest scale of classifier-free guidance: float32 logits times more lose their digits."""

TEMPERATURE = number(
    lambda t: 0 <= t <= MAX_TEMPERATURE,
    f"in [0, {MAX_TEMPERATURE:g}]",
    "0 always takes the most likely token, 1 leaves x_theta unchanged; the paper corrects with 0.1 "
    "to 0.5.",
)
TOP_K = integer(1, fix="1 is greedy; omit it to keep all tokens.")
TOP_P = number(lambda p: 0 < p <= 1, "in (0, 1]", "0.9 is common, 1 keeps all tokens.")
GUIDANCE_SCALE = number(
    lambda w: 0 <= w <= MAX_GUIDANCE_SCALE,
    f"in [0, {MAX_GUIDANCE_SCALE}]",
    "1 is no guidance, 0 ignores the condition; 1.5 to 4 are common.",
)
ERROR_RATE = number(lambda rate: 0 <= rate < 1, "in [0, 1)", "0.05 is 5% wrong tokens.")
PROBABILITY = number(lambda p: 0 <= p <= 1, "in [0, 1]")
MIN_CONFIDENCE = PROBABILITY._replace(fix="It is a posterior probability.")
