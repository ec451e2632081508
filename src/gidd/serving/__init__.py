"""The HTTP service: OpenAI's API for diffusion models, with infilling and correction.

    worker = Worker(gidd.from_pretrained("models/nano"))
    app = create_app({"nano": worker})  # for uvicorn, or any other ASGI server

Reading order: `worker` (how many calls may be open), `protocol` (bodies of requests),
`endpoints` (what they ask of a pipeline), `access` (keys and limits), `errors`, `metrics`, `app`
(the routes), `replicas` (Ray Serve). `pip install 'gidd[serve]'`.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.serving.access import hash_key as hash_key, read_keys as read_keys
    from gidd.serving.app import create_app as create_app
    from gidd.serving.options import (
        ServiceOptions as ServiceOptions,
        WorkerOptions as WorkerOptions,
    )
    from gidd.serving.worker import Worker as Worker

__getattr__, __dir__ = lazy_exports(__name__)
