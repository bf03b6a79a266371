"""One run as a process of its own: ``python -m radweave.experiments.ablate TASK.json``."""

import sys

from radweave.experiments.one_run import main

raise SystemExit(main(sys.argv[1:]))
