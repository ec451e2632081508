"""Quality and diversity of samples.

Reading order: `text_metrics`, `grader` (loaded by `grader_files`), `sample_files` and
`sample_generation` (where samples come from), `samples`, `frontier` (a sweep); `mauve_score`.
"""
