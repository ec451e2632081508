"""Scores of the choices of questions, and early stop."""

import math

import pytest
import torch
from support.choice_task import CONTEXT_TOKENS, markov_questions
from support.exact_denoiser import ExactDenoiser, markov_world

from gidd.diffusion.likelihood import NelboEstimator, ScoredText, estimate_nelbo
from gidd.evaluation.harness.choices import Choice, EarlyStop, Question, score_questions


def is_decided(stop: EarlyStop, draws, lengths=(1.0, 1.0, 1.0)) -> bool:
    choices = [Choice((), (length,)) for length in lengths[: len(draws[0])]]
    return stop.is_decided(Question(tuple(choices)), draws.tolist())


def test_a_ranking_is_decided_by_a_paired_one_sided_t_test() -> None:
    # differences 2, 3, 4: mean 3, standard error 1 / sqrt(3), t = 5.196 with 2 degrees of freedom:
    # one-sided p = 0.01755
    draws = torch.tensor([[5.0, 3.0], [1.0, -2.0], [9.0, 5.0]], dtype=torch.float64)
    assert is_decided(EarlyStop(confidence=0.98), draws)
    assert not is_decided(EarlyStop(confidence=0.985), draws)
    assert not is_decided(EarlyStop(confidence=0.98, min_repeats=4), draws)


def test_the_length_normalised_ranking_must_be_decided_too() -> None:
    draws = torch.tensor([[-4.0, -8.0], [-4.1, -8.1], [-4.0, -8.2]], dtype=torch.float64)
    stop = EarlyStop()
    assert is_decided(stop, draws)
    assert is_decided(stop, draws, (2.0, 3.0))
    assert not is_decided(stop, draws, (2.0, 4.05))  # -2.02 and -2.0


def test_equal_choices_are_never_decided() -> None:
    draws = torch.zeros(8, 2, dtype=torch.float64)
    assert not is_decided(EarlyStop(), draws)


@pytest.fixture(scope="module")
def small_estimator() -> NelboEstimator:
    source, schedule = markov_world(0.2, 4)
    return NelboEstimator(ExactDenoiser(source, schedule), schedule, nodes=2)


def _text(*tokens: int, index: int = 0) -> ScoredText:
    return ScoredText(torch.tensor(tokens), index)


def test_scores_are_those_of_the_one_estimator(small_estimator: NelboEstimator) -> None:
    texts = [_text(0, 1, 2), _text(3, 1), _text(2, 2, 0, 1, index=5)]
    questions = [
        Question((Choice((texts[0],)), Choice((texts[1], texts[2])))),
        Question((Choice((texts[1],)),)),
    ]
    (first, second), passes = score_questions(small_estimator, questions, repeats=3)
    expected = estimate_nelbo(small_estimator, texts, repeats=3)
    nelbo, error = expected.nelbo.tolist(), expected.standard_error.tolist()
    assert first.loglikelihood == pytest.approx([-nelbo[0], -nelbo[1] - nelbo[2]])
    assert first.standard_error[0] == pytest.approx(error[0])
    assert second.loglikelihood == pytest.approx([-nelbo[1]])
    # texts[1] belongs to both questions and is computed once; prior, nodes and reconstruction
    assert passes == expected.forward_passes == 3 * (1 + 3 * 3)
    assert (first.forward_passes, second.forward_passes) == (30, 10)


@pytest.mark.slow
def test_order_and_other_questions_do_not_change_scores(small_estimator: NelboEstimator) -> None:
    questions = [
        Question((Choice((_text(0, 1, 2, index=i),)), Choice((_text(3, i % 4, 3, index=i),))))
        for i in range(12)
    ]
    stop = EarlyStop(confidence=0.9)
    alone = [score_questions(small_estimator, [q], repeats=8, stop=stop)[0] for q in questions]
    backwards = score_questions(small_estimator, questions[::-1], repeats=8, stop=stop)[0]
    for (one,), other in zip(alone, reversed(backwards), strict=True):
        assert one.repeats == other.repeats
        assert one.loglikelihood == pytest.approx(other.loglikelihood, abs=1e-4)
    assert len({scores.repeats for scores in backwards}) > 1


def test_a_single_repeat_has_no_standard_error(small_estimator: NelboEstimator) -> None:
    question = Question((Choice((_text(0, 1),)), Choice((_text(1, 1),))))
    (scores,) = score_questions(small_estimator, [question], repeats=1, stop=EarlyStop())[0]
    assert scores.standard_error == (None, None)
    assert not scores.is_decided


def test_questions_that_need_the_likelihood_itself_are_not_stopped(
    small_estimator: NelboEstimator,
) -> None:
    choices = (Choice((_text(0, 1, 2, 0),)), Choice((_text(3, 3, 3, 3),)))
    stop = EarlyStop(confidence=0.6, min_repeats=2)
    questions = [Question(choices), Question(choices, can_stop=False), Question(choices[:1])]
    found = score_questions(small_estimator, questions, repeats=8, stop=stop)[0]
    assert [scores.repeats for scores in found] == [2, 8, 8]


@pytest.mark.slow
def test_early_stop_keeps_the_answers_and_saves_a_third_of_the_forward_passes() -> None:
    """300 questions about an exact source: a true continuation and three wrong ones."""
    world = markov_questions(300)
    full = score_questions(world.estimator, world.questions, repeats=16)
    early = score_questions(world.estimator, world.questions, repeats=16, stop=EarlyStop())
    answers = [[_best(s.loglikelihood) for s in scores] for scores, _ in (full, early)]
    agreement = sum(a == b for a, b in zip(*answers, strict=True)) / len(world.questions)
    saved = 1 - early[1] / full[1]
    assert agreement >= 0.99
    assert saved >= 0.3
    # the exact conditional likelihood ranks the choices as the estimate does, up to near ties
    exact = world.exact_loglikelihoods()
    right = sum(a == int(row.argmax()) for a, row in zip(answers[1], exact, strict=True))
    assert right / len(exact) > 0.9
    assert world.questions[0].choices[0].parts[0].given is not None
    assert int(world.questions[0].choices[0].parts[0].given.sum()) == CONTEXT_TOKENS


def _best(values: tuple[float, ...]) -> int:
    assert all(map(math.isfinite, values))
    return max(range(len(values)), key=values.__getitem__)
