"""Methods, losses and rewards of other packages, found by entry points; nothing is imported before it is used.

    [project.entry-points."radweave.methods"]
    queries = "my_package.queries"

    [project.entry-points."radweave.losses"]
    "dast.entropy" = "my_package.entropy:TERM"

    [project.entry-points."radweave.rewards"]
    brevity = "my_package.brevity:reward"

A method is a module as ``radweave.methods`` describes it. A loss is a ``Term`` of one method, which a stage weighs:
``stages.report.losses.entropy=0.1``. A reward is a function of N texts and their N references that returns N numbers in
[0, 1]; with a parameter ``priors`` it also gets the reports of the prior studies, None where there is none.
``stages.reward.rewards.brevity=0.2`` weighs it. A package that cannot be used costs one line, and nothing else.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from radweave.core.errors import InputError

LOGGER: Final = logging.getLogger(__name__)
METHODS: Final = "radweave.methods"
LOSSES: Final = "radweave.losses"
REWARDS: Final = "radweave.rewards"
NEEDED: Final = ("PRESETS", "ABLATIONS")
"""Attributes that no method can be without."""


def outside_methods(own: Collection[str]) -> dict[str, EntryPoint]:
    """The methods of other packages by name; none has the name of one of our ``own``."""
    entries: dict[str, EntryPoint] = {}
    for entry in _entries(METHODS, tuple(sys.path)):
        if not re.fullmatch("[a-z][a-z0-9_]*", entry.name):
            report_unusable(f"{package_of(entry)}: '{entry.name}' cannot name a method: use a-z, 0-9 and _")
        elif entry.name in own or entry.name in entries:
            report_unusable(f"{package_of(entry)}: there is a method '{entry.name}' already; this one is left out")
        else:
            entries[entry.name] = entry
    return entries


def load_outside_method(entry: EntryPoint) -> ModuleType:
    """Import a method's module.

    Raises:
        InputError: if it cannot be imported, or is no method.
    """
    module: ModuleType = _load(entry, "method")
    for name in NEEDED:
        if not isinstance(getattr(module, name, None), Mapping):
            raise InputError(f"{package_of(entry)}: the method has no {name}", field="method", got=entry.name)
    if "tiny" not in module.PRESETS:
        raise InputError(f"{package_of(entry)}: the method has no preset 'tiny'", field="method", got=entry.name)
    return module


def source_of(entry: EntryPoint) -> Path:
    """The file of an entry point's module; only packages above it are imported.

    Raises:
        InputError: if there is none.
    """
    try:
        spec = importlib.util.find_spec(entry.module)
    except Exception as error:  # whatever the package above raises
        raise _unusable(entry, "method", error) from None
    if spec is None or spec.origin is None:
        raise InputError(f"{package_of(entry)}: there is no module '{entry.module}'", field="method", got=entry.name)
    return Path(spec.origin)


def outside_losses(method: str) -> dict[str, EntryPoint]:
    """The losses that other packages add to a method, by name."""
    entries = (entry for entry in _entries(LOSSES, tuple(sys.path)) if entry.name.startswith(f"{method}."))
    return {entry.name.removeprefix(f"{method}."): entry for entry in entries}


def load_loss(entry: EntryPoint) -> Any:
    """Import a loss.

    Raises:
        InputError: if it cannot be imported, or is no ``Term``.
    """
    from radweave.methods.model import Term

    term = _load(entry, "losses")
    if not isinstance(term, Term):
        raise InputError(f"{package_of(entry)}: '{entry.value}' is no Term", field="losses", got=entry.name)
    return term


def outside_rewards() -> dict[str, EntryPoint]:
    """The rewards of other packages by name."""
    return {entry.name: entry for entry in _entries(REWARDS, tuple(sys.path))}


def load_reward(entry: EntryPoint) -> Any:
    """Import a reward.

    Raises:
        InputError: if it cannot be imported, or cannot be called.
    """
    reward = _load(entry, "rewards")
    if not callable(reward):
        raise InputError(f"{package_of(entry)}: '{entry.value}' is no function", field="rewards", got=entry.name)
    return reward


def code_of(entry: EntryPoint) -> dict[str, str]:
    """Identity of the code of an entry point: its package with version, and the SHA-256 of its Python files."""
    file = source_of(entry)
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    digest = sha256()
    for path in files:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(file.parent).as_posix()} {len(data)}\n".encode())
        digest.update(data)
    known = {} if entry.dist is None else {"package": entry.dist.name, "version": entry.dist.version}
    return {**known, "files": digest.hexdigest()}


def package_of(entry: EntryPoint) -> str:
    """Name and version of the package that brings an entry point."""
    return "a package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


@lru_cache(maxsize=8)
def _entries(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The entry points of a group on this import path, in an order that does not depend on it."""
    return tuple(sorted(entry_points(group=group), key=lambda entry: (entry.name, package_of(entry))))


def _load(entry: EntryPoint, field: str) -> Any:
    try:
        return entry.load()
    except Exception as error:  # a package's own faults of any kind
        raise _unusable(entry, field, error) from None


def _unusable(entry: EntryPoint, field: str, error: Exception) -> InputError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return InputError(f"{package_of(entry)} cannot be imported ({reason})", field=field, got=entry.name)


@cache
def report_unusable(line: str) -> None:
    """Say in the log why something of another package is left out, once in a process."""
    LOGGER.warning("%s", line)
