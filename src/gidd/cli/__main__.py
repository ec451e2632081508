"""`python -m gidd.cli`: the command `gidd`, for launchers such as torchrun that want a module."""

from gidd.cli import main

if __name__ == "__main__":
    main()
