"""How cost grows with the number of studies: CPU seconds and peak memory of each command, and the exponent of growth.

    OMP_NUM_THREADS=1 python bench/bench_size.py --work FOLDER [--src NAME=TREE/src ...] [--sizes 2000 30000 200000]
        [--rows import check ...] [--again] [--table]

Studies are made up: reports of some 60 words, one picture of 32 x 32 each. ``--text-sizes`` are those of evaluate and
label, which need no pictures. The rows ``full ...`` are of pictures of 2,544 x 3,056; they are measured at two
numbers, and what one picture costs is the difference.

Each row at each size runs in a process of its own. CPU seconds are those of that process and all that it started,
start of Python included; megabytes are the peak of the largest of them. What is measured is kept in
FOLDER/results.json and not measured again (``--again``: it is), so that a stopped bench goes on. ``--src
before=TREE/src`` measures another tree beside this one, in turns, on the same files. ``--table`` prints what is there
and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from size_rows import ROWS

HERE = Path(__file__).resolve()
FULL_SIZES = [80, 160]
"""Beyond the 60 pictures that a check compares with their nearest, whatever there are."""
Results = dict[str, dict[str, dict[str, dict[str, Any]]]]


def child(what: str, row: str, folder: Path, size: int, source: str) -> tuple[str, float, float]:
    """Run one step in a process of its own: its last line, CPU seconds and megabytes.

    Raises:
        RuntimeError: if it failed, with its last words.
    """
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    line = [sys.executable, str(HERE.with_name("size_rows.py")), what, row, str(folder), str(size)]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as wrong:
        process = subprocess.Popen(line, stdout=said, stderr=wrong, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        wrong.seek(0)
        if process.returncode:
            raise RuntimeError((wrong.read().strip().splitlines() or ["no word"])[-1])
        lines = said.read().strip().splitlines()
    return lines[-1] if lines else "", usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure(row: str, folder: Path, size: int, source: str, here: str) -> dict[str, Any]:
    """One row at one size. What it needs is made by this tree, so that all trees get the same."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        child("make", row, folder, size, here)
        child("ready", row, folder, size, source)
        last, seconds, megabytes = child("do", row, folder, size, source)
    except RuntimeError as error:
        return {"failed": str(error)}
    more = json.loads(last) if last.startswith("{") else {}
    return {"seconds": round(seconds, 2), "megabytes": round(megabytes), **more}


def exponent(results: dict[str, dict[str, Any]]) -> float | None:
    """Of the last two sizes that were measured."""
    found = sorted((int(size), row["seconds"]) for size, row in results.items() if "seconds" in row)
    if len(found) < 2:
        return None
    (few, fast), (many, slow) = found[-2:]
    return math.log(slow / fast) / math.log(many / few)


def cell(found: dict[str, Any]) -> str:
    if "failed" in found:
        return found["failed"][:40]
    text = f"{found['seconds']:.1f} s, {found['megabytes']} MB"
    if "update_ms" in found:
        text += f"; {found['update_ms']:.0f} ms an update, epoch {found['update_ms'] * found['updates'] / 1000:.0f} s"
    return text


def table(results: Results) -> str:
    """All that was measured, as Markdown: a row of the table for each row and tree."""
    sizes = sorted({int(size) for trees in results.values() for rows in trees.values() for size in rows})
    lines = [
        f"| what | tree | {' | '.join(f'{size:,}' for size in sizes)} | exponent |",
        "|" + "---|" * (len(sizes) + 3),
    ]
    for row in ROWS:
        for tree, found in results.get(row, {}).items():
            cells = [cell(found[str(size)]) if str(size) in found else "" for size in sizes]
            grows = exponent(found)
            last = "-" if grows is None or row.startswith("full") else f"{grows:.2f}"
            if row.startswith("full") and all("seconds" in found.get(str(size), {}) for size in FULL_SIZES):
                few, many = (found[str(size)]["seconds"] for size in FULL_SIZES)
                last = f"{(many - few) / (FULL_SIZES[1] - FULL_SIZES[0]) * 1000:.0f} ms each"
            if row == "cache" and grows is not None:
                (few, fast), (many, slow) = sorted((int(size), one["seconds"]) for size, one in found.items())[-2:]
                last += f"; {(many - few) / (slow - fast):.0f} images a second and core"
            lines.append(f"| {row} | {tree} | {' | '.join(cells)} | {last} |")
    return "\n".join(lines)


def sizes_of(row: str, given: argparse.Namespace) -> list[int]:
    if row.startswith("full"):
        return FULL_SIZES
    return list(given.text_sizes or given.sizes) if ROWS[row][0] == "pairs" else list(given.sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where files and results lie")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 30_000])
    parser.add_argument("--text-sizes", type=int, nargs="+", help="of evaluate and label, if others")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW")
    parser.add_argument("--src", nargs="+", default=[], metavar="NAME=DIR", help="other trees to measure beside")
    parser.add_argument("--again", action="store_true", help="measure what was measured too")
    parser.add_argument("--table", action="store_true", help="only print what was measured")
    given = parser.parse_args()
    here = str(HERE.parents[1] / "src")
    trees = dict(text.partition("=")[::2] for text in given.src) | {"this": here}
    place = given.work / "results.json"
    results: Results = json.loads(place.read_text()) if place.is_file() else {}
    for row in [] if given.table else given.rows:
        for size in sizes_of(row, given):
            for tree, source in trees.items():
                kept = results.setdefault(row, {}).setdefault(tree, {})
                if "seconds" in kept.get(str(size), {}) and not given.again:
                    continue
                folder = given.work / f"{'full' if row.startswith('full') else 'small'}{size}"
                kept[str(size)] = measure(row, folder, size, source, here)
                place.write_text(json.dumps(results, indent=1))
                print(f"{row} {size} {tree}: {cell(kept[str(size)])}", file=sys.stderr, flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
