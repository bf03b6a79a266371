"""Thousands of damaged files of every kind that is read, and what became of each, as a table.

    make fuzz                                          # a thousand of each kind
    python bench/fuzz.py --each 200 --seed 7 --out fuzz.md

refused: one clear error. identical: what is read did not change. doubted: read with a warning that stops a report.
silent: something else is read, and nothing says so. tracebacks and hangs must be 0; silent ones only where a format has
nothing to find damage with. Files are made here; with RADWEAVE_TEST_DATA some real images join. Each kind is read in a
process of its own with limited memory, and a reader that says nothing for a while is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from radweave.core.errors import InputError
from tests.damaged_files import Format, damaged_copies, digest, image_formats, look_at_radiograph, look_at_volume

MEMORY_BYTES = 8 << 30
HANG_S = 150.0
LARGEST_REAL_BYTES = 1_000_000
REAL_FILES = 12
COLUMNS = ("files", "refused", "identical", "doubted", "silent", "tracebacks", "hangs")


@dataclass
class Row:
    """What became of the damaged copies of one kind of file, and an example of each traceback."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)


def judge(form: Format, path: Path, truth: str) -> tuple[str, str]:
    """What the reader made of a damaged file, and how it failed."""
    try:
        with contextlib.redirect_stderr(None), contextlib.redirect_stdout(None):
            seen, doubted = form.look(path)
    except InputError as error:
        return ("hangs" if "took longer" in error.reason else "refused"), ""
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return (
            "tracebacks",
            f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {str(error)[:80]!r}",
        )
    return ("doubted" if doubted else "identical" if seen == truth else "silent"), ""


