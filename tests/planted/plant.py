"""Plant faults in a copy of the tree, one at a time, and see which of them the tests notice.

    make mutants
    python tests/planted/plant.py --one-in 5 --seed 0
    python tests/planted/plant.py --rooms metrics,data --workers 1 --survivors

Each ``*.toml`` beside this file lists faults of one room: the exact text that is replaced, what stands there instead,
and the tests that should fail then. A fault whose tests still pass survives. The named tests first run on the whole
tree, where they must pass; the time that they take sets the limit, and what does not end by it counts as noticed.

Results are kept in ``--out``: what was found is not tried again until the file, the fault or its tests change.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COPIED = ("src", "tests", "docs", "README.md", "pyproject.toml")
# Imported once and inherited by every run: they take longer than most of the tests. Never the package itself.
PRELOADED = (
    "numpy", "scipy.ndimage", "scipy.stats", "sklearn.linear_model", "sklearn.cluster", "PIL.Image", "torch",
    "transformers", "safetensors.torch", "pydantic", "typer", "rich.progress", "hypothesis", "nibabel", "pydicom",
)  # fmt: skip
LEAST_LIMIT_S = 60.0
SLOWER = 10.0
"""How much longer than without the fault a test may take."""
NO_TESTS = (4, 5)
"""Exit codes of pytest for a test that is not there."""

Outcome = Literal["killed", "hung", "survived", "broken"]


@dataclass(frozen=True, slots=True)
class Fault:
    """``old`` stands once in the file ``path``; ``new`` takes its place; one of ``tests`` should fail then."""

    path: str
    what: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def room(self) -> str:
        """The package that the file lies in, two levels deep for methods."""
        inside = Path(self.path).relative_to("src/radweave").parts[:-1]
        return "/".join(inside[:2] if inside[:1] == ("methods",) else inside[:1]) or "radweave"

    @property
    def name(self) -> str:
        return f"{self.path.removeprefix('src/radweave/')}: {self.what}"

    def changed(self, text: str) -> str:
        """The file's text with the fault in it."""
        assert text.count(self.old) == 1, f"{self.name}: stands {text.count(self.old)} times in the file"
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a fault. ``key`` is a hash of all that was looked at."""

    name: str
    room: str
    outcome: Outcome
    seconds: float
    key: str
    note: str = ""


def read_faults(folder: Path = HERE) -> list[Fault]:
    """All faults of the lists in a folder."""
    faults = []
    for table in sorted(folder.glob("*.toml")):
        for file in tomllib.loads(table.read_text(encoding="utf-8"))["file"]:
            for row in file["fault"]:
                tests = tuple(row.get("tests", file["tests"]))
                faults.append(Fault(file["path"], row["what"], row["old"], row["new"], tests))
    return faults


def key_of(fault: Fault, root: Path = ROOT) -> str:
    """Changes with the fault, the file that it is in, and the files of its tests."""
    digest = hashlib.sha256(json.dumps(asdict(fault), sort_keys=True).encode())
    for path in (fault.path, *dict.fromkeys(test.split("::")[0] for test in fault.tests)):
        digest.update((root / path).read_bytes())
    return digest.hexdigest()[:16]


def run_tests(tree: Path, tests: Sequence[str], limit_s: float, *, keep_compiled: bool) -> tuple[int | None, str]:
    """Run tests of a tree in a process of its own; its exit code (None: it did not end in time), and what it said."""
    output = tree / "said.txt"
    child = os.fork()
    if child == 0:
        _be_pytest(tree, tests, output, keep_compiled=keep_compiled)
    until = time.monotonic() + limit_s
    try:
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status), output.read_text(encoding="utf-8", errors="replace")
            time.sleep(0.02)
        return None, "no end"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what the tests started, too
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _be_pytest(tree: Path, tests: Sequence[str], output: Path, *, keep_compiled: bool) -> None:
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(tree)
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        places = [str(tree / "src"), str(tree)]
        sys.path[:] = places + [place for place in sys.path if not _is_of_a_tree(place)]
        os.environ |= {"PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
        # A faulty module of the same size and second as another must not be found compiled.
        sys.dont_write_bytecode = not keep_compiled
        os.environ["PYTHONDONTWRITEBYTECODE"] = "" if keep_compiled else "1"
        import pytest
        from hypothesis import Phase, settings

        # That it fails is enough; the smallest example would take a while.
        settings.register_profile("planted", phases=[Phase.explicit, Phase.generate])
        settings.load_profile("planted")
        code = int(
            pytest.main(["-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests])
        )
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _is_of_a_tree(place: str) -> bool:
    return Path(place).name in ("src", "tests", "planted")


def try_group(tree: Path, tests: Sequence[str], faults: Iterable[tuple[Fault, str]]) -> Iterator[Result]:
    """Try faults that share their tests, one after the other, in a tree of which nobody else makes use."""
    started = time.monotonic()
    code, output = run_tests(tree, tests, 600.0, keep_compiled=True)
    limit_s = LEAST_LIMIT_S + SLOWER * (time.monotonic() - started)
    whole = code == 0 and re.search(r"\b\d+ passed", output) is not None
    for fault, key in faults:
        if not whole:
            yield Result(fault.name, fault.room, "broken", 0.0, key, f"its tests do not pass: {output[-300:]}")
            continue
        started = time.monotonic()
        with planted(tree, fault):
            code, output = run_tests(tree, tests, limit_s, keep_compiled=False)
        seconds = round(time.monotonic() - started, 1)
        yield Result(fault.name, fault.room, _outcome(code), seconds, key, _first_failure(output))


def _outcome(code: int | None) -> Outcome:
    if code is None:
        return "hung"
    return "broken" if code in NO_TESTS else "survived" if code == 0 else "killed"


def _first_failure(output: str) -> str:
    matches = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return matches[1] if matches else ""


@contextlib.contextmanager
def planted(tree: Path, fault: Fault) -> Iterator[None]:
    """A tree with the fault; afterwards the file is as it was, down to its times."""
    path = tree / fault.path
    text, times = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(fault.changed(text), encoding="utf-8")
    # Python finds a compiled file by the second and the size of its source: the fault has another second.
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 2_000_000_000))
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def copy_tree(root: Path, tree: Path) -> None:
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(root / name, tree / name)


Group = tuple[tuple[str, ...], list[tuple[Fault, str]]]


def _work(root: Path, groups: Any, results: Any) -> None:
    """One worker: a copy of the tree, and groups of faults until there are no more."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the copy goes with it
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder)
        copy_tree(root, tree)
        while (group := groups.get()) is not None:
            for result in try_group(tree, *group):
                results.put(result)
    results.put(None)


