"""Grades of samples by a language model behind an API.

Reading order: `judge_samples`, `judge_client` (HTTP), `judge_journal` (answers on disk), `judge`.
"""
