"""``radweave doctor``: versions, devices, extras and disk of the installation, and a self-test."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Annotated

import typer

from radweave.core.devices import usable_cores
from radweave.core.extras import EXTRAS, install_line, missing


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
    self_test: Annotated[
        bool, typer.Option(help="Draw, train, draft and score for some seconds, or only look.")
    ] = True,
) -> None:
    """Show versions, devices, extras and disk, and test that a model trains and reports. Exit code 1 for a problem."""
    import json

    from radweave.cli.options import console

    health = examine(self_test=self_test, say=lambda step: console.print(f"self-test: {step}"))
    typer.echo(json.dumps(asdict(health), indent=2) if as_json else "\n".join(lines(health)))
    if health.problems:
        raise typer.Exit(1)


LEAST_FREE_GB = 2.0
"""Disk space for the cache and checkpoints of a small run."""
GB = 1e9


@dataclass(frozen=True, slots=True)
class Health:
    """State of the installation. ``problems`` are sentences about necessary repairs; the rest is information.

    ``packages`` has the version of each requirement, None if missing. ``memory_gb`` is None if unknown. ``extras`` has
    the missing modules of each. ``disk_gb`` is the free space by folder. ``self_test_s`` has the seconds of each
    successful step, None without a self-test.
    """

    radweave: str
    place: str
    python: str
    system: str
    packages: dict[str, str | None]
    devices: list[str]
    default_device: str
    cores: int
    memory_gb: float | None
    java: str | None
    extras: dict[str, list[str]]
    disk_gb: dict[str, float]
    self_test_s: dict[str, float] | None
    problems: list[str]


def examine(*, self_test: bool = True, say: Callable[[str], None] = lambda text: None) -> Health:
    """Examine this installation; ``say`` gets the name of each step of the self-test."""
    problems: list[str] = []
    packages = _packages()
    absent = [name for name, installed in packages.items() if installed is None]
    problems += [f"{name} is not installed: pip install {name}" for name in absent]
    devices, default = _devices(problems)
    disk = _disk(problems)
    times: dict[str, float] | None = None
    if self_test and not problems:
        times = {}
        try:
            run_self_test(times, say)
        except Exception as error:  # any error is a problem of the installation
            problems.append(f"self-test: stopped after {list(times) or 'nothing'} with {type(error).__name__}: {error}")
    return Health(
        radweave=version("radweave"),
        place=str(Path(__file__).parents[1]),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        packages=packages,
        devices=devices,
        default_device=default,
        cores=usable_cores(),
        memory_gb=_memory_gb(),
        java=shutil.which("java"),
        extras={extra: list(missing(extra)) for extra in EXTRAS},
        disk_gb=disk,
        self_test_s=times,
        problems=problems,
    )


def _packages() -> dict[str, str | None]:
    """Version of each requirement outside of extras."""
    versions: dict[str, str | None] = {}
    for line in requires("radweave") or ():
        name = re.match(r"[\w.-]+", line)
        if name is None or "extra ==" in line:
            continue
        try:
            versions[name[0]] = distribution(name[0]).version
        except PackageNotFoundError:
            versions[name[0]] = None
    return versions


def _devices(problems: list[str]) -> tuple[list[str], str]:
    """Descriptions of the devices, and the default device."""
    try:
        import torch

        from radweave.core.devices import default_device
    except ImportError as error:
        problems.append(f"torch cannot be imported: {error}")
        return ["cpu"], "cpu"
    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} ({facts.name}, {facts.total_memory / GB:.0f} GB)")
    if torch.backends.mps.is_available():
        devices.append("mps")
    try:
        return devices, str(default_device())
    except ValueError as error:
        problems.append(str(error))
        return devices, "cpu"


def _disk(problems: list[str]) -> dict[str, float]:
    """Free gigabytes of the working directory and the temporary folder."""
    free: dict[str, float] = {}
    for folder in dict.fromkeys((Path.cwd(), Path(tempfile.gettempdir()))):
        free[str(folder)] = round(shutil.disk_usage(folder).free / GB, 1)
        if free[str(folder)] < LEAST_FREE_GB:
            problems.append(f"{folder}: {free[str(folder)]} GB are free, a small run takes {LEAST_FREE_GB:.0f}")
    return free


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB, 1)
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return None


def lines(health: Health) -> list[str]:
    """The state as text."""
    versions = ", ".join(f"{name} {installed or 'MISSING'}" for name, installed in sorted(health.packages.items()))
    memory = "" if health.memory_gb is None else f", {health.memory_gb} GB of memory"
    text = [
        f"radweave {health.radweave} in {health.place}",
        f"Python {health.python} on {health.system}, {health.cores} cores{memory}",
        f"packages: {versions}",
        f"devices: {', '.join(health.devices)}; models run on {health.default_device}",
        f"disk: {', '.join(f'{free} GB free in {folder}' for folder, free in health.disk_gb.items())}",
        f"Java: {health.java or 'none; METEOR is left out of scores'}",
    ]
    for extra, absent in health.extras.items():
        text.append(f"extra {extra}: {f'not installed ({install_line(extra)})' if absent else 'installed'}")
    if health.self_test_s is not None:
        steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in health.self_test_s.items())
        text.append(f"self-test: {steps or 'no step was finished'}")
    return text + [f"PROBLEM: {problem}" for problem in health.problems]


# The self-test draws phantoms, trains a model of a thousandth of a usual size, drafts and scores in seconds.
STUDIES = 20
IMAGE_SIZE_PX = 64
TRAINING = (
    "data.image_size=32",
    "data.max_tokens=40",
    "data.tokenizer.vocab_size=300",
    "data.keep_features=false",
    "decoding.max_new_tokens=24",
    "model.vision_encoder.start=nothing",
    "model.vision_encoder.embedding_size=8",
    "model.vision_encoder.hidden_sizes=[8,16]",
    "model.vision_encoder.depths=[1,1]",
    "model.language_model.hidden_size=32",
    "model.language_model.num_layers=2",
    "stages.encoder.epochs=0",
    "stages.report.epochs=1",
    "stages.report.batch_size=8",
    "stages.report.select=loss",
)


def run_self_test(times: dict[str, float], say: Callable[[str], None]) -> None:
    """Run all steps in a temporary folder; ``times`` gets the seconds of each successful step."""

    @contextmanager
    def timed(step: str) -> Iterator[None]:
        say(step)
        started = time.perf_counter()
        yield
        times[step] = round(time.perf_counter() - started, 2)

    with tempfile.TemporaryDirectory(prefix="radweave-doctor-") as name:
        _self_test(Path(name), timed)


def _self_test(folder: Path, timed: Callable[[str], AbstractContextManager[None]]) -> None:
    with timed("load"):
        import radweave
        from radweave.engine.train import train
        from radweave.inference.predictor import Predictor  # noqa: F401  # the slowest import
        from radweave.metrics import Options
        from radweave.phantom.study import PhantomOptions, write_phantom_dataset
    with timed("draw"):
        options = PhantomOptions(image_size=IMAGE_SIZE_PX, prevalence="balanced")
        data = write_phantom_dataset(folder / "data", modality="xray", num_studies=STUDIES, seed=0, options=options)
    with timed("train"):
        run = train("baseline", data.path, folder / "run", overrides=TRAINING)
    with timed("draft"):
        study = next(study for study in data.studies("test") if study.report)
        # With so small a model and so few images the out-of-distribution test is meaningless: force.
        report = radweave.load(run).report([data.image_path(ref.path) for ref in study.images], force=True)
    with timed("score"):
        reference = {report.study_id: study.report or ""}
        scores = radweave.score({report.study_id: report.text or "-"}, reference, options=Options(meteor=False))
        assert scores.corpus["BLEU_1"].value is not None
