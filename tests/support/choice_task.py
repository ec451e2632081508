"""Multiple-choice questions about a Markov source whose denoiser is exact."""

from typing import NamedTuple

import torch
from torch import Tensor

from gidd.diffusion.likelihood import NelboEstimator, ScoredText
from gidd.evaluation.harness.choices import Choice, Question
from gidd.sources import MarkovSource
from support.exact_denoiser import ExactDenoiser, markov_world

CONTEXT_TOKENS, CHOICE_TOKENS = 3, 5


class ChoiceWorld(NamedTuple):
    """Questions, and the estimator that scores them; the first choice is the true one."""

    source: MarkovSource
    estimator: NelboEstimator
    questions: list[Question]

    def exact_loglikelihoods(self) -> Tensor:
        """Return log p(choice | context) of each question and choice."""
        tokens = torch.stack([c.parts[0].tokens for q in self.questions for c in q.choices])
        found = self.source.log_prob(tokens) - self.source.log_prob(tokens[:, :CONTEXT_TOKENS])
        return found.view(len(self.questions), -1)


def markov_questions(number: int, *, nodes: int = 4) -> ChoiceWorld:
    """Return questions with four choices: the true continuation, two shuffled, one of elsewhere."""
    source, schedule = markov_world(0.2, 8)
    length = CONTEXT_TOKENS + CHOICE_TOKENS
    given = torch.arange(length) < CONTEXT_TOKENS
    texts = source.sample(0, torch.arange(number), length)
    elsewhere = source.sample(1, torch.arange(number), CHOICE_TOKENS)
    generator = torch.Generator().manual_seed(0)
    questions: list[Question] = []
    for index, text in enumerate(texts):
        context, true = text[:CONTEXT_TOKENS], text[CONTEXT_TOKENS:]
        shuffled = [true[torch.randperm(CHOICE_TOKENS, generator=generator)] for _ in range(2)]
        choices = [torch.cat([context, end]) for end in (true, *shuffled, elsewhere[index])]
        questions.append(Question(tuple(Choice((ScoredText(c, index, given),)) for c in choices)))
    denoiser = ExactDenoiser(source, schedule, given)
    estimator = NelboEstimator(denoiser, schedule, nodes=nodes, tokens_per_batch=1 << 15)
    return ChoiceWorld(source, estimator, questions)
