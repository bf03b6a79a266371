"""How cost grows with the number of studies: CPU seconds and peak memory of one command at each size.

    OMP_NUM_THREADS=1 python bench/bench_size.py evaluate 2000 30000 [--profile]

Each size runs in a process of its own, so that its peak memory is its own; CPU seconds are those of that process and
its children, start of Python included. The exponent is that of the last two sizes.

``evaluate``: ``radweave evaluate`` of made-up pairs of some 60 words, with label tables, floors, the published protocol
beside and 1,000 resamples; without METEOR.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from bench_evaluation import made_up_sentence

SEED = 0


def pairs_file(folder: Path, size: int) -> Path:
    """So many made-up pairs; one sentence in ten has a word of a long tail, as misspellings and names give."""
    draw = random.Random(SEED)

    def sentence() -> str:
        tail = f"w{int(draw.paretovariate(0.6)) % 50_000} " if draw.random() < 0.1 else ""
        return tail + made_up_sentence(draw)

    path = folder / "pairs.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for study in range(size):
            ref = [sentence() for _ in range(draw.randint(4, 9))]
            hyp = [kept if draw.random() < 0.5 else sentence() for kept in ref]
            row = {"study_id": f"s{study}", "hyp": " ".join(hyp), "ref": " ".join(ref), "modality": "xray"}
            file.write(json.dumps(row) + "\n")
    return path


def evaluate(folder: Path) -> None:
    """Score the pairs as the command line does, into a folder."""
    from radweave.evaluation.commands.evaluate import EvaluateRequest, run_evaluate

    with redirect_stdout(StringIO()):
        run_evaluate(EvaluateRequest(pairs=(folder / "pairs.jsonl",), meteor=False, out=folder / "scores"))


MAKE: dict[str, Callable[[Path, int], object]] = {"evaluate": pairs_file}
DO: dict[str, Callable[[Path], None]] = {"evaluate": evaluate}


def child(what: str, folder: Path, *, profile: bool) -> None:
    """Do it once in this process, and print CPU seconds and peak memory in MB."""
    if profile:
        import cProfile
        import pstats

        with cProfile.Profile() as profiler:
            DO[what](folder)
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("cumulative").print_stats(45)
    else:
        DO[what](folder)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(json.dumps({"seconds": seconds, "megabytes": max(usage.ru_maxrss for usage in used) / 1024}))


def measure(what: str, size: int, *, profile: bool) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as name:
        MAKE[what](Path(name), size)
        line = [sys.executable, __file__, what, "--child", name, *(["--profile"] if profile else [])]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["seconds"], found["megabytes"]


def table(what: str, sizes: Sequence[int], *, profile: bool) -> None:
    found: list[tuple[int, float]] = []
    for size in sizes:
        seconds, megabytes = measure(what, size, profile=profile)
        found.append((size, seconds))
        print(f"{what} {size}: {seconds:.1f} CPU seconds, {megabytes:.0f} MB at the peak", flush=True)
    if len(found) > 1:
        (few, fast), (many, slow) = found[-2:]
        print(f"exponent {math.log(slow / fast) / math.log(many / few):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=sorted(MAKE))
    parser.add_argument("sizes", type=int, nargs="*", default=[2000, 30_000])
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.what, given.child, profile=given.profile)
    else:
        table(given.what, given.sizes, profile=given.profile)


if __name__ == "__main__":
    main()
