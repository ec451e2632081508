"""Sampling, infilling and self-correction.

Reading order: `state`, `network`, `predict` (x_theta where it is asked for) and its wrappers
`guidance` and `constrained` (by an `automaton`), `steps/` and `correctors/` (functions of a state),
`plan`, `loop` (the whole sampling); then `request` (what to sample, and the result), `limits` and
`tasks` (of calls), `progress` (of a request), `scheduler` (who is next), `batch` (one step of
several requests), `session` (the thread that makes all steps); `blocks` and `windows` (long texts).
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.sampling.automaton import Automaton as Automaton, one_of as one_of
    from gidd.sampling.blocks import sample_blocks as sample_blocks
    from gidd.sampling.constrained import (
        Constrained as Constrained,
        Constraint as Constraint,
        ReadCandidates as ReadCandidates,
    )
    from gidd.sampling.correctors import (
        Gibbs as Gibbs,
        GibbsSweep as GibbsSweep,
        PosteriorCorrection as PosteriorCorrection,
        SelfCorrectionStep as SelfCorrectionStep,
        rank_by_probability as rank_by_probability,
        rank_by_ratio as rank_by_ratio,
    )
    from gidd.sampling.guidance import Guidance as Guidance, guided as guided
    from gidd.sampling.limits import Budget as Budget
    from gidd.sampling.loop import sample as sample
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
        no_op as no_op,
        posterior_sampling_plan as posterior_sampling_plan,
        sampling_plan as sampling_plan,
    )
    from gidd.sampling.predict import (
        NetworkPredict as NetworkPredict,
        Predict as Predict,
        Rows as Rows,
        processed as processed,
    )
    from gidd.sampling.processors import (
        Ban as Ban,
        EpsilonCutoff as EpsilonCutoff,
        LogitBias as LogitBias,
        MinP as MinP,
        Processor as Processor,
        Require as Require,
        RequireAt as RequireAt,
        Temperature as Temperature,
        TopK as TopK,
        TopP as TopP,
        ban as ban,
    )
    from gidd.sampling.progress import Event as Event, OnStep as OnStep
    from gidd.sampling.request import (
        Edit as Edit,
        Frame as Frame,
        Limits as Limits,
        Request as Request,
        Sample as Sample,
        Tokens as Tokens,
        blanks as blanks,
        parse_template as parse_template,
        prompt as prompt,
    )
    from gidd.sampling.session import Session as Session
    from gidd.sampling.state import State as State, start as start
    from gidd.sampling.steps import (
        Confidence as Confidence,
        Greedy as Greedy,
        Psi as Psi,
        RemaskSuspects as RemaskSuspects,
        ReMDM as ReMDM,
        Renoise as Renoise,
        Threshold as Threshold,
        ancestral as ancestral,
    )
    from gidd.sampling.tasks import gather as gather, run_sync as run_sync
    from gidd.sampling.windows import (
        PosteriorPass as PosteriorPass,
        TextWindows as TextWindows,
        WindowPosterior as WindowPosterior,
        WindowReader as WindowReader,
        WindowTokens as WindowTokens,
        read_own_probability as read_own_probability,
    )

__getattr__, __dir__ = lazy_exports(__name__)
