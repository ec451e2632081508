"""Run `gidd` as a rank of torchrun; one rank stops itself (SIGSTOP) after a number of updates.

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
    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == (rank, "0"):
        stop_at(loop, "update", calls=int(updates), after=True)
    main(words)
