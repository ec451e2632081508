"""Run `gidd`, alone or as a rank of torchrun; one rank stops itself (SIGSTOP) after some updates.

    torchrun ... -m support.stop_rank RANK UPDATES train nano ...

It does so the first time only: restarted by torchrun, it runs to the end.
"""

import os
import sys

from gidd.cli import main
from gidd.training import loop
from support.kill_training import stop_at

if __name__ == "__main__":
    rank, updates, *words = sys.argv[1:]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if (os.environ.get("RANK", "0"), attempt) == (rank, "0"):
        stop_at(loop, "update", calls=int(updates), after=True)
    main(words)
