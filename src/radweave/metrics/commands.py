"""Commands ``evaluate``, ``compare`` and ``label``, and their Python functions: read files, score, print, write."""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self, get_args, overload

from radweave.core.errors import InputError, printable
from radweave.core.escaping import csv_line
from radweave.core.figures import can_draw
from radweave.core.json_files import read_json_object, read_jsonl, write_json
from radweave.core.ontology import CLASSES
from radweave.core.replacing import FileKind, FolderKind, record_kind
from radweave.core.storage import refuse_existing, write_aside, write_folder, write_text
from radweave.core.study import LabelState, TargetText
from radweave.data.dataset import Dataset
from radweave.data.tables import read_rows
from radweave.labels import LABELER_OF, Labeler, get_labeler, label_set_of
from radweave.labels.comparisons import without_marks
from radweave.labels.labeler import Mention
from radweave.labels.places import PlaceLabeler, get_place_labeler
from radweave.metrics.catalogue import FURTHER_METRICS, SUITES
from radweave.metrics.evaluate import Options, evaluate_pairs, floor_pairs, second_wording
from radweave.metrics.floors import training_reports
from radweave.metrics.further import Models, requested_metrics, unmet_requests, without_language_models
from radweave.metrics.judge import endpoint, judge, judge_items, summarise
from radweave.metrics.long_tail import ClassFrequencies, class_frequencies
from radweave.metrics.pairs import (
    BY_NAME,
    HYP_FIELDS,
    REF_FIELDS,
    STUDY_FIELDS,
    TEXT_FIELDS,
    Fields,
    Pair,
    PairsFile,
    check_pairs,
    check_text,
    field_of,
    pair_up,
    read_pairs,
)
from radweave.metrics.phrases import phrases_page
from radweave.metrics.priors import with_priors
from radweave.metrics.protocols import EvalProtocol, get_protocol, published_protocol
from radweave.metrics.records import ClinicalKey, number_or_none
from radweave.metrics.result import Evaluation
from radweave.metrics.result_tables import comparison_summary, comparison_tables, result_tables, summary_tables
from radweave.metrics.significance import (
    DDOF,
    TEST,
    Difference,
    compare,
    compare_seeds,
    compared_statistics,
    corrected,
    marked_rule,
    refuse_other_priors,
)
from radweave.metrics.summary import suite_of
from radweave.metrics.tables import TextTable, latex_tables, markdown_tables, print_tables, reliability_plot


def _evaluation_files(folder: Path) -> tuple[str, ...] | None:
    record = read_json_object(folder / "evaluation.json")
    return (
        ("tables.md", "tables.tex", "reliability*.png")
        if "runs" in record or {"protocol", "corpus"} <= set(record)
        else None
    )


UNAVAILABLE: Final = "unavailable: "
MORE = "all tables: --all; files: --out FOLDER; for programs: --json"


def _more(out: Path | None) -> str:
    """A line on the rest of a result: its files, or the options that show it."""
    return MORE if out is None else f"files: {printable(out)}; all tables: --all"


