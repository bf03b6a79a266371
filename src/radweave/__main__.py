"""``python -m radweave``: the command line, where the script ``radweave`` is not on the path."""

from radweave.cli import main

main()
