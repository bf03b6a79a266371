"""What the command line asks of this package: read files, score, print, write."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radweave.base.errors import InputError
from radweave.base.figures import can_draw
from radweave.base.json_files import read_json_object, write_json
from radweave.base.places import refuse_existing
from radweave.base.replacing import FolderKind
from radweave.base.storage import write_folder, write_text
from radweave.base.study import TargetText
from radweave.data.dataset import Dataset
from radweave.evaluation.constants import training_reports
from radweave.evaluation.evaluate import Options, evaluate_pairs, wording_beside
from radweave.evaluation.fields import BY_NAME, Fields
from radweave.evaluation.metrics.long_tail import ClassFrequencies, class_frequencies
from radweave.evaluation.pairs import Pair, PairsFile, read_pairs
from radweave.evaluation.protocols import get_protocol, published_protocol
from radweave.evaluation.tables.formats import TextTable, latex_tables, markdown_tables, print_tables
from radweave.evaluation.tables.heads import reliability_plot
from radweave.evaluation.tables.report import result_tables
from radweave.labels import LABELER_OF, Labeler, get_labeler, label_set_of
from radweave.labels.marks import without_marks


def _beside(folder: Path) -> tuple[str, ...] | None:
    record = read_json_object(folder / "evaluation.json")
    return (
        ("tables.md", "tables.tex", "reliability*.png")
        if "runs" in record or {"protocol", "corpus"} <= set(record)
        else None
    )


_OUTPUT = FolderKind("an evaluation", "evaluation.json", _beside)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRequest(Options):
    """The options of ``radweave evaluate``: what is computed, and from which files to where."""

    pairs: tuple[Path, ...]
    protocol: str = "full"
    beside: str = "auto"
    ontology: str = "auto"
    weights: Path | None = None
    train: Path | None = None
    train_labels: Path | None = None
    fields: Fields = BY_NAME
    skip_invalid: bool = False
    without_marks: bool = False
    as_json: bool = False
    out: Path | None = None
    overwrite: bool = False


def ontology_of(name: str, pairs: Iterable[Pair]) -> str:
    """The label set of that name; for "auto" the one for what the pairs are about, radiographs where they do not say.

    Raises:
        InputError: if "auto" is to find one for radiographs and CT at once.
    """
    if name != "auto":
        return name
    found = sorted({pair.modality or "xray" for pair in pairs})
    if len(found) > 1:
        raise InputError("reports on several modalities have no label set in common", field="ontology", got=found)
    return LABELER_OF[found[0]]


def labeler_for(name: str, weights: Path | None = None) -> Labeler | None:
    """The rule-based labeler of a label set, a trained one with its local weights, or None for "none".

    Raises:
        InputError: for a name without one, or weights that cannot be used.
    """
    return None if name == "none" else get_labeler(name, weights=weights)


def train_reports(
    path: Path | None, evaluated: Container[str] = (), target: TargetText | None = None
) -> tuple[str, ...] | None:
    """The reports of a dataset folder's training split, with another ``target`` than that of its import.

    Raises:
        InputError: if it has none, or one of an ``evaluated`` study: floors would be chosen on what they are scored on.
    """
    if path is None:
        return None
    studies = list(Dataset.open(path).aimed(target or "as_imported").studies("train"))
    shared = sum(study.study_id in evaluated for study in studies)
    if shared:
        raise InputError(
            "evaluated studies are in the training split, so that floors would be chosen on what they are scored on",
            file=path,
            field="train",
            got=f"{shared} studies",
            expected="none",
        )
    texts = training_reports(studies)
    if not texts:
        raise InputError("has no training report", file=path)
    return texts


def target_of(pairs: Sequence[Pair]) -> TargetText | None:
    """The text that all of these pairs are about, where they say one; floors are of the same.

    Raises:
        InputError: if they are about several.
    """
    found = {pair.target for pair in pairs}
    if len(found) > 1:
        raise InputError(
            "reports of several texts are not scored together", field="target", got=sorted(map(str, found))
        )
    return next(iter(found), None)


def train_frequencies(path: Path | None, labeler: Labeler | None) -> ClassFrequencies | None:
    """How frequent the labeler's classes are in a dataset folder's training split.

    Raises:
        InputError: if there is no labeler to name the classes, or nothing to count.
    """
    if path is None:
        return None
    if labeler is None:
        raise InputError("needs a labeler", field="train-labels", got="--ontology none")
    return class_frequencies(Dataset.open(path).studies("train"), labeler)


def run_evaluate(request: EvaluateRequest) -> None:
    """Score every file, print tables or JSON, and write the output folder if asked.

    Raises:
        InputError: for a file, protocol or option that cannot be used; nothing is written then.
    """
    if request.out is not None:
        refuse_existing(request.out, overwrite=request.overwrite, ours=_OUTPUT)
    get_protocol(request.protocol)
    files = {name: _read(path, request) for name, path in run_names(request.pairs)}
    ontology = ontology_of(request.ontology, (pair for file in files.values() for pair in file.pairs))
    beside = beside_protocol(request, ontology, {pair.dataset for file in files.values() for pair in file.pairs})
    labeler = labeler_for(ontology, request.weights)
    pairs = [pair for file in files.values() for pair in file.pairs]
    train_texts = train_reports(request.train, {pair.study_id for pair in pairs}, target_of(pairs))
    frequencies = train_frequencies(request.train_labels, labeler)
    results = {
        name: _evaluated(file, request, beside, labeler, train_texts, frequencies) for name, file in files.items()
    }
    tables = result_tables(results)
    if request.out is not None:
        _write(request.out, results, tables, overwrite=request.overwrite)
    if request.as_json:
        print(json.dumps(_as_json(results), ensure_ascii=False, allow_nan=False))
        return
    print_tables(tables)


def _read(path: Path, request: EvaluateRequest) -> PairsFile:
    """The pairs of a file, if asked without the sentences of drafts that hold marks of de-identification."""
    file = read_pairs(path, skip_invalid=request.skip_invalid, fields=request.fields)
    if not request.without_marks:
        return file
    return replace(file, pairs=tuple(replace(pair, hyp=without_marks(pair.hyp)[0]) for pair in file.pairs))


def run_names(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Short names for files: the stem, with as much of the folder as keeps them apart.

    Raises:
        InputError: if a file is given twice.
    """
    if len(set(paths)) < len(paths):
        raise InputError("the same file is given twice", field="pairs")
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [str(path.with_suffix("")) for path in paths]
    return list(zip(names, paths, strict=True))


