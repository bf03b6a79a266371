"""``radweave compare``: systems against the first one, over the test set or over seeds, and the judge if asked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radweave.base.errors import InputError
from radweave.base.json_files import write_json
from radweave.base.places import refuse_existing
from radweave.base.replacing import record_kind
from radweave.base.storage import write_folder, write_text
from radweave.evaluation.commands.evaluate import labeler_for, ontology_of, run_names
from radweave.evaluation.evaluate import Options, evaluate_pairs
from radweave.evaluation.fields import BY_NAME, Fields
from radweave.evaluation.judge import judge, judge_items, summarise
from radweave.evaluation.pairs import Pair, read_pairs
from radweave.evaluation.protocols import ProtocolRecord, get_protocol
from radweave.evaluation.records import ClinicalKey, number_or_none
from radweave.evaluation.result import Evaluation
from radweave.evaluation.seeds import DDOF, TEST, compare_seeds
from radweave.evaluation.significance import Difference, compare, compared_statistics, corrected, marked_rule
from radweave.evaluation.systems import floor_pairs
from radweave.evaluation.tables.comparison import comparison_tables
from radweave.evaluation.tables.formats import latex_tables, markdown_tables, print_tables

FORMAT = "radweave-comparison"
FORMAT_VERSION = 1
_OUTPUT = record_kind("a comparison", "comparison.json", ("format", "kind", "comparisons"), ("tables.md", "tables.tex"))
SEED_FILES = ("*.jsonl", "*.csv", "*.json", "*/predictions.jsonl")
JUDGE_KEY = "RADWEAVE_JUDGE_KEY"


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """The options of ``radweave compare``."""

    runs: tuple[Path, ...]
    protocol: str = "full"
    ontology: str = "auto"
    weights: Path | None = None
    fields: Fields = BY_NAME
    floors: bool = False
    seeds: bool = False
    meteor: bool = True
    resamples: int = 1000
    seed: int = 0
    judge: str = ""
    judge_model: str = ""
    judge_limit: int | None = None
    both_orders: bool = False
    as_json: bool = False
    out: Path | None = None
    overwrite: bool = False


def run_compare(request: CompareRequest) -> None:
    """Compare, print tables or JSON, and write the output folder if asked.

    Raises:
        InputError: if the runs are not about the same studies with the same references, or an option cannot be used.
    """
    if request.out is not None:
        refuse_existing(request.out, overwrite=request.overwrite, ours=_OUTPUT)
    if request.floors and request.seeds:
        raise InputError("floors have no seeds", field="floors", got="with --seeds", expected="one of them")
    if len(request.runs) < 2 and not request.floors:
        raise InputError("a comparison needs two runs", got=len(request.runs))
    get_protocol(request.protocol)
    record = _over_seeds(request) if request.seeds else _over_studies(request)
    tables = comparison_tables(record)
    if request.out is not None:
        with write_folder(request.out, overwrite=request.overwrite, ours=_OUTPUT) as folder:
            write_json(folder / "comparison.json", record)
            write_text(folder / "tables.md", markdown_tables(tables))
            write_text(folder / "tables.tex", latex_tables(tables))
    if request.as_json:
        print(json.dumps(record, ensure_ascii=False, allow_nan=False))
        return
    print_tables(tables)


def _evaluation(pairs: Sequence[Pair], request: CompareRequest) -> Evaluation:
    return evaluate_pairs(
        pairs,
        request.protocol,
        labeler=labeler_for(ontology_of(request.ontology, pairs), request.weights),
        options=Options(meteor=request.meteor, floors=False, resamples=0, seed=request.seed),
    )


def same_references(name: str, first: Sequence[Pair], other: Sequence[Pair]) -> None:
    """Check that two runs were given the same reference for every study they share.

    Raises:
        InputError: naming the first study where they differ.
    """
    refs = {pair.study_id: pair.refs for pair in first}
    for pair in other:
        if pair.study_id in refs and refs[pair.study_id] != pair.refs:
            raise InputError(
                "the reference differs from that of the first run", file=name, field="ref", got=f"study {pair.study_id}"
            )


def _over_studies(request: CompareRequest) -> dict[str, Any]:
    names = run_names(request.runs)
    pairs: dict[str, Sequence[Pair]] = {name: read_pairs(path, fields=request.fields).pairs for name, path in names}
    baseline = names[0][0]
    if request.floors:
        pairs |= floor_pairs(pairs[baseline], request.seed)
    for name in list(pairs)[1:]:
        same_references(name, pairs[baseline], pairs[name])
    evaluations = {name: _evaluation(found, request) for name, found in pairs.items()}
    found: list[tuple[str, Difference]] = []
    for name in list(pairs)[1:]:
        differences = compare(evaluations[baseline], evaluations[name], resamples=request.resamples, seed=request.seed)
        found.extend((name, difference) for difference in differences)
    # One family: every metric of every pair of runs that was tested here.
    family = corrected([difference for _, difference in found])
    record: dict[str, Any] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "kind": "studies",
        "protocol": evaluations[baseline].protocol.to_json(),
        "studies": len(evaluations[baseline].study_ids),
        "baseline": baseline,
        "resampling": {"resamples": request.resamples, "seed": request.seed, "tests": len(family)},
        "comparisons": [
            {"run": name, **asdict(difference)} for (name, _), difference in zip(found, family, strict=True)
        ],
    }
    if request.judge:
        record["judge"] = {name: _judged(pairs[baseline], pairs[name], request) for name, _ in names[1:]}
    return record


def _judged(a: Sequence[Pair], b: Sequence[Pair], request: CompareRequest) -> dict[str, Any]:
    """Let the judge compare the reports of two runs; B is the later one."""
    from radweave.evaluation.chat import HttpChat

    if not request.judge_model:
        raise InputError("the judge needs a model", field="judge-model")
    chat = HttpChat(request.judge, request.judge_model, os.environ.get(JUDGE_KEY) or None)
    other = {pair.study_id: pair.hyp for pair in b}
    studies = [(pair.study_id, pair.refs[0], pair.hyp, other[pair.study_id]) for pair in a]
    items = judge_items(studies, seed=request.seed, both_orders=request.both_orders, limit=request.judge_limit)

    def progress(done: int) -> None:
        print(f"\rjudged {done} of {len(items)}", end="", file=sys.stderr, flush=True)

    judgements = judge(items, chat, progress=progress)
    print(file=sys.stderr)
    return summarise(judgements, judge_name=chat.name, seed=request.seed, both_orders=request.both_orders)


def seed_files(folder: Path) -> list[Path]:
    """The pairs files of a folder: ``*.jsonl``, or ``*.csv``, ``*.json``, or ``*/predictions.jsonl`` of run folders.

    Raises:
        InputError: if it is no folder or holds none.
    """
    if not folder.is_dir():
        raise InputError("not a folder of pairs files, one per seed", file=folder)
    for pattern in SEED_FILES:
        if files := sorted(folder.glob(pattern)):
            return files
    raise InputError("holds no pairs file", file=folder, expected=" or ".join(SEED_FILES))


def _over_seeds(request: CompareRequest) -> dict[str, Any]:
    if len(request.runs) != 2:
        raise InputError("--seeds compares two folders", got=len(request.runs))
    if request.judge:
        raise InputError("the judge compares two runs, not folders of seeds", field="judge")
    protocol: ProtocolRecord | None = None
    scores: list[list[dict[str, float | None]]] = []
    reference: Sequence[Pair] = ()
    files = [seed_files(folder) for folder in request.runs]
    for group in files:
        scores.append([])
        for path in group:
            pairs = read_pairs(path, fields=request.fields).pairs
            reference = reference or pairs
            if {pair.study_id for pair in pairs} != {pair.study_id for pair in reference}:
                raise InputError("not about the same studies as the first file", file=path, field="study_id")
            same_references(str(path), reference, pairs)
            evaluation = _evaluation(pairs, request)
            protocol = evaluation.protocol
            scores[-1].append(_corpus_values(evaluation))
    comparisons = compare_seeds(scores[0], scores[1])
    assert protocol is not None, "a folder of seeds holds a file"
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "kind": "seeds",
        "protocol": protocol.to_json(),
        "studies": len(reference),
        "test": TEST,
        "std_ddof": DDOF,
        "runs": [folder.name for folder in request.runs],
        "seeds": [
            [str(path.relative_to(folder)) for path in group] for folder, group in zip(request.runs, files, strict=True)
        ],
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }


def _corpus_values(evaluation: Evaluation) -> dict[str, float | None]:
    """Corpus values of all tested metrics, and precision and recall of the protocol's own clinical average."""
    values = {name: statistic.corpus() for name, statistic in compared_statistics(evaluation).items()}
    marked = marked_rule(evaluation)
    for measure in ("precision", "recall"):
        key = ClinicalKey(marked.uncertain, "all", marked.average, measure)
        if key in evaluation.clinical_statistics:
            values[f"CE_{marked.average}_{measure}"] = evaluation.clinical_statistics[key].corpus()
    return {name: number_or_none(value) for name, value in values.items()}
