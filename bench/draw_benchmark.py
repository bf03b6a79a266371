"""The pictures of a benchmark drawn anew from its benchmark.json, without its runs: draw_benchmark.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from radweave.experiments.bench_pages import draw_again

if __name__ == "__main__":
    for path in draw_again(Path(sys.argv[1])):
        print(path)
