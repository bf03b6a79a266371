"""The viewer's modules as one script: a page that stands alone has no place to load them from.

    bundle("page.js", folder)     # the text of folder/page.js and of whatever it imports

Each module becomes a function that is called once, in the order in which they need each other; what it exports is what
the function returns. Only the forms that our modules use are known.
"""

from __future__ import annotations

import posixpath
import re
from importlib.resources import files
from pathlib import Path
from typing import Final

STATIC: Final = Path(str(files("radweave.viewer"))) / "static"
STYLE: Final = "viewer/viewer.css"
_IMPORT = re.compile(r'^import \{ (?P<names>[^}]+) \} from "(?P<place>\.[^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?P<rest>(?:const|async function|function|class) (?P<name>\w+))", re.MULTILINE)
_OTHER_FORMS = re.compile(r"^(?:import|export)\b|\bimport\(|\bimport\.meta\b", re.MULTILINE)


def bundle(entry: str, *folders: Path) -> str:
    """One script of ``entry`` and its imports, each looked for in the folders and then among the shared modules.

    Raises:
        ValueError: for a module that is not there, imports itself through others, or is written in a form that is not
            known.
    """
    parts: dict[str, str] = {}
    _add(entry, (*folders, STATIC), parts, ())
    return "\n".join(parts.values())


def style() -> str:
    """The viewer's style sheet."""
    return (STATIC / STYLE).read_text(encoding="utf-8")


def _add(name: str, folders: tuple[Path, ...], parts: dict[str, str], above: tuple[str, ...]) -> None:
    if name in parts:
        return
    if name in above:
        raise ValueError(f"{name} imports itself")
    path = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"there is no module {name}")
    text = path.read_text(encoding="utf-8")
    needed = [_place(name, found["place"]) for found in _IMPORT.finditer(text)]
    for other in needed:
        _add(other, folders, parts, (*above, name))
    exported = [found["name"] for found in _EXPORT.finditer(text)]
    text = _IMPORT.sub(lambda found: _taken(name, found), text)
    text = _EXPORT.sub(lambda found: found["rest"], text)
    if _OTHER_FORMS.search(text):
        raise ValueError(f"{name} imports or exports in a form that is not known")
    parts[name] = f"const {_called(name)} = (() => {{\n{text}\nreturn {{ {', '.join(exported)} }};\n}})();"


def _taken(name: str, found: re.Match[str]) -> str:
    """``import { a, b as c } from "./x.js"`` as a line that takes them from what the module gave."""
    names = ", ".join(one.strip().replace(" as ", ": ") for one in found["names"].split(","))
    return f"const {{ {names} }} = {_called(_place(name, found['place']))};"


def _place(name: str, imported: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), imported))


def _called(name: str) -> str:
    """The variable of a module: no other name begins like it."""
    return "$" + re.sub(r"\W", "_", name.removesuffix(".js"))
