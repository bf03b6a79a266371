"""Count what the code is made of: files, lines, rooms, arrows between them, circles, loose types, words of the pages.

python bench/house.py [TREE ...]                a column for each checkout, the present one where none is given
python bench/house.py --executed [TREE ...]     also the files of the package that a tiny train and a generate run
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "radweave"
SMALL_LINES: Final = 3
"""Functions of at most so many lines of body are counted apart."""


def modules(tree: Path) -> dict[str, Path]:
    """Dotted name -> file of every module of the package."""
    source = tree / "src"
    names = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(files: Mapping[str, Path]) -> set[tuple[str, str]]:
    """Pairs (importing module, imported module), those inside functions and for type checkers too."""
    pairs = set()
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
                pairs |= {(name, target if target in files else node.module) for target in targets}
            elif isinstance(node, ast.Import):
                pairs |= {(name, alias.name) for alias in node.names}
    return {(start, end) for start, end in pairs if end in files and start != end}


def room_of(module: str) -> str:
    """First part of a module's name below the package, or nothing for the package itself."""
    return module.split(".")[1] if "." in module else ""


def circles(pairs: Iterable[tuple[str, str]]) -> list[set[str]]:
    """Strongly connected components of more than one node (Tarjan 1972)."""
    after = defaultdict(set)
    for start, end in pairs:
        after[start].add(end)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for end in sorted(after[node]):
            if end not in index:
                visit(end)
                low[node] = min(low[node], low[end])
            elif end in stack:
                low[node] = min(low[node], index[end])
        if low[node] == index[node]:
            component = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            if len(component) > 1:
                components.append(component)

    sys.setrecursionlimit(10_000)
    for node in sorted(after):
        if node not in index:
            visit(node)
    return components


def floors(pairs: Iterable[tuple[str, str]]) -> int:
    """Length of the longest chain of rooms that import one another; 0 where there is a circle."""
    below = defaultdict(set)
    for start, end in pairs:
        below[start].add(end)
    if circles(pairs):
        return 0
    heights: dict[str, int] = {}

    def height(room: str) -> int:
        if room not in heights:
            heights[room] = 1 + max((height(end) for end in below[room]), default=0)
        return heights[room]

    return max(map(height, list(below)), default=0)


def lines_of(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def words_of(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def counts(tree: Path) -> dict[str, int]:
    """Title -> count, for one checkout."""
    files = modules(tree)
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    whole = "\n".join(texts.values())
    pairs = imports(files)
    rooms = {(room_of(start), room_of(end)) for start, end in pairs if room_of(start) != room_of(end)}
    between = {(start, end) for start, end in rooms if start and end}
    functions = [
        node
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    bodies = [node.end_lineno - node.body[0].lineno + 1 for node in functions if node.end_lineno]
    lengths = [len(text.splitlines()) for text in texts.values()]
    pages = [*tree.glob("README.md"), *(tree / "docs").rglob("*.md")]
    return {
        "Python in src, lines": sum(lengths),
        "Python in src, files": len(files),
        "rooms": len({room_of(name) for name in files} - {""}),
        "floors of rooms (0: a circle)": floors(between),
        "arrows between rooms": len(between),
        "circles of modules": len(circles(pairs)),
        "circles of rooms": len(circles(between)),
        "files over 300 lines": sum(length > 300 for length in lengths),
        "files under 40 lines": sum(length < 40 for length in lengths),
        f"functions of at most {SMALL_LINES} lines": sum(body <= SMALL_LINES for body in bodies),
        "Any": len(re.findall(r"\bAny\b", whole)),
        "dict[str, Any] and the like": len(re.findall(r"\b(?:dict|Mapping)\[str, (?:Any|object)\]", whole)),
        "isinstance(x, No...) in methods": sum(
            len(re.findall(r"isinstance\([^()]*, No[A-Z]\w*\)", text))
            for name, text in texts.items()
            if ".methods" in name
        ),
        "Python in tests, lines": lines_of((tree / "tests").rglob("*.py")),
        "README and docs, words": words_of(pages),
    }


EXECUTED: Final = """
import inspect, os, pathlib, sys
folder, out = sys.argv[1], pathlib.Path(sys.argv[2])
sys.argv = ["radweave", *sys.argv[3:]]
import radweave
source = str(pathlib.Path(radweave.__file__).parent)
files = set()
def started(frame, event, argument):
    # The bodies of a module and of its classes run when it is imported; what counts is a function that was called.
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(source) and code.co_flags & inspect.CO_OPTIMIZED:
        files.add(code.co_filename)
sys.setprofile(started)
from radweave.cli import main
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
out.write_text("\\n".join(sorted(files)))
"""


def executed(tree: Path) -> dict[str, int]:
    """Files whose functions are called by a tiny train of the baseline, and by a generate of one study's image."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}

        def run(*arguments: str) -> int:
            out = folder / "files.txt"
            command = [sys.executable, "-c", EXECUTED, name, str(out), *arguments]
            subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            return len(out.read_text().splitlines())

        run("phantom", "data", "--studies", "40", "--image-size", "64", "--seed", "0")
        small = ["data.image_size=64", "stages.report.epochs=1", "decoding.max_new_tokens=8"]
        train = run("train", "baseline", "data", "--out", "run", *small)
        image = sorted((folder / "data" / "images").rglob("*.png"))[0]
        return {"files run by a train": train, "files run by a generate": run("generate", "run", str(image), "--force")}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, default=[ROOT])
    parser.add_argument("--executed", action="store_true")
    options = parser.parse_args()
    columns = [
        counts(tree.resolve()) | (executed(tree.resolve()) if options.executed else {}) for tree in options.trees
    ]
    for title in columns[0]:
        print(f"{title:36}", *(f"{column.get(title, 0):>9,}" for column in columns))


if __name__ == "__main__":
    main()