_EVALUATION_OUTPUT = FolderKind("an evaluation", "evaluation.json", _evaluation_files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest(Options):
    """The options that ``evaluate`` and ``compare`` share: which scores, how they are shown, and where they go."""

    protocol: str = "full"
    ontology: str = "auto"
    weights: Path | None = None
    fields: Fields = BY_NAME
    suite: str = "papers"
    show_all: bool = False
    as_json: bool = False
    out: Path | None = None
    overwrite: bool = False

    def with_suite(self) -> Self:
        """The same with the further scores of its suite.

        Raises:
            InputError: for a protocol, suite or score that does not exist.
        """
        get_protocol(self.protocol)
        of_suite = (key for key in SUITES[suite_of(self.suite)] if key in FURTHER_METRICS)
        requested_metrics(self.scores, self.folders)
        return replace(self, scores=tuple(dict.fromkeys((*self.scores, *of_suite))))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRequest(ScoringRequest):
    """The options of ``radweave evaluate``: what is computed, and from which files to where."""

    pairs: tuple[Path, ...]
    second: str = "auto"
    train: Path | None = None
    train_labels: Path | None = None
    priors: Path | None = None
    skip_invalid: bool = False
    without_marks: bool = False


def ontology_of(name: str, pairs: Iterable[Pair]) -> str:
    """The label set of that name; for "auto" the one for what the pairs are about, radiographs where they do not say.

    Raises:
        InputError: if "auto" is to find one for radiographs and CT at once.
    """
    if name != "auto":
        return name
    modalities = sorted({pair.modality or "xray" for pair in pairs})
    if len(modalities) > 1:
        raise InputError("reports on several modalities have no label set in common", field="ontology", got=modalities)
    return LABELER_OF[modalities[0]]


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


def read_prior_reports(pairs: Sequence[Pair], path: Path) -> tuple[Pair, ...]:
    """The pairs with the reports of their patients' prior studies from a dataset folder, and with the patients.

    Raises:
        InputError: if it knows no prior of any of them.
    """
    made = with_priors(pairs, Dataset.open(path).aimed(target_of(pairs) or "as_imported").studies())
    if all(pair.prior_report is None for pair in made):
        raise InputError("knows no prior with a report of any of these studies", file=path, field="priors")
    return made


def target_of(pairs: Sequence[Pair]) -> TargetText | None:
    """The text that all of these pairs are about, where they say one; floors are of the same.

    Raises:
        InputError: if they are about several.
    """
    targets = {pair.target for pair in pairs}
    if len(targets) > 1:
        raise InputError(
            "reports of several texts are not scored together", field="target", got=sorted(map(str, targets))
        )
    return next(iter(targets), None)


def train_frequencies(path: Path | None, labeler: Labeler | None) -> ClassFrequencies | None:
    """Frequencies of the labeler's classes in a dataset folder's training split.

    Raises:
        InputError: if there is no labeler to name the classes, or nothing to count.
    """
    if path is None:
        return None
    if labeler is None:
        raise InputError("needs a labeler", field="train-labels", got="--ontology none")
    return class_frequencies(Dataset.open(path).studies("train"), labeler)


def run_evaluate(request: EvaluateRequest) -> int:
    """Score every file, print tables or JSON, and write the output folder if asked.

    Returns the number of scores and weights that were asked for by name and are not there; standard error names them.

    Raises:
        InputError: for a file, protocol or option that cannot be used; nothing is written then.
    """
    if request.out is not None:
        refuse_existing(request.out, overwrite=request.overwrite, kind=_EVALUATION_OUTPUT)
    named, request, models = request.scores, request.with_suite(), request.models()
    files = {name: _read(path, request) for name, path in run_names(request.pairs)}
    if request.priors is not None:
        files = {
            name: replace(file, pairs=read_prior_reports(file.pairs, request.priors)) for name, file in files.items()
        }
    ontology = ontology_of(request.ontology, (pair for file in files.values() for pair in file.pairs))
    second = second_protocol(request, ontology, {pair.dataset for file in files.values() for pair in file.pairs})
    labeler = labeler_for(ontology, request.weights or request.folders.get(ontology))
    pairs = [pair for file in files.values() for pair in file.pairs]
    train_texts = train_reports(request.train, {pair.study_id for pair in pairs}, target_of(pairs))
    frequencies = train_frequencies(request.train_labels, labeler)
    results = {
        name: _evaluated(file, request, models, second, labeler, train_texts, frequencies)
        for name, file in files.items()
    }
    tables = result_tables(results)
    if request.out is not None:
        _write(request.out, results, tables, overwrite=request.overwrite)
    if request.as_json:
        print(json.dumps(_as_json(results), ensure_ascii=False, allow_nan=False))
    else:
        print_tables(tables if request.show_all else summary_tables(results))
        if not request.show_all:
            print(_more(request.out))
    unavailable = {
        key: score["unavailable"]
        for result in results.values()
        for key, score in result["corpus"].items()
        if "unavailable" in score
    }
    return _say_unmet(named, request, unavailable)


def _say_unmet(named: Sequence[str], request: ScoringRequest, unavailable: Mapping[str, str]) -> int:
    """Name on standard error what was asked for by name and has no value; return the number."""
    missing = {key: reason for key, reason in unavailable.items() if reason.startswith(UNAVAILABLE)}
    unmet = unmet_requests(named, request.folders, missing)
    for name, reason in unmet.items():
        print(f"error: {name}: asked for and not there: {reason.removeprefix(UNAVAILABLE)}", file=sys.stderr)
    return len(unmet)


def _read(path: Path, request: EvaluateRequest) -> PairsFile:
    """The pairs of a file, if asked without the sentences of drafts that hold marks of de-identification."""
    file = read_pairs(path, skip_invalid=request.skip_invalid, fields=request.fields)
    if not request.without_marks:
        return file
    return replace(file, pairs=tuple(map(_without_marks, file.pairs)))


def _without_marks(pair: Pair) -> Pair:
    text, removed = without_marks(pair.hyp)
    return replace(pair, hyp=text, as_written=False, marks_removed=pair.marks_removed + len(removed))


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


def second_protocol(request: EvaluateRequest, ontology: str, datasets: Iterable[str | None] = ()) -> str | None:
    """The second protocol that is shown: the full references beside a paper's, or a paper's beside the full ones."""
    if request.second == "none":
        return None
    if request.second != "auto":
        return get_protocol(request.second).name
    if request.protocol != "full":
        return "full"
    return published_protocol(datasets, "xray" if ontology == "none" else label_set_of(ontology).modality)


def _evaluated(
    file: PairsFile,
    request: EvaluateRequest,
    models: Models,
    second: str | None,
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
        models=models,
        left_out=file.left_out,
    )
    result = evaluation.to_json(suite=suite_of(request.suite))
    if second is not None and second != request.protocol:
        result["beside"] = second_wording(file.pairs, second, train_texts=train_texts, options=request)
    return result


def _as_json(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One run's result as it is; several under ``runs``."""
    return next(iter(results.values())) if len(results) == 1 else {"runs": results}


def _write(out: Path, results: dict[str, dict[str, Any]], tables: Sequence[TextTable], *, overwrite: bool) -> None:
    plots = [reliability_plot(result) for result in results.values() if "heads" in result and can_draw()]
    with write_folder(out, overwrite=overwrite, kind=_EVALUATION_OUTPUT) as folder:
        write_json(folder / "evaluation.json", _as_json(results))
        for number, plot in enumerate(plots, start=1):
            if plot is not None:
                (folder / ("reliability.png" if len(results) == 1 else f"reliability_{number}.png")).write_bytes(plot)
        write_text(folder / "tables.md", markdown_tables(tables))
        write_text(folder / "tables.tex", latex_tables(tables))


# ``radweave compare``: systems against the first one, over the test set or over seeds, and the judge on request.

FORMAT = "radweave-comparison"
FORMAT_VERSION = 1
_COMPARISON_OUTPUT = record_kind(
    "a comparison", "comparison.json", ("format", "kind", "comparisons"), ("tables.md", "tables.tex")
)
SEED_FILES = ("*.jsonl", "*.csv", "*.json", "*/predictions.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest(ScoringRequest):
    """The options of ``radweave compare``. ``floors`` are systems that the first run is tested against.

    The endpoint of ``judge`` compares ``judge_limit`` studies of two runs, all without a limit; 0 if it is for GREEN
    and CRIMSON alone.
    """

    runs: tuple[Path, ...]
    floors: bool = False
    seeds: bool = False
    judge_limit: int | None = None
    both_orders: bool = False
    phrases: int = 0
    images: Path | None = None


def run_compare(request: CompareRequest) -> int:
    """Compare, print tables or JSON, and write the output folder if asked.

    Returns the number of scores and weights that were asked for by name and are not there; standard error names them.

    Raises:
        InputError: if the runs are not about the same studies with the same references, or an option cannot be used.
    """
    if request.out is not None:
        refuse_existing(request.out, overwrite=request.overwrite, kind=_COMPARISON_OUTPUT)
    if request.floors and request.seeds:
        raise InputError("floors have no seeds", field="floors", got="with --seeds", expected="one of them")
    if len(request.runs) < 2 and not request.floors:
        expected = "two files of drafts, or one with --floors"
        raise InputError("a comparison needs two runs", got=len(request.runs), expected=expected)
    if request.phrases and (request.out is None or request.seeds):
        raise InputError("phrases are a page of single runs in the output folder", field="phrases", expected="--out")
    if request.images is not None and not request.phrases:
        raise InputError("images stand on the page of phrases", field="--images", expected="--phrases")
    images = None if request.images is None else _images_of(request.images, request)
    named, request, models = request.scores, request.with_suite(), request.models()
    record = _over_seeds(request, models) if request.seeds else _over_studies(request, models)
    tables = comparison_tables(record)
    if request.out is not None:
        with write_folder(request.out, overwrite=request.overwrite, kind=_COMPARISON_OUTPUT) as folder:
            write_json(folder / "comparison.json", record)
            write_text(folder / "tables.md", markdown_tables(tables))
            write_text(folder / "tables.tex", latex_tables(tables))
            if request.phrases:
                runs = {name: read_pairs(path, fields=request.fields).pairs for name, path in run_names(request.runs)}
                labeler = _labeler_of(request, [pair for pairs in runs.values() for pair in pairs])
                write_text(folder / "phrases.html", phrases_page(runs, request.phrases, labeler, images))
    if request.as_json:
        print(json.dumps(record, ensure_ascii=False, allow_nan=False))
    else:
        print_tables(tables if request.show_all else comparison_summary(record, suite_of(request.suite)))
        if not request.show_all:
            print(_more(request.out))
    return _say_unmet(named, request, record["unavailable"])


def _images_of(path: Path, request: CompareRequest) -> Dataset:
    """The data set at ``path``, refused before anything is scored if it has none of the compared studies."""
    dataset = Dataset.open(path)
    compared = {pair.study_id for pair in read_pairs(request.runs[0], fields=request.fields).pairs}
    if not any(study.study_id in compared for study in dataset.studies()):
        raise InputError("the data set has none of the compared studies", file=path, field="--images")
    return dataset


def _labeler_of(request: CompareRequest, pairs: Sequence[Pair]) -> Labeler | None:
    """The labeler that the request names, or that the reports' modality asks for."""
    ontology = ontology_of(request.ontology, pairs)
    return labeler_for(ontology, request.weights or request.folders.get(ontology))


def _evaluation(pairs: Sequence[Pair], request: CompareRequest, models: Models) -> Evaluation:
    """The scores of one run, without its floors and intervals."""
    labeler = _labeler_of(request, pairs)
    options = replace(request, floors=False, resamples=0)
    return evaluate_pairs(pairs, request.protocol, labeler=labeler, options=options, models=models)


def _unavailable(evaluations: Iterable[Evaluation]) -> dict[str, str]:
    """Further scores that a run has no value of, with the reason."""
    lacking = {
        key: score.unavailable
        for evaluation in evaluations
        for key, score in evaluation.corpus.items()
        if score.unavailable is not None
    }
    return {key: lacking[key] for key in FURTHER_METRICS if key in lacking}


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


def _over_studies(request: CompareRequest, models: Models) -> dict[str, Any]:
    names = run_names(request.runs)
    pairs: dict[str, Sequence[Pair]] = {name: read_pairs(path, fields=request.fields).pairs for name, path in names}
    baseline = names[0][0]
    if request.floors:
        pairs |= floor_pairs(pairs[baseline], request.seed)
        if len(pairs) < 2:
            raise InputError("has no floor: the predictions carry none, and it has one study", file=names[0][1])
    for name in list(pairs)[1:]:
        same_references(name, pairs[baseline], pairs[name])
    # Language models are asked about runs, not about floors.
    scores, folders = without_language_models(request.scores, request.folders)
    of_floors = replace(request, scores=scores, folders=folders)
    runs = dict(names)
    evaluations = {
        name: _evaluation(own, request if name in runs else of_floors, models) for name, own in pairs.items()
    }
    compared: list[tuple[str, Difference]] = []
    for name in list(pairs)[1:]:
        differences = compare(evaluations[baseline], evaluations[name], resamples=request.resamples, seed=request.seed)
        compared.extend((name, difference) for difference in differences)
    # One family: every metric of every pair of runs that was tested here.
    family = corrected([difference for _, difference in compared])
    record: dict[str, Any] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "kind": "studies",
        "protocol": evaluations[baseline].protocol.to_json(),
        "studies": len(evaluations[baseline].study_ids),
        "baseline": baseline,
        "resampling": {"resamples": request.resamples, "seed": request.seed, "tests": len(family)},
        "comparisons": [
            {"run": name, **asdict(difference)} for (name, _), difference in zip(compared, family, strict=True)
        ],
        "drafts": {name: evaluation.drafts.decoder for name, evaluation in evaluations.items() if name in runs},
        "unavailable": _unavailable(evaluations.values()),
    }
    if request.judge and request.judge_limit != 0:
        record["judge"] = {name: _judged(pairs[baseline], pairs[name], request) for name, _ in names[1:]}
    return record


def _judged(a: Sequence[Pair], b: Sequence[Pair], request: CompareRequest) -> dict[str, Any]:
    """Let the judge compare the reports of two runs; B is the later one."""
    chat = endpoint(request.judge, request.judge_model, allow_remote=request.allow_remote)
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


def _over_seeds(request: CompareRequest, models: Models) -> dict[str, Any]:
    if len(request.runs) != 2:
        raise InputError("--seeds compares two folders", got=len(request.runs))
    if request.judge and request.judge_limit != 0:
        expected = "--judge-limit 0 where it counts errors alone"
        raise InputError("the judge compares two runs, not folders of seeds", field="judge", expected=expected)
    first: Evaluation | None = None
    unavailable: dict[str, str] = {}
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
            evaluation = _evaluation(pairs, request, models)
            unavailable = _unavailable([evaluation]) | unavailable
            first = evaluation if first is None else first
            refuse_other_priors(first, evaluation)
            scores[-1].append(_corpus_values(evaluation))
    comparisons = compare_seeds(scores[0], scores[1])
    assert first is not None, "a folder of seeds holds a file"
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "kind": "seeds",
        "protocol": first.protocol.to_json(),
        "studies": len(reference),
        "test": TEST,
        "std_ddof": DDOF,
        "tests": len(comparisons),
        "runs": [folder.name for folder in request.runs],
        "seeds": [
            [str(path.relative_to(folder)) for path in group] for folder, group in zip(request.runs, files, strict=True)
        ],
        "comparisons": [asdict(comparison) for comparison in comparisons],
        "unavailable": unavailable,
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


# ``radweave label`` and ``radweave.label``: findings of report texts.

# The coding of the published CheXpert labeler's files.
_CSV_CODES = {LabelState.POSITIVE: "1", LabelState.NEGATIVE: "0", LabelState.UNCERTAIN: "-1", LabelState.BLANK: ""}
_BATCH = 512
_SHOWN_ERRORS = 10


@dataclass(frozen=True, slots=True)
class LabelRequest:
    """The options of ``radweave label``; empty field names are found by name."""

    reports: Path
    ontology: str = "chexpert14"
    weights: Path | None = None
    text_field: str = ""
    id_field: str = ""
    places: bool = False
    out: Path | None = None
    overwrite: bool = False


def _is_labels(path: Path) -> bool:
    """True for a file that ``label`` writes."""
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
        if first in {csv_line(["study_id", *classes]) for classes in CLASSES.values()}:
            return True
        return all({"study_id", "labels", "spans"} == set(row) - {"places"} for _, row in read_jsonl(path))
    except (InputError, ValueError):
        return False


_LABELS_OUTPUT = FileKind("a file of labels", _is_labels)


@overload
def label(  # type: ignore[overload-overlap]  # a mapping iterates over its ids too
    texts: Mapping[str, str] | Path, *, ontology: str = ..., weights: Path | str | None = ...
) -> dict[str, dict[str, LabelState]]: ...
@overload
def label(
    texts: Iterable[str], *, ontology: str = ..., weights: Path | str | None = ...
) -> list[dict[str, LabelState]]: ...
def label(
    texts: Iterable[str] | Mapping[str, str] | Path, *, ontology: str = "chexpert14", weights: Path | str | None = None
) -> list[dict[str, LabelState]] | dict[str, dict[str, LabelState]]:
    """Read the findings of report texts: ``label(["No effusion."])[0]["Pleural Effusion"] == "negative"``.

    Args:
        texts: a list of texts, a mapping of study id to text, or the ``Path`` of a CSV, TSV, JSON or JSONL file.
        ontology: "chexpert14", "ct18", "nih14" by rules, "chexbert" or "radbert18" by a network.
        weights: local folder of the network's weights and tokenizer.

    Returns:
        Class -> state ("positive", "negative", "uncertain", "blank" for not mentioned) of each text: a list in the
        order of a list, else a mapping by study id. ``get_labeler`` gives the words that a state rests on too.

    Raises:
        InputError: for texts that are none, a name that no labeler has, or a file that cannot be read.
    """
    labeler = get_labeler(ontology, weights=None if weights is None else Path(weights))
    if isinstance(texts, (str, bytes)):
        expected = "a list of texts, a mapping of id to text, or a Path"
        raise InputError("one string is no list of texts", field="texts", got=type(texts).__name__, expected=expected)
    if isinstance(texts, (Mapping, Path)):
        named = dict(read_texts(texts)) if isinstance(texts, Path) else texts
        return dict(zip(map(str, named), _states(labeler, list(named.values())), strict=True))
    if not isinstance(texts, Iterable):
        raise InputError("not texts", field="texts", got=type(texts).__name__, expected="a list of texts")
    return _states(labeler, list(texts))


def _states(labeler: Labeler, texts: Sequence[str]) -> list[dict[str, LabelState]]:
    labelled = labeler.label([check_text(text, f"texts[{number}]") for number, text in enumerate(texts)])
    return [{name: mention.state for name, mention in mentions.items()} for mentions in labelled]


def run_label(request: LabelRequest) -> int:
    """Label every report; bad rows are named on standard error, counted and left out. Returns their number.

    Raises:
        InputError: for a file that cannot be read at all, or without the field asked for.
    """
    labeler = get_labeler(request.ontology, weights=request.weights)
    places = get_place_labeler(request.ontology) if request.places else None
    if request.out is not None:
        refuse_existing(request.out, overwrite=request.overwrite, kind=_LABELS_OUTPUT)
        if request.out.suffix not in (".jsonl", ".csv"):
            raise InputError("unknown kind of file", file=request.out, expected=".jsonl or .csv")
        if places is not None and request.out.suffix == ".csv":
            raise InputError("a table of labels has no places", file=request.out, expected=".jsonl")
    refused: list[InputError] = []
    labelled = _labelled(request, labeler, refused)
    if request.out is None:
        for line in _jsonl_lines(labelled, places):
            print(line, end="")
    else:
        is_table = request.out.suffix == ".csv"
        lines = _csv_lines(labelled, labeler.classes) if is_table else _jsonl_lines(labelled, places)
        with write_aside(request.out) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            file.writelines(lines)
    for error in refused[:_SHOWN_ERRORS]:
        print(f"error: {error}", file=sys.stderr)
    if refused:
        print(f"{len(refused)} rows left out", file=sys.stderr)
    if request.out is not None:
        print(f"labels: {printable(request.out)}", file=sys.stderr)
    return len(refused)


def read_texts(
    path: Path,
    *,
    text_field: str = "",
    id_field: str = "",
    known: Sequence[str] = TEXT_FIELDS,
    refused: list[InputError] | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield ``(study id, text)`` of the rows of a file; a row without an id field has its number.

    A further row of a study, as of another view, with the same text or none is passed over.

    Args:
        path: ``.csv``, ``.tsv``, ``.json``, or JSON lines under any other name.
        text_field: the field of the text; found by name if not given.
        id_field: the field of the id; likewise.
        known: the names among which the field of the text is found.
        refused: gets what is wrong with a row, which is then left out.

    Raises:
        InputError: for a file that cannot be read, and for a row where nobody takes what is ``refused``.
    """
    text_of: dict[str, str] = {}
    for number, (place, row) in enumerate(read_rows(path), start=1):
        if number == 1:
            text_field = field_of(row, text_field, known, "text", place)
            id_field = id_field or next((name for name in STUDY_FIELDS if name in row), "")
        try:
            study = str(place.get("line", number)) if not id_field else row.get(id_field)
            if row.get(text_field) in (None, "", text_of.get(str(study))) and str(study) in text_of:
                continue
            text = check_text(row.get(text_field), text_field, **place)
            yield _checked_id(study, id_field, text_of, place), text
            text_of[str(study)] = text
        except InputError as error:
            if refused is None:
                raise
            refused.append(error)


def _checked_id(study: Any, field: str, used: Container[str], place: dict[str, Any]) -> str:
    if not isinstance(study, (str, int)) or isinstance(study, bool) or str(study) == "":
        raise InputError("not a study id", field=field, got=type(study).__name__, **place)
    if str(study) in used:
        raise InputError("study id comes twice", field=field, got=study, **place)
    return str(study)


def _labelled(
    request: LabelRequest, labeler: Labeler, refused: list[InputError]
) -> Iterator[tuple[str, str, dict[str, Mention]]]:
    """Yield (study id, text, mentions) in the file's order, labelling in batches."""
    rows = read_texts(request.reports, text_field=request.text_field, id_field=request.id_field, refused=refused)
    while batch := list(islice(rows, _BATCH)):
        studies, texts = zip(*batch, strict=True)
        yield from zip(studies, texts, labeler.label(texts), strict=True)


def _jsonl_lines(labelled: Iterable[tuple[str, str, dict[str, Mention]]], places: PlaceLabeler | None) -> Iterator[str]:
    for study, text, mentions in labelled:
        record: dict[str, Any] = {
            "study_id": study,
            "labels": {name: str(mention.state) for name, mention in mentions.items()},
            "spans": {name: list(mention.span) for name, mention in mentions.items() if mention.span is not None},
        }
        if places is not None:
            located = places.label([text])[0]
            record["places"] = {name: [one.to_json() for one in own] for name, own in located.items() if own}
        yield json.dumps(record, ensure_ascii=False) + "\n"


def _csv_lines(labelled: Iterable[tuple[str, str, dict[str, Mention]]], classes: Sequence[str]) -> Iterator[str]:
    """Rows in the coding of the CheXpert labeler: 1, 0, -1 for uncertain, empty for not mentioned."""
    yield csv_line(["study_id", *classes])
    for study, _, mentions in labelled:
        yield csv_line([study, *(_CSV_CODES[mentions[name].state] for name in classes)])


# Scores in one call, from texts as users have them: lists, mappings by id, files.
#
# score(["lungs are clear."], ["the lungs are clear."]).corpus["BLEU_4"].value
# score("predictions.csv", protocol="r2gen_iu_60", train="iu")
# score("drafts.json", "references.csv")


Texts = Iterable[str] | Mapping[str, str] | Path | str
References = Texts | Iterable[Iterable[str]] | Mapping[str, Iterable[str]]


def score(
    drafts: Texts,
    references: References | None = None,
    *,
    protocol: str | EvalProtocol = "full",
    ontology: str = "auto",
    weights: Path | str | None = None,
    train: Path | str | None = None,
    target: TargetText | None = None,
    fields: Fields = BY_NAME,
    options: Options | None = None,
) -> Evaluation:
    """Score generated reports against their references.

    Args:
        drafts: a list of texts, a mapping of study id to text, or the path of a CSV, TSV, JSON or JSONL file.
        references: the same of the references; of each study one text or several. None where ``drafts`` is a pairs
            file, which holds both.
        protocol: name or record of the scoring protocol.
        ontology: whose findings are compared: "chexpert14", "ct18", "nih14", "chexbert", "radbert18" or "none"; "auto"
            goes by what the reports are about, radiographs where they do not say.
        weights: local folder of a labeler that is a network.
        train: dataset folder whose training reports make floors, and the vocabulary of a protocol that has one.
        target: the text that was to be written, where it is another than that of the import; "both" has findings and
            impression under headings, which are scored by section too. None for what a pairs file says.
        fields: which fields of a file have the id, the draft and the reference; found by name if not given.
        options: resamples, seed, METEOR and what else is computed.

    Returns:
        The evaluation: ``corpus`` has the scores with 95 % intervals, ``clinical`` the findings, ``floors`` what a
        system that looks at nothing would have scored, ``warnings()`` what a reader must not overlook.

    Raises:
        InputError: for texts that are none, ids that differ, an empty reference, or a name that does not exist.
    """
    pairs = _pairs(drafts, references, fields)
    if target is not None:
        if target not in get_args(TargetText):
            raise InputError("no such text", field="target", got=target, expected=", ".join(get_args(TargetText)))
        pairs = tuple(replace(pair, target=target) for pair in pairs)
    of = None if train is None else Path(train)
    texts = train_reports(of, {pair.study_id for pair in pairs}, target_of(pairs))
    labeler = labeler_for(ontology_of(ontology, pairs), None if weights is None else Path(weights))
    return evaluate_pairs(pairs, protocol, labeler=labeler, train_texts=texts, options=options)


def _pairs(drafts: Texts, references: References | None, fields: Fields) -> tuple[Pair, ...]:
    if references is None:
        if not isinstance(drafts, (str, Path)):
            expected = "texts, or the path of a file that holds both as drafts"
            raise InputError("there is nothing to compare with", field="references", got="None", expected=expected)
        return read_pairs(Path(drafts), fields=fields).pairs
    hyps = _by_id(drafts, "drafts", fields.study, fields.hyp, HYP_FIELDS)
    refs = _by_id(references, "references", fields.study, fields.ref, REF_FIELDS)
    if isinstance(drafts, (str, Path, Mapping)) or isinstance(references, (str, Path, Mapping)):
        return pair_up(_one_each(hyps), refs)
    if len(hyps) != len(refs):
        raise InputError(
            "as many references are needed as drafts", field="references", got=len(refs), expected=len(hyps)
        )
    return check_pairs(
        Pair(study, hyp, (ref,) if isinstance(ref, str) else ref)
        for (study, hyp), ref in zip(_one_each(hyps).items(), refs.values(), strict=True)
    )


def _by_id(
    texts: Any, what: str, id_field: str, text_field: str, known: Sequence[str]
) -> dict[str, str | tuple[str, ...]]:
    """Texts by study id; those of a list are numbered from 1."""
    if isinstance(texts, (str, Path)):
        names = (*known, *TEXT_FIELDS)
        return dict(read_texts(Path(texts), text_field=text_field, id_field=id_field, known=names))
    if isinstance(texts, Mapping):
        for key in texts:
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise InputError("not a study id", field=what, got=type(key).__name__, expected="a string or a number")
        return {str(key): _text(value, what) for key, value in texts.items()}
    if isinstance(texts, Iterable) and not isinstance(texts, bytes):
        return {str(number): _text(value, what) for number, value in enumerate(texts, start=1)}
    expected = "a list of texts, a mapping of id to text, or a path"
    raise InputError("not texts", field=what, got=type(texts).__name__, expected=expected)


def _text(value: object, what: str) -> str | tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(check_text(item, what) for item in value)
    return check_text(value, what)


def _one_each(hyps: Mapping[str, str | tuple[str, ...]]) -> dict[str, str]:
    return {study: check_text(hyp, "drafts") for study, hyp in hyps.items()}
