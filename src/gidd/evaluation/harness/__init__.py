"""Tasks of lm-evaluation-harness: `choices`, `lm` (its model class), `tasks`."""