def work(form: Format, folder: Path, seed: str, start: int, count: int, answers: Connection) -> None:
    """Read damaged copies ``start`` to ``count`` of a file and send what became of each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    path, whole = form.whole, form.whole.read_bytes()
    if not form.in_place:
        path = folder / form.whole.name
    truth = form.look(form.whole)[0]
    for number, data in enumerate(damaged_copies(whole, random.Random(seed), count, is_text=form.is_text)):
        if number < start:
            continue
        path.write_bytes(data)
        answers.send(judge(form, path, truth))
    path.write_bytes(whole)


def run(name: str, form: Format, count: int, seed: int) -> Row:
    """All damaged copies of one file; a process that hangs or dies is replaced, and the next copy taken."""
    row, done = Row(), 0
    whole = form.whole.read_bytes()
    while done < count:
        answers, sender = multiprocessing.Pipe(duplex=False)
        with tempfile.TemporaryDirectory() as folder:
            process = multiprocessing.get_context("fork").Process(
                target=work, args=(form, Path(folder), f"{seed} {name}", done, count, sender)
            )
            process.start()
            sender.close()
            outcome = _collect(row, answers, count - done)
            done += outcome[0]
            process.kill()
            process.join()
        if done < count:
            row.counts[outcome[1]] += 1
            row.examples.setdefault("the process hung or died", f"copy {done}")
            done += 1
        form.whole.write_bytes(whole)
    return row


def _collect(row: Row, answers: Connection, most: int) -> tuple[int, str]:
    """Count answers until all are there, none comes, or the process is gone."""
    for number in range(most):
        if not answers.poll(HANG_S):
            return number, "hangs"
        try:
            kind, example = answers.recv()
        except EOFError:
            return number, "tracebacks"
        row.counts[kind] += 1
        if example:
            row.examples.setdefault(example.partition(":")[0], example)
    return most, ""


def real_formats(folder: Path) -> dict[str, Format]:
    """Some small real images of each kind, where there are any."""
    data = Path(os.environ.get("RADWEAVE_TEST_DATA", ""))
    if not os.environ.get("RADWEAVE_TEST_DATA") or not data.is_dir():
        return {}
    kinds: dict[str, tuple[str, str, Callable[[Path], tuple[str, bool]]]] = {
        "real DICOM": ("cxr_dicom", "*", look_at_radiograph),
        "real JPEG": ("iu_xray", "*.jp*g", look_at_radiograph),
        "real volume": ("chest_ct/files", "*.n*", look_at_volume),
    }
    found = {}
    for kind, (place, pattern, look) in kinds.items():
        files = [
            path for path in sorted((data / place).rglob(pattern))
            if path.is_file() and path.stat().st_size <= LARGEST_REAL_BYTES and _is_read(path, look)
        ]  # fmt: skip
        for number, path in enumerate(files[:: max(1, len(files) // REAL_FILES)][:REAL_FILES]):
            copy = Path(shutil.copy(path, folder / f"{kind[5:]}{number}{path.suffix}"))
            found[f"{kind} #{number}"] = Format(copy, look, "as the kinds above")
    return found


def _is_read(path: Path, look: Callable[[Path], tuple[str, bool]]) -> bool:
    try:
        return not look(path)[1]
    except InputError:
        return False


def text_formats(folder: Path) -> dict[str, Format]:
    """The files of a dataset folder and of a run folder, made here; their readers stand without the hash that guards
    them, so that the parser itself is tried, and once with it."""
    from radweave.core.json_files import write_jsonl
    from radweave.core.study import ImageRef, Study
    from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
    from radweave.metrics.pairs import read_pairs

    source = folder / "source"
    source.mkdir()
    with DatasetWriter(folder / "set", DatasetCard(name="fuzz", notes=("made here",))) as writer:
        for index in range(24):
            path = source / f"{index}.png"
            Image.fromarray(np.add.outer(np.arange(32), np.arange(32) * (index + 1)).astype(np.uint8)).save(path)
            split = ("train", "train", "val", "test")[index % 4]
            study = Study(
                study_id=f"s{index}", patient_id=f"p{index}", split=split, report=f"No effusion. Finding {index % 3}.",
                images=(ImageRef(path=f"images/{index}.png"),),
            )  # fmt: skip
            writer.add(study, {f"images/{index}.png": path})
    dataset = folder / "set"

    def look_at_studies(path: Path) -> tuple[str, bool]:
        return digest([study.model_dump(mode="json") for study in Dataset.open(path.parent).studies()]), False

    def look_at_card(path: Path) -> tuple[str, bool]:
        return digest(Dataset.open(path.parent).card.model_dump(mode="json")), False

    def look_at_pairs(path: Path) -> tuple[str, bool]:
        return digest([str(pair) for pair in read_pairs(path).pairs]), False

    rows = [{"study_id": f"s{n}", "hyp": "No effusion.", "ref": "Small effusion.", "floors": {}} for n in range(4)]
    write_jsonl(folder / "predictions.jsonl", rows)
    return {
        "manifest.jsonl": Format(dataset / "manifest.jsonl", look_at_studies, "none", True, True),
        "dataset.json": Format(dataset / "dataset.json", look_at_card, "none", True, True),
        "predictions.jsonl": Format(folder / "predictions.jsonl", look_at_pairs, "none", True),
        **_run_formats(folder, dataset),
    }


def _run_formats(folder: Path, dataset: Path) -> dict[str, Format]:
    from radweave.core.config import from_yaml
    from radweave.data.tokenizer import load_tokenizer
    from radweave.engine.checkpoint import load_weights
    from radweave.engine.restore import restore
    from radweave.engine.train import train
    from radweave.methods.baseline import PRESETS
    from tests.conftest import TOY_OVERRIDES, TOY_SIZES

    made = train(
        "baseline", dataset, folder / "run",
        overrides=[*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=1", "data.tokenizer.vocab_size=300"],
    )  # fmt: skip
    run = Path(getattr(made, "folder", made))
    model = restore(run).model

    def look_at_run(path: Path) -> tuple[str, bool]:
        found = restore(run)
        weights = {name: value.double().sum().item() for name, value in found.model.state_dict().items()}
        return digest(found.card.model_dump(mode="json"), found.experiment.model_dump(mode="json"), weights), False

    def look_at_weights(path: Path) -> tuple[str, bool]:
        load_weights(model, path)
        return digest(*(value.numpy() for value in model.state_dict().values())), False

    def look_at_config(path: Path) -> tuple[str, bool]:
        return digest(from_yaml(type(PRESETS["tiny"]()), path).model_dump(mode="json")), False

    def look_at_tokenizer(path: Path) -> tuple[str, bool]:
        found = load_tokenizer(path.parent)
        return digest(found.encode("No effusion. Finding 2."), found.get_vocab()), False

    loose = folder / "loose"
    shutil.copytree(run, loose)
    hashed = {
        f"{name} in a run": Format(run / file, look_at_run, "SHA-256", is_text, True)
        for name, file, is_text in (
            ("config.yaml", "config.yaml", True),
            ("tokenizer.json", "tokenizer/tokenizer.json", True),
            ("safetensors", "weights.safetensors", False),
        )
    }
    return {
        "run.json": Format(run / "run.json", look_at_run, "its digest", True, True),
        **hashed,
        "config.yaml alone": Format(loose / "config.yaml", look_at_config, "none", True),
        "tokenizer.json alone": Format(loose / "tokenizer" / "tokenizer.json", look_at_tokenizer, "none", True, True),
        "safetensors alone": Format(loose / "weights.safetensors", look_at_weights, "none"),
    }


def merged(rows: dict[str, Row]) -> dict[str, Row]:
    """One row for all files of a kind: ``real DICOM #3`` counts under ``real DICOM``."""
    joined: dict[str, Row] = {}
    for name, row in rows.items():
        into = joined.setdefault(name.partition(" #")[0], Row())
        into.counts.update(row.counts)
        into.examples.update(row.examples)
    return joined


