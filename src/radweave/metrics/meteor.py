"""METEOR 1.5 as papers report it: Java aligns, the score is computed from its alignment statistics.

Source: Denkowski and Lavie, "Meteor Universal", WMT 2014; options ``-l en -norm`` as in coco's scorer. For each study
the program prints 23 sums: words and function words of both texts, matched content and function words by each of four
matchers, chunks, and matched words. The corpus score is the formula applied to the summed sums, which is not the mean
of the studies' scores; both are given under their own names. Without Java and the jar the rows say unavailable; no
other METEOR stands in for it.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from radweave.core.errors import InputError
from radweave.core.extras import install_line
from radweave.metrics.pairs import replace_control
from radweave.metrics.statistics import ExternalScores, Floats, Statistic, Unavailable, mean_statistic

# Java programs of the pycocoevalcap package, run as children that cannot hang or shift lines.
#
# Only the two jars are used, never the package's own wrappers: those take a line break inside a report for the end of a
# line (every later report shifts), and wait for ever when the child dies.


_BLANKS = re.compile(r"\s+")
_JAVA_SENTINEL = "sentinelofradweave"
PTB_TIMEOUT_S = 300.0
# Tokens that coco's scorer drops after tokenizing. Lower-casing comes first, so the bracket names in capitals never
# match and "-lrb-" stays in the scores; kept, because the published scores hold it.
_PUNCTUATION = frozenset(["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--"])
_MORE_PUNCTUATION = frozenset(["...", ";"])


@dataclass(frozen=True, slots=True)
class JavaTools:
    """Paths of Java and of the package's folder."""

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
    """Make a text one line of a line-based protocol: control characters and line breaks become blanks."""
    return _BLANKS.sub(" ", replace_control(text)).strip()


def ptb_tokenize(texts: Sequence[str], timeout_s: float = PTB_TIMEOUT_S) -> list[str]:
    """Tokenize as coco does: Stanford's Treebank tokenizer, lower case, punctuation tokens dropped.

    Vertical bars are kept: only METEOR reads "|||" as a separator.

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
            input="\n".join([*lines, _JAVA_SENTINEL]) + "\n",
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
    if done.returncode != 0 or len(returned) != len(lines) + 1 or returned[-1].strip() != _JAVA_SENTINEL:
        raise InputError(
            "protocol 'ptb': the tokenizer did not give one line per text",
            got=f"{len(returned)} lines, exit status {done.returncode}",
            expected=f"{len(lines) + 1} lines",
        )
    dropped = _PUNCTUATION | _MORE_PUNCTUATION
    return [" ".join(word for word in line.rstrip().split(" ") if word not in dropped) for line in returned[:-1]]


# English parameters of version 1.5: weight of precision, fragmentation's exponent and weight, weight of content words.
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
# Exact, stem, synonym, paraphrase.
_MATCHER_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])
_NUM_SUMS = 23
VERSION = "METEOR 1.5 -l en -norm"

# The aligner's search grows fast with length; beyond this a report would hold up the whole evaluation.
MAX_WORDS = 5000
_START_S, _PER_PAIR_S = 120.0, 0.5
_SENTINEL = "lungs clear"
_HEAP = "-Xmx2G"


def meteor_value(sums: Floats) -> Floats:
    """METEOR from its sums (..., 23).

        P = sum_i w_i (d m_ci + (1 - d) m_fi) / (d c + (1 - d) f),   R likewise
        F = P R / (a P + (1 - a) R),   score = F (1 - g (chunks / matches)^b)

    with c content words, f function words, m matches of matcher i.
    """
    sums = np.asarray(sums, dtype=np.float64)
    hyp_words, ref_words, hyp_function, ref_function = (sums[..., i] for i in range(4))
    matches = sums[..., 4:20].reshape(*sums.shape[:-1], 4, 4)
    hyp_match = _DELTA * matches[..., 0] + (1.0 - _DELTA) * matches[..., 2]
    ref_match = _DELTA * matches[..., 1] + (1.0 - _DELTA) * matches[..., 3]
    hyp_weight = _DELTA * (hyp_words - hyp_function) + (1.0 - _DELTA) * hyp_function
    ref_weight = _DELTA * (ref_words - ref_function) + (1.0 - _DELTA) * ref_function
    chunks, hyp_matched, ref_matched = (sums[..., i] for i in (20, 21, 22))
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = hyp_match @ _MATCHER_WEIGHTS / hyp_weight
        recall = ref_match @ _MATCHER_WEIGHTS / ref_weight
        mean = precision * recall / (_ALPHA * precision + (1.0 - _ALPHA) * recall)
        fragmentation = chunks / ((hyp_matched + ref_matched) / 2.0)
    score = mean * (1.0 - _GAMMA * fragmentation**_BETA)
    return np.asarray(np.where(np.isfinite(score), score, 0.0))


def meteor_statistics(hyps: Sequence[str], refs: Sequence[Sequence[str]]) -> ExternalScores | Unavailable:
    """METEOR's statistics for N hypotheses with their references, or the reason why there are none."""
    tools = find_java_tools()
    if isinstance(tools, str):
        return Unavailable(tools)
    longest = max(len(text.split()) for text in (*hyps, *(ref for group in refs for ref in group)))
    if longest > MAX_WORDS:
        return Unavailable(f"a report of {longest} words; METEOR's aligner is run up to {MAX_WORDS}")
    sums = _alignment_sums(tools, hyps, refs, timeout_s=_START_S + _PER_PAIR_S * len(hyps))
    if isinstance(sums, Unavailable):
        return sums
    each = meteor_value(sums)
    statistics = {"METEOR": Statistic(sums, meteor_value, each), "METEOR_segment_mean": mean_statistic(each)}
    return ExternalScores(statistics, VERSION)


