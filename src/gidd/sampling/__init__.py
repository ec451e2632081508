"""Sampling, infilling and self-correction.

Reading order: `network` and `prediction` (x_theta at the positions that need it), `canvas` (the
state), `steps/` and `correctors/` (what changes it), `plan` (the sequence of steps), `request` and
`template` (what to sample), `engine` (the loop), `trace` (the record). Names are imported on first
use.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.sampling.canvas import (
        BestState as BestState,
        Canvas as Canvas,
        StepOutput as StepOutput,
    )
    from gidd.sampling.correctors import (
        gain as gain,
        gibbs_sweep as gibbs_sweep,
        likelihood as likelihood,
        posterior_correction as posterior_correction,
        self_correction as self_correction,
    )
    from gidd.sampling.engine import Engine as Engine, OnStep as OnStep, StepEvent as StepEvent
    from gidd.sampling.network import (
        CachedFeatures as CachedFeatures,
        DenoisingNetwork as DenoisingNetwork,
        FunctionNetwork as FunctionNetwork,
    )
    from gidd.sampling.plan import (
        Plan as Plan,
        PlannedStep as PlannedStep,
        Step as Step,
        corrector_plan as corrector_plan,
        posterior_sampling_plan as posterior_sampling_plan,
        sampling_plan as sampling_plan,
    )
    from gidd.sampling.prediction import Observation as Observation, Prediction as Prediction
    from gidd.sampling.processors import (
        CutOff as CutOff,
        MinP as MinP,
        Processor as Processor,
        Require as Require,
        Temperature as Temperature,
        TopK as TopK,
        TopP as TopP,
        ban as ban,
    )
    from gidd.sampling.request import (
        Request as Request,
        Sample as Sample,
        Tokens as Tokens,
        blanks as blanks,
        prompt as prompt,
    )
    from gidd.sampling.steps import (
        ancestral as ancestral,
        ancestral_reference as ancestral_reference,
        confidence as confidence,
        gibbs as gibbs,
        greedy as greedy,
        threshold as threshold,
    )
    from gidd.sampling.template import parse_template as parse_template
    from gidd.sampling.trace import (
        Edit as Edit,
        EditLog as EditLog,
        Frame as Frame,
        Record as Record,
    )

__getattr__, __dir__ = lazy_exports(__name__)
