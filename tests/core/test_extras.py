"""Extras: one list that fits pyproject.toml, one line that installs what is missing, and imports that are declared."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from typing import get_args

import pytest

from radweave.core.errors import InputError
from radweave.core.extras import EXTRAS, install_line, missing, refuse_without
from radweave.engine.board import BoardKind
from radweave.workstation.database import Database
from tests.toys import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FOR_DEVELOPERS = {"dev", "docs"}
MODULES = {
    "pillow": "PIL", "scikit-learn": "sklearn", "pyyaml": "yaml", "pynrrd": "nrrd", "python-gdcm": "gdcm",
    "faiss-cpu": "faiss", "argon2-cffi": "argon2",
}  # fmt: skip
"""Of packages whose module is not called like them."""
BY_NAME = {
    "pylibjpeg": "pydicom finds its decoders",
    "pylibjpeg-openjpeg": "pydicom's decoder of JPEG 2000",
    "pyjpegls": "pydicom's decoder of JPEG-LS",
    "accelerate": "transformers loads quantized weights with it",
    "bitsandbytes": "transformers loads quantized weights with it",
    "tensorboard": "torch.utils.tensorboard writes with it",
    "wandb": "imported by its name in engine/board.py",
    "python-multipart": "fastapi reads uploads with it",
    "psycopg": "sqlalchemy's driver",
    "pycocoevalcap": "its jars are run, its code is not",
}
"""Packages that no import of ours names, and who needs them."""
BROUGHT = {"triton": "torch's CUDA wheels bring it", "urllib3": "requests brings it"}
"""Modules of packages that need no declaring, and who brings them."""


def package(requirement: str) -> str:
    return re.split(r"[\[<>=! ;]", requirement, maxsplit=1)[0].lower()


def module(name: str) -> str:
    return MODULES.get(name, name.replace("-", "_"))


def imported() -> dict[str, set[str]]:
    """Top-level module of others -> the files of ours that import it."""
    result: dict[str, set[str]] = {}
    for path in (ROOT / "src/radweave").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for name in names_of(node):
                if name not in sys.stdlib_module_names and name != "radweave":
                    result.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return result


def names_of(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.split(".")[0]]
    return []


def test_imports_and_declared_dependencies_agree() -> None:
    result = imported()
    needed = {package(line) for line in PROJECT["dependencies"]}
    extras = {package(line) for extra, lines in PROJECT["optional-dependencies"].items() for line in lines
              if extra not in FOR_DEVELOPERS}  # fmt: skip
    declared = {module(name) for name in needed | extras} | set(BROUGHT)
    assert {name: files for name, files in result.items() if name not in declared} == {}
    unused = {name for name in needed if module(name) not in result and name not in BY_NAME}
    assert unused == set()
    assert not set(BY_NAME) & {name for name in needed | extras if module(name) in result}, (
        "these are imported after all"
    )


def test_extras_equal_those_of_pyproject() -> None:
    declared = {
        extra: tuple(module(package(line)) for line in lines)
        for extra, lines in PROJECT["optional-dependencies"].items()
        if extra not in FOR_DEVELOPERS
    }
    assert dict(EXTRAS) == declared


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_extra_is_refused_with_its_install_command(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radweave.core.extras.find_spec", lambda name: None if name == EXTRAS[extra][-1] else object())
    assert missing(extra) == EXTRAS[extra][-1:]
    with pytest.raises(InputError) as refused:
        refuse_without(extra, "the thing", field="--thing")
    message = f"the thing needs {EXTRAS[extra][-1]}, which is not installed: pip install 'radweave[{extra}]'"
    assert str(refused.value) == f"field '--thing': {message}"
    assert install_line(extra) in str(refused.value)
    monkeypatch.setattr("radweave.core.extras.find_spec", lambda name: object())
    refuse_without(extra, "the thing")


def test_every_extra_has_a_refusal() -> None:
    asks = {"refuse_without", "not_installed", "install_line"}
    message = {
        node.args[0].value
        for path in (ROOT / "src/radweave").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in asks
        and isinstance(node.args[0], ast.Constant)
    }  # fmt: skip
    # A board asks by its own name: tests/engine/test_board.py.
    assert message | set(get_args(BoardKind)) == set(EXTRAS)


def test_postgres_without_its_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radweave.core.extras.find_spec", lambda name: None if name == "psycopg" else object())
    with pytest.raises(InputError, match=r"--database.*needs psycopg.*pip install 'radweave\[postgres\]'"):
        Database("postgresql+psycopg://nobody@127.0.0.1/nothing")


def test_install_commands_are_written_in_one_module() -> None:
    others = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "src/radweave").rglob("*.py")
        if re.search(r"radweave\[[a-z]", path.read_text("utf-8")) and path.name != "extras.py"
    }
    assert others == set()