def table(rows: dict[str, Row], formats: dict[str, Format]) -> str:
    lines = ["| file | " + " | ".join(COLUMNS) + " | found by |", "|---|" + "---:|" * len(COLUMNS) + "---|"]
    whole: Counter[str] = Counter()
    guards = {name.partition(" #")[0]: form.redundancy for name, form in formats.items()}
    for name, row in rows.items():
        counts = Counter({**row.counts, "files": sum(row.counts.values())})
        whole.update(counts)
        lines.append(f"| {name} | " + " | ".join(str(counts[key]) for key in COLUMNS) + f" | {guards[name]} |")
    return "\n".join([*lines, "| all | " + " | ".join(str(whole[key]) for key in COLUMNS) + " | |"]) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--each", type=int, default=1000, help="damaged copies of each kind of file")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--only", default="", help="kinds whose name holds this")
    options.add_argument("--out", type=Path, help="write the table there as well")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        formats: dict[str, Format] = {**image_formats(folder), **real_formats(folder), **text_formats(folder)}
        formats = {name: form for name, form in formats.items() if given.only in name}
        began = time.monotonic()

        def one(item: tuple[str, Format]) -> tuple[str, Row]:
            name, form = item
            row = run(name, form, max(1, given.each // REAL_FILES) if " #" in name else given.each, given.seed)
            print(json.dumps({"file": name, **row.counts, "seconds": round(time.monotonic() - began)}), flush=True)
            return name, row

        # Files of one run folder share it: one after the other.
        alone = [(name, form) for name, form in formats.items() if not form.in_place]
        with ThreadPoolExecutor(given.jobs) as threads:
            rows = dict(threads.map(one, alone))
        rows |= dict(one((name, form)) for name, form in formats.items() if form.in_place)
        joined = merged({name: rows[name] for name in formats})
    text = table(joined, formats)
    for name, row in joined.items():
        for example in list(row.examples.values())[:12]:
            print(f"{name}: {example}")
    print(text)
    if given.out is not None:
        given.out.write_text(text)
    if any(row.counts["tracebacks"] or row.counts["hangs"] for row in joined.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
