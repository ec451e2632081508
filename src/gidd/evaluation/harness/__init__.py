"""Tasks of lm-evaluation-harness: `continuations`, `choices`, `lm` (its model class), `tasks`."""
