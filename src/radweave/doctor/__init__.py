"""What an installation has and whether it works: versions, devices, extras, disk, a self-test.

examine(self_test=True).problems        # sentences; none where all is well
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Any

from radweave.base.cores import usable_cores
from radweave.base.extras import EXTRAS, install_line, missing

LEAST_FREE_GB = 2.0
"""Of disk: less does not hold the cache and checkpoints of a small run."""
GB = 1e9


@dataclass(frozen=True, slots=True)
class Health:
    """What was found. ``problems`` are sentences about what must be mended; all the rest is for information.

    ``packages`` has the version of each requirement, None where it is missing. ``memory_gb`` is None where the system
    does not say. ``extras`` has the modules that each lacks. ``disk_gb`` is what is free, by place. ``self_test_s`` has
    the seconds of each step that passed, None where it was not asked for.
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(*, self_test: bool = True, say: Callable[[str], None] = lambda text: None) -> Health:
    """Look at this installation; ``say`` is told of each step of the self-test as it begins."""
    problems: list[str] = []
    packages = _packages()
    problems += [f"{name} is not installed: pip install {name}" for name, found in packages.items() if found is None]
    devices, default = _devices(problems)
    disk = _disk(problems)
    times: dict[str, float] | None = None
    if self_test and not problems:
        from radweave.doctor.self_test import run_self_test

        times = {}
        try:
            run_self_test(times, say)
        except Exception as error:  # whatever it is, that it stopped here is the finding
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
    """Version of each requirement that is none of an extra."""
    found: dict[str, str | None] = {}
    for line in requires("radweave") or ():
        name = re.match(r"[\w.-]+", line)
        if name is None or "extra ==" in line:
            continue
        try:
            found[name[0]] = distribution(name[0]).version
        except PackageNotFoundError:
            found[name[0]] = None
    return found


def _devices(problems: list[str]) -> tuple[list[str], str]:
    """Devices in words, and which one models run on."""
    try:
        import torch

        from radweave.base.devices import default_device
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
    """Free gigabytes here and where temporary files go."""
    free: dict[str, float] = {}
    for place in dict.fromkeys((Path.cwd(), Path(tempfile.gettempdir()))):
        free[str(place)] = round(shutil.disk_usage(place).free / GB, 1)
        if free[str(place)] < LEAST_FREE_GB:
            problems.append(f"{place}: {free[str(place)]} GB are free, a small run takes {LEAST_FREE_GB:.0f}")
    return free


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB, 1)
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return None


def lines(health: Health) -> list[str]:
    """What was found, for reading."""
    versions = ", ".join(f"{name} {found or 'MISSING'}" for name, found in sorted(health.packages.items()))
    memory = "" if health.memory_gb is None else f", {health.memory_gb} GB of memory"
    text = [
        f"radweave {health.radweave} in {health.place}",
        f"Python {health.python} on {health.system}, {health.cores} cores{memory}",
        f"packages: {versions}",
        f"devices: {', '.join(health.devices)}; models run on {health.default_device}",
        f"disk: {', '.join(f'{free} GB free in {place}' for place, free in health.disk_gb.items())}",
        f"Java: {health.java or 'none; METEOR is left out of scores'}",
    ]
    for extra, lacking in health.extras.items():
        text.append(f"extra {extra}: {f'not installed ({install_line(extra)})' if lacking else 'installed'}")
    if health.self_test_s is not None:
        steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in health.self_test_s.items())
        text.append(f"self-test: {steps or 'no step was finished'}")
    return text + [f"PROBLEM: {problem}" for problem in health.problems]
