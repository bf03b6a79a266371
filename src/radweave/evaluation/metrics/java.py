"""Java programs of the pycocoevalcap package, run as children that cannot hang or shift lines.

Only the two jars are used, never the package's own wrappers: those take a line break inside a report for the end of a
line (every later report shifts), and wait for ever when the child dies.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from radweave.base.errors import InputError
from radweave.base.extras import install_line
from radweave.evaluation.pairs import replace_control

_BLANKS = re.compile(r"\s+")
_SENTINEL = "sentinelofradweave"
PTB_TIMEOUT_S = 300.0
# What coco's scorer drops after tokenizing. Lower-casing comes first, so the bracket names in capitals never match and
# "-lrb-" stays in the scores; kept, because the published scores hold it.
_PUNCTUATION = frozenset(["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--"])
_MORE_PUNCTUATION = frozenset(["...", ";"])


@dataclass(frozen=True, slots=True)
class JavaTools:
    """Where Java and the package's folder are."""

    java: str
    package: Path


def find_java_tools() -> JavaTools | str:
    """Find Java and pycocoevalcap, or say in a sentence what is missing."""
    java = shutil.which("java")
    if java is None:
        return "no Java runtime on the path"
    spec = importlib.util.find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        return f"the package pycocoevalcap is not installed: {install_line('meteor')}"
    return JavaTools(java, Path(next(iter(spec.submodule_search_locations))))


def one_line(text: str) -> str:
    """Make a text safe for a protocol of lines: control characters and line breaks become blanks."""
    return _BLANKS.sub(" ", replace_control(text)).strip()


def ptb_tokenize(texts: Sequence[str], timeout_s: float = PTB_TIMEOUT_S) -> list[str]:
    """Tokenize as coco does: Stanford's Treebank tokenizer, lower case, punctuation tokens dropped.

    Bars reach the tokenizer as they stand: "|||" parts fields for METEOR alone.

    Raises:
        InputError: if Java or the package is missing, the time limit passes, or lines do not come back one to one.
    """
    tools = find_java_tools()
    if isinstance(tools, str):
        raise InputError(f"protocol 'ptb' needs Java and pycocoevalcap: {tools}; 'full' works without")
    jar = next(iter(sorted((tools.package / "tokenizer").glob("stanford-corenlp-*.jar"))), None)
    if jar is None:
        raise InputError("protocol 'ptb': the tokenizer's jar is missing from pycocoevalcap")
    command = [tools.java, "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
    lines = [one_line(text) for text in texts]
    try:
        done = subprocess.run(
            [*command, "-preserveLines", "-lowerCase"],
            input="\n".join([*lines, _SENTINEL]) + "\n",
            capture_output=True,
            encoding="utf-8",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"protocol 'ptb': the tokenizer did not finish in {timeout_s:.0f} s") from None
    returned = done.stdout.split("\n")
    if returned and returned[-1] == "":
        returned.pop()
    if done.returncode != 0 or len(returned) != len(lines) + 1 or returned[-1].strip() != _SENTINEL:
        raise InputError(
            "protocol 'ptb': the tokenizer did not give one line per text",
            got=f"{len(returned)} lines, exit status {done.returncode}",
            expected=f"{len(lines) + 1} lines",
        )
    dropped = _PUNCTUATION | _MORE_PUNCTUATION
    return [" ".join(word for word in line.rstrip().split(" ") if word not in dropped) for line in returned[:-1]]
