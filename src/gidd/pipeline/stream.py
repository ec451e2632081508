"""Text in order, while it is sampled: block by block."""

from __future__ import annotations

from collections.abc import Iterator

from gidd.pipeline.text import TokenTexts
from gidd.sampling import Engine, Jobs, Request
from gidd.sampling.jobs import sample_blocks

_PARTIAL = "\N{REPLACEMENT CHARACTER}"


def stream_text(
    engine: Engine, token_texts: TokenTexts, request: Request, block_length: int
) -> Iterator[str]:
    """Sample one request in blocks; yield the text of each when it is finished.

    The first piece begins with the prompt. A character whose bytes end in the next block is held
    back until then.
    """
    jobs, tokens, shown = Jobs(), list[int](), ""
    job = jobs.start(sample_blocks(jobs, engine, request, block_length, on_tokens=tokens.extend))
    try:
        while True:
            text = "".join(token_texts(tokens))
            complete = text if job.is_done else text.rstrip(_PARTIAL)
            if len(complete) > len(shown):
                yield complete[len(shown) :]
                shown = complete
            if job.is_done:
                job.result()  # raises the error of a job that failed
                return
            jobs.step()
    finally:
        if not job.is_done:
            job.cancel()
