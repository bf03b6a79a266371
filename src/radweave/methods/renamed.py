"""Former names of configuration keys, stages and parts: what an earlier version wrote opens, or is refused by name.

A configuration (YAML, an override, ``config.yaml`` of a run) may use a former key; a note names the present one. Only
methods of this package had these keys: those of other packages are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any, Final

from radweave.core.errors import InputError

LOGGER: Final = logging.getLogger(__name__)

KEYS: Final[Mapping[str, str]] = {
    "stages.eyes": "encoder",
    "stages.*.losses.eyes": "dense",
    "model.dense.speaks": "is_source",
    "model.looks": "descriptors",
    "model.kernels.looks": "descriptors",
}
"""Former key, by its path in an experiment (``*``: any name) -> its present name."""
PARTS: Final[Mapping[str, str]] = {"looks": "descriptors", "kernels.looks": "kernels.descriptors"}
"""Former name of a part in saved weights -> its present name."""
REMOVED: Final[Mapping[str, Sequence[str]]] = {
    "weave": (
        "model.difference",
        "model.cases",
        "model.change",
        "model.writer",
        "model.wording",
        "model.recall",
        "model.recalled_prompt",
        "model.recalled_tokens",
    ),
}
"""Method -> keys of parts that it had. A run that has one is of another model."""
STAGE_SEEDS: Final[Mapping[str, str]] = {"encoder": "eyes"}
"""Stage -> the former name by which it still draws its random numbers: a renamed stage trains to the same weights."""


def rename_keys(config: Mapping[str, Any], *, note: bool) -> dict[str, Any]:
    """A nested configuration with present keys; with ``note`` each former one is named in the log.

    Raises:
        InputError: if a key is there under both names, or of a part that the method no longer has.
    """
    for path in REMOVED.get(str(config.get("method")), ()):
        part, _, key = path.partition(".")
        if key in (config.get(part) or {}):
            raise InputError(
                "the method no longer has this part; use the version of radweave that wrote this", field=path
            )
    return _renamed(config, (), note)


def _renamed(values: Mapping[str, Any], above: tuple[str, ...], note: bool) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for key, value in values.items():
        name = _present((*above, str(key)), note)
        if name in renamed or (name != key and name in values):
            raise InputError("given under its former and its present name", field=".".join((*above, name)))
        # A value that is no record keeps its keys: the paths of the table go through records alone.
        renamed[name] = _renamed(value, (*above, name), note) if isinstance(value, Mapping) else value
    return renamed


def rename_overrides(assignments: Sequence[str]) -> list[str]:
    """Overrides ``path.to.key=value`` by present keys; the log names each former one."""
    return [_renamed_override(text) for text in assignments]


def _renamed_override(text: str) -> str:
    path, equals, value = text.partition("=")
    keys: tuple[str, ...] = ()
    for key in path.split("."):
        keys = (*keys, _present((*keys, key), note=True))
    return f"{'.'.join(keys)}{equals}{value}"


def rename_stages(stages: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a run card by the stages' present names."""
    return rename_keys({"stages": stages}, note=False)["stages"]  # type: ignore[no-any-return]


def rename_parts(_module: object, state: MutableMapping[str, Any], prefix: str, *_: object) -> None:
    """Give saved weights the present names of their parts; a hook of ``torch.nn.Module.load_state_dict``."""
    for former, present in PARTS.items():
        for key in [key for key in state if key.startswith(f"{prefix}{former}.")]:
            state[f"{prefix}{present}{key.removeprefix(prefix + former)}"] = state.pop(key)


def _present(path: tuple[str, ...], note: bool) -> str:
    """The present name of the last key of a path whose other keys have theirs."""
    for former, present in _patterns():
        if len(former) == len(path) and all(key in ("*", name) for key, name in zip(former, path, strict=True)):
            if note:
                _note(".".join(path), ".".join((*path[:-1], present)))
            return present
    return path[-1]


@cache
def _patterns() -> tuple[tuple[tuple[str, ...], str], ...]:
    return tuple((tuple(path.split(".")), name) for path, name in KEYS.items())


@cache
def _note(former: str, present: str) -> None:
    """Once in a process: one command reads a configuration several times."""
    LOGGER.warning("'%s' is now called '%s'", former, present)
