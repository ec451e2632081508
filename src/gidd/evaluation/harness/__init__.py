"""Tasks of lm-evaluation-harness.

Reading order: `continuations` (what is scored), `choices` (questions, early stop), `lm` (the model
class of lm_eval), `tasks` (local questions, results).
"""
