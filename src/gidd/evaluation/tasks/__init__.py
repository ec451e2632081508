"""Tasks of lm-evaluation-harness; the model class is in `harness`.

Reading order: `task_settings`, `continuations` (what is scored), `choices` (questions, early stop),
`greedy`, `generate_until`, `harness`, `task_names` and `task_files` (where tasks come from),
`tasks`.
"""
