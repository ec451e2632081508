"""Self-correction of a model's own samples: `correction_settings`, `correction_curve`."""
