"""One run as a process of its own: ``python -m radweave.ablate TASK.json``."""

import sys

from radweave.ablate.one_run import main

raise SystemExit(main(sys.argv[1:]))
