"""Self-correction: of a model's own samples, and of text with known errors.

Reading order: `correction_settings`, `corruption`, `recovery`, `correction_curve`.
"""
