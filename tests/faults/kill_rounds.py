"""Verbs killed at random moments and started again: python kill_rounds.py FOLDER ROUNDS SEED

Each round takes the next of train, train --overwrite, import, generate and export, kills it by SIGKILL or SIGTERM,
and gives the same command again (train with --resume). What is there then must be, byte for byte, what an unbroken
command gives; nothing else may lie beside it or in the temporary folder, and no process of the killed one lives on.
Prints one JSON object with counts. Processes are forked from one that has imported everything: starts cost seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, ResNetModel  # noqa: F401

from radweave.cli import main
from radweave.core.errors import InputError
from radweave.core.storage import sha256_file
from radweave.engine.restore import restore
from tests.toys import TOY_OVERRIDES, TOY_SIZES, write_toy_dataset

OVERRIDES = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=4", "stages.report.select=loss"]
OVERRIDES += ["stages.report.checkpoint_every=2"]
VOLATILE = ("metrics.jsonl", ".lock")
"""Times and locks."""


def contents(folder: Path) -> dict[str, str]:
    if folder.is_file():
        return {"": sha256_file(folder)}
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in VOLATILE)
    return {str(path.relative_to(folder)): sha256_file(path) for path in paths}


def fork(arguments: list[str], log: Path) -> int:
    """Start a command in a session of its own."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["radweave", *arguments]
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:  # a traceback, for the log
        import traceback

        traceback.print_exc()
        code = 1
    with contextlib.suppress(BaseException):
        import atexit

        atexit._run_exitfuncs()
    os._exit(code)


def run(arguments: list[str], log: Path) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(fork(arguments, log), 0)[1])
    assert code == 0, f"{arguments} ended with {code}: {log.read_text()[-2000:]}"


def alive(session: int) -> list[int]:
    """Processes of a session, zombies left out."""
    problems = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                problems.append(int(stat.parent.name))
    return problems


def rounds_of(root: Path, rounds: int, seed: int) -> Counter[str]:
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    work, temporary, log = root / "work", root / "tmp", root / "log.txt"
    for folder in (work, temporary):
        folder.mkdir(parents=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    dataset = write_toy_dataset(root / "dataset", root / "sources")
    source = root / "source"
    source.mkdir()
    lines = ["study,patient,image,report,split"]
    for study in dataset.studies():
        for ref in study.images:
            shutil.copy(dataset.image_path(ref.path), source / Path(ref.path).name)
        lines.append(
            f'{study.study_id},{study.patient_id},{Path(study.images[0].path).name},"{study.report}",{study.split}'
        )
    (source / "reports.csv").write_text("\n".join(lines) + "\n")
    trained = root / "trained"

    def train(out: Path, *more: str) -> list[str]:
        return ["train", "baseline", str(dataset.path), "--out", str(out), *OVERRIDES, *more]

    run(train(trained), log)

    def fresh() -> None:
        shutil.rmtree(dataset.path / ".cache", ignore_errors=True)

    def old_run() -> None:
        fresh()
        shutil.copytree(trained, work / "run")

    verbs: dict[str, tuple[Path, list[str], list[str], Callable[[], None]]] = {
        "train": (work / "run", train(work / "run"), train(work / "run", "--resume"), fresh),
        "train --overwrite": (
            work / "run",
            train(work / "run", "seed=5", "--overwrite"),
            train(work / "run", "seed=5", "--overwrite", "--resume"),
            old_run,
        ),
        "data import": (
            work / "set",
            (command := ["data", "import", "folder", str(source), "--out", str(work / "set")]),
            command,
            lambda: None,
        ),
        "generate": (
            work / "p.jsonl",
            (command := ["generate", str(trained), "--data", str(dataset.path), "--out", str(work / "p.jsonl"),
                         "--shard-size", "1", "--batch-size", "1"]),
            command,
            fresh,
        ),
        "export": (work / "model", (command := ["export", str(trained), str(work / "model")]), command, lambda: None),
    }  # fmt: skip
    expected: dict[str, tuple[dict[str, str], float]] = {}
    for verb, (out, first, _, before) in verbs.items():
        before()
        started = time.monotonic()
        run(first, log)
        expected[verb] = contents(out), time.monotonic() - started
        empty(work)
    while counts["killed"] < rounds:
        verb = list(verbs)[counts["killed"] % len(verbs)]
        out, first, resume, before = verbs[verb]
        wanted, lasts = expected[verb]
        before()
        number = (signal.SIGKILL, signal.SIGTERM)[counts["killed"] // len(verbs) % 2]
        child = fork(first, log)
        time.sleep(lasts * rng.uniform(0.02, 0.7))
        os.kill(child, number)
        status = os.waitpid(child, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        counts["tried"] += 1
        assert counts["tried"] < 4 * rounds, counts
        if code == 0:  # it was done already
            empty(work)
            continue
        assert code == (-9 if number == signal.SIGKILL else 143), (verb, code, log.read_text()[-2000:])
        counts["killed"] += 1
        counts[f"{verb} by {number.name}"] += 1
        counts["left by the killed"] += len(strays(work, dataset.path, temporary, out))
        until = time.monotonic() + 20
        while alive(child):
            assert time.monotonic() < until, ("lives on", verb, alive(child))
            time.sleep(0.05)
        if verb == "train --overwrite":
            # The older run or, killed at its very end, the new one: whole in either case.
            with contextlib.suppress(InputError):
                restore(out)
                counts["overwritten run in use"] += 1
            assert (out / "run.json").is_file(), os.listdir(work)
        # A kill may come after the result has its name and before the command has ended.
        if not (out.exists() and "--resume" not in resume and out.name in ("set", "model", "p.jsonl")):
            run(resume, log)
        else:
            counts["done when killed"] += 1
            run([*resume, "--overwrite"], log)
        assert contents(out) == wanted, (verb, number, diff(contents(out), wanted))
        counts["equal"] += 1
        left = strays(work, dataset.path, temporary, out)
        counts["left after the next start"] += len(left)
        assert not left, (verb, number, left)
        empty(work)
    return counts


def strays(work: Path, dataset: Path, temporary: Path, out: Path) -> list[str]:
    """Whatever lies where only ``out`` should."""
    others = [path for path in work.iterdir() if path != out]
    within = [
        path for folder in (work, dataset) for path in folder.rglob("*") if path.name.endswith((".partial", ".old"))
    ]
    own = [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]
    return [str(path) for path in (*others, *within, *own)]


def diff(problems: dict[str, str], wanted: dict[str, str]) -> list[str]:
    return [name for name in problems.keys() | wanted.keys() if problems.get(name) != wanted.get(name)]


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


if __name__ == "__main__":
    torch.set_num_threads(1)  # no thread pool that a fork would lose
    print(json.dumps(rounds_of(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