def beside_protocol(request: EvaluateRequest, ontology: str, datasets: Iterable[str | None] = ()) -> str | None:
    """The protocol shown beside: the full references beside a paper's, a paper's beside the full references."""
    if request.beside == "none":
        return None
    if request.beside != "auto":
        return get_protocol(request.beside).name
    if request.protocol != "full":
        return "full"
    return published_protocol(datasets, "xray" if ontology == "none" else label_set_of(ontology).modality)


def _evaluated(
    file: PairsFile,
    request: EvaluateRequest,
    beside: str | None,
    labeler: Labeler | None,
    train_texts: Sequence[str] | None,
    frequencies: ClassFrequencies | None,
) -> dict[str, Any]:
    evaluation = evaluate_pairs(
        file.pairs,
        request.protocol,
        labeler=labeler,
        train_texts=train_texts,
        frequencies=frequencies,
        options=request,
        left_out=file.left_out,
    )
    result = evaluation.to_json()
    if beside is not None and beside != request.protocol:
        result["beside"] = wording_beside(file.pairs, beside, train_texts=train_texts, options=request)
    return result


def _as_json(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One run's result as it is; several under ``runs``."""
    return next(iter(results.values())) if len(results) == 1 else {"runs": results}


def _write(out: Path, results: dict[str, dict[str, Any]], tables: Sequence[TextTable], *, overwrite: bool) -> None:
    plots = [reliability_plot(result) for result in results.values() if "heads" in result and can_draw()]
    with write_folder(out, overwrite=overwrite, ours=_OUTPUT) as folder:
        write_json(folder / "evaluation.json", _as_json(results))
        for number, plot in enumerate(plots, start=1):
            if plot is not None:
                (folder / ("reliability.png" if len(results) == 1 else f"reliability_{number}.png")).write_bytes(plot)
        write_text(folder / "tables.md", markdown_tables(tables))
        write_text(folder / "tables.tex", latex_tables(tables))
