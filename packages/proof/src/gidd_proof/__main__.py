"""`python -m gidd_proof` is the command `gidd-proof`."""

from gidd_proof.cli import main

main()
