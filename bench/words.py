"""Count words that a reader needs a glossary for: ``make words``, a part of ``make check``.

    python bench/words.py [PATH ...]

Reports identifiers that are private words of ours where the field has its own, and docstrings and blocks of comments
that begin with a question word instead of a verb or a noun. Exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PRIVATE: Final = frozenset({
    "again", "alike", "asked", "asking", "beside", "door", "eyes", "familiarity", "found", "given", "growing", "hold",
    "joined", "kept", "linked", "looks", "ours", "room", "said", "seat", "seen", "since_prior", "speaks", "stranger",
    "strangers", "testify", "testimony", "theirs", "there", "told", "witness",
})  # fmt: skip
"""Identifiers that name a value by what was done with it, or a thing by a picture. Case does not count."""
QUESTIONS: Final = ("What ", "Whether ", "Where ", "How ", "Who ", "Which ", "Whose ")


def problems(path: Path) -> Iterator[str]:
    """Yield one line for each word of a file, with its place."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    last_comment = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.string.removeprefix("# ").startswith(QUESTIONS) and token.start[0] != last_comment + 1:
                yield f"{name}:{token.start[0]}: comment {token.string[:60]!r}"
            last_comment = token.start[0]
        if token.type == tokenize.NAME and token.string.lower() in PRIVATE:
            yield f"{name}:{token.start[0]}: identifier {token.string!r}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first = node.value.value.strip().partition("\n")[0]
            if first.startswith(QUESTIONS):
                yield f"{name}:{node.lineno}: docstring {first[:60]!r}"


def main(places: list[str]) -> int:
    """Print the problems of all Python files below the places; the package where none is given."""
    folders = [Path(place).resolve() for place in places] or [ROOT / "src" / "radweave"]
    files = [path for place in folders for path in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    lines = [line for path in files for line in problems(path)]
    for line in lines:
        print(line)
    print(f"{len(lines)} words in {len(files)} files")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
