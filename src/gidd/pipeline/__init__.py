"""A trained model as a tool: generate, chat, infill, correct and score text.

    pipe = gidd.from_pretrained("models/nano")
    pipe.generate("My fellow citizens", n=4, steps=64)
    pipe.chat([{"role": "user", "content": "2 + 3"}])
    pipe.infill("The capital of [MASK:3] is Paris.")
    pipe.correct("Tom ate the sun with a spoon.")
    pipe.noise_level("Tom ate the sun with a spoon.")
    pipe.score("Tom ate the soup with a spoon.")

Reading order: `options`, `noise_level`, `results`, `text` (tokens and text), `pipeline` with
`generate`, `chat`, `correct` and `score`, `load`.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.pipeline.chat import ChatAnswer as ChatAnswer
    from gidd.pipeline.generate import TextState as TextState, TextStream as TextStream
    from gidd.pipeline.load import from_pretrained as from_pretrained
    from gidd.pipeline.noise_level import estimate_noise as estimate_noise
    from gidd.pipeline.options import (
        CorrectionOptions as CorrectionOptions,
        SamplingOptions as SamplingOptions,
        SelfCorrectionOptions as SelfCorrectionOptions,
    )
    from gidd.pipeline.pipeline import Pipeline as Pipeline
    from gidd.pipeline.results import (
        Alternative as Alternative,
        Correction as Correction,
        Generation as Generation,
        NoiseLevel as NoiseLevel,
        Replacement as Replacement,
        ResultManifest as ResultManifest,
        Scores as Scores,
        SelfCorrection as SelfCorrection,
        TextEdit as TextEdit,
        Trace as Trace,
        apply_edits as apply_edits,
        choose_edit as choose_edit,
        is_suspect as is_suspect,
    )
    from gidd.pipeline.text import (
        EncodedText as EncodedText,
        Span as Span,
        ban_unwritten_tokens as ban_unwritten_tokens,
        protected_tokens as protected_tokens,
    )

__getattr__, __dir__ = lazy_exports(__name__)
