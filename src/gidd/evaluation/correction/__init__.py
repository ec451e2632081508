"""Correction: of text with known mistakes, and of a model's own samples.

Reading order: `correction_settings`; `noises` with `confusions`, `spellcheckers`, `edit_distance`,
`error_rates`, `passages` and `text_correction` (found text); `correction_curve` (own samples).
"""