def try_all(groups: Sequence[Group], workers: int, report: Callable[[Result], None], *, root: Path = ROOT) -> None:
    """Try groups of faults in processes side by side, and tell each result."""
    context = multiprocessing.get_context("spawn")
    waiting, results = context.Queue(), context.Queue()
    for group in (*groups, *(None for _ in range(workers))):
        waiting.put(group)
    # No daemons: those may have no children, and some tests start processes.
    started = [context.Process(target=_work, args=(root, waiting, results)) for _ in range(workers)]
    for process in started:
        process.start()
    left = workers
    try:
        while left:
            result = results.get()
            if result is None:
                left -= 1
            else:
                report(result)
    finally:
        for process in started:
            if left:
                process.terminate()
            process.join()


def grouped(faults: Iterable[tuple[Fault, str]]) -> list[Group]:
    """Faults by the tests that they share."""
    matches: dict[tuple[str, ...], list[tuple[Fault, str]]] = defaultdict(list)
    for fault, key in faults:
        matches[fault.tests].append((fault, key))
    return list(matches.items())


def table(results: Iterable[Result]) -> str:
    """A row per room, then the survivors by name."""
    rooms: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        rooms[result.room].append(result)
    lines = ["| room | planted | killed | of them by time | survived |", "|---|---:|---:|---:|---:|"]
    every = [result for matches in rooms.values() for result in matches]
    for room, matches in (*sorted(rooms.items()), ("all", every)):
        count = {outcome: sum(r.outcome == outcome for r in matches) for outcome in ("killed", "hung", "survived")}
        killed = count["killed"] + count["hung"]
        lines.append(f"| {room} | {len(matches)} | {killed} | {count['hung']} | {count['survived']} |")
    share = sum(result.outcome in ("killed", "hung") for result in every) / max(1, len(every))
    lines.append(f"\n{share:.1%} of {len(every)} faults were noticed.")
    lines += [f"survived: {result.name}" for result in every if result.outcome == "survived"]
    lines += [f"not tried: {result.name}: {result.note}" for result in every if result.outcome == "broken"]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what is not known yet and print the table; exit code 1 where a fault survives or could not be tried."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    parser.add_argument("--rooms", default="", help="only faults of these rooms, joined by commas")
    parser.add_argument("--one-in", type=int, default=1, help="only a random share of the faults")
    parser.add_argument("--seed", type=int, default=0, help="of the share")
    parser.add_argument("--survivors", action="store_true", help="try again what survived")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "planted.json", help="where results are kept")
    options = parser.parse_args(arguments)
    wanted = [(fault, key_of(fault)) for fault in read_faults()]
    wanted = [(f, key) for f, key in wanted if not options.rooms or f.room in options.rooms.split(",")]
    if options.one_in > 1:
        wanted = random.Random(options.seed).sample(wanted, -(-len(wanted) // options.one_in))
    results_by_key = {row["key"]: Result(**row) for row in _kept(options.out)}
    retried = ("survived", "broken") if options.survivors else ("broken",)
    todo = [(f, key) for f, key in wanted if key not in results_by_key or results_by_key[key].outcome in retried]

    def report(result: Result) -> None:
        results_by_key[result.key] = result
        print(f"{result.outcome:8} {result.seconds:6.1f} s  {result.name}  {result.note[:120]}", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps([asdict(row) for row in results_by_key.values()], indent=1), encoding="utf-8")

    try_all(grouped(todo), options.workers, report) if todo else None
    matches = [results_by_key[key] for _, key in wanted]
    print(table(matches))
    return int(any(result.outcome in ("survived", "broken") for result in matches))


def _kept(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