def _alignment_sums(
    tools: JavaTools, hyps: Sequence[str], refs: Sequence[Sequence[str]], timeout_s: float
) -> Floats | Unavailable:
    """Ask the aligner for every study's sums (N, 23), and for those of a test pair last: its score is known."""
    jar = tools.package / "meteor" / "meteor-1.5.jar"
    if not jar.is_file():
        return Unavailable("the jar meteor-1.5.jar is missing from pycocoevalcap")
    lines = [score_line(hyp, group) for hyp, group in zip(hyps, refs, strict=True)]
    lines.append(score_line(_SENTINEL, [_SENTINEL]))
    try:
        # subprocess.run kills the child on time-out and on any error, and reads while it writes.
        done = subprocess.run(
            [tools.java, _HEAP, "-jar", str(jar), "-", "-", "-stdio", "-l", "en", "-norm"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            encoding="utf-8",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Unavailable(f"METEOR did not finish in {timeout_s:.0f} s")
    except OSError as error:
        return Unavailable(f"Java could not be started: {error.strerror or error}")
    rows = [line.split() for line in done.stdout.splitlines()]
    if len(rows) != len(lines) or any(len(row) != _NUM_SUMS for row in rows):
        return Unavailable(f"METEOR gave {len(rows)} lines for {len(lines)} texts (exit status {done.returncode})")
    try:
        sums = np.array(rows, dtype=np.float64)
    except ValueError:
        return Unavailable("METEOR gave something that is no number")
    # A full match in one chunk has no fragmentation: its chunk is not counted, neither for the study nor in sums.
    hyp_words, ref_words, chunks, hyp_matched, ref_matched = (sums[:, i] for i in (0, 1, 20, 21, 22))
    sums[(hyp_matched == hyp_words) & (ref_matched == ref_words) & (chunks == 1), 20] = 0.0
    if meteor_value(sums[-1]) != 1.0:
        return Unavailable("METEOR's lines do not belong to the texts that were sent")
    return sums[:-1]


def score_line(hyp: str, refs: Sequence[str]) -> str:
    """One pair as the program reads it: fields separated by "|||"."""
    return " ||| ".join(["SCORE", *(one_line(text.replace("|||", " ")) for text in (*refs, hyp))])
