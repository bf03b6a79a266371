"""``radweave evaluate``, ``compare``, ``label`` and ``submission``.

The parameters of each verb have the names of its request's fields, so that all of them pass on together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from radweave.cli.options import MAX_RESAMPLES, MAX_SEED, MAX_STUDIES, AllowRemote
from radweave.core.ontology import LABEL_SETS, NETWORKS

LABELERS = f"{', '.join(LABEL_SETS)} (rule-based), {', '.join(NETWORKS)} (with --weights)"
Ontology = Annotated[str, typer.Option(help=f"Labeler: {LABELERS}, none; auto goes by the reports' modality.")]
Weights = Annotated[Path | None, typer.Option(help="Local folder with a trained labeler's weights and tokenizer.")]
NamedWeights = Annotated[
    list[str] | None,
    typer.Option(
        "--weights",
        help="NAME=FOLDER of local weights (radgraph, chexbert, ...), a .toml file of these, or a labeler's folder.",
    ),
]
StudyField = Annotated[str, typer.Option("--study", help="Field or column of the id; found by name if not given.")]
HypField = Annotated[str, typer.Option("--hyp", help="Field of the generated report; found by name if not given.")]
RefField = Annotated[str, typer.Option("--ref", help="Field of the reference report; found by name if not given.")]
Suite = Annotated[str, typer.Option(help="Scores on the screen: papers, rexrank, vlm3d or all.")]
ShowAll = Annotated[bool, typer.Option("--all", help="Print every table.")]
Protocol = Annotated[str, typer.Option(help="Scoring protocol; a wrong name lists them.")]
Meteor = Annotated[bool, typer.Option("--meteor/--no-meteor", help="METEOR, if Java is there.")]
Scores = Annotated[
    list[str] | None, typer.Option("--score", help="A further score to compute; a wrong name lists them.")
]
Cache = Annotated[Path | None, typer.Option(help="Folder that keeps what encoders read, for the next time.")]
Judge = Annotated[
    str,
    typer.Option(
        help="OpenAI-compatible endpoint for --score GREEN, CRIMSON, RadFact, and as judge of runs; it gets reports."
    ),
]
JudgeModel = Annotated[str, typer.Option(help="The endpoint's model.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=MAX_SEED)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
_FIELDS = ("study", "hyp", "ref")


def _request(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request that scores, from the values of a verb's options."""
    from radweave.metrics.pairs import Fields
    from radweave.metrics.weights import read_weights

    fields = Fields(**{name: options.pop(name) for name in _FIELDS})
    named = read_weights(options.pop("named_weights") or ())
    scores = tuple(options["scores"] or ())
    return options | {"fields": fields, "scores": scores, "weights": named.labeler, "folders": named.folders}


def evaluate(
    pairs: Annotated[
        list[Path], typer.Argument(help="Pairs files (study_id, hyp, ref or refs), one per run: .csv, .json or .jsonl.")
    ],
    protocol: Protocol = "full",
    second: Annotated[
        str, typer.Option("--beside", help="A second protocol to show beside; 'none' for none.")
    ] = "auto",
    ontology: Ontology = "auto",
    named_weights: NamedWeights = None,
    train: Annotated[Path | None, typer.Option(help="Dataset folder whose training reports make baselines.")] = None,
    train_labels: Annotated[
        Path | None,
        typer.Option(help="Dataset folder whose training labels say which classes are frequent, which rare."),
    ] = None,
    priors: Annotated[
        Path | None, typer.Option(help="Dataset folder that knows the patients' prior studies: floors, and change.")
    ] = None,
    suite: Suite = "papers",
    show_all: ShowAll = False,
    meteor: Meteor = True,
    study: StudyField = "",
    hyp: HypField = "",
    ref: RefField = "",
    scores: Scores = None,
    cache: Cache = None,
    judge: Judge = "",
    judge_model: JudgeModel = "",
    allow_remote: AllowRemote = False,
    skip_invalid: Annotated[bool, typer.Option("--skip-invalid", help="Leave bad lines out and count them.")] = False,
    without_marks: Annotated[
        bool, typer.Option("--without-marks", help="Leave sentences with XXXX, ___ out of the drafts first.")
    ] = False,
    second_opinions: Annotated[
        bool, typer.Option("--second-opinion", help="Score with rouge-score, sacrebleu too.")
    ] = False,
    resamples: Annotated[
        int, typer.Option(help="Bootstrap resamples; 0 for no intervals.", min=0, max=MAX_RESAMPLES)
    ] = 1000,
    seed: Seed = 0,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Folder for evaluation.json, tables.md and tables.tex.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output folder.")] = False,
) -> None:
    """Score generated reports against their references."""
    options = dict(locals())
    from radweave.metrics.commands import EvaluateRequest, run_evaluate

    if run_evaluate(EvaluateRequest(**_request(options) | {"pairs": tuple(pairs)})):
        raise typer.Exit(2)


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Pairs files (.csv, .json, .jsonl) of the same studies; others against the first."),
    ],
    protocol: Protocol = "full",
    ontology: Ontology = "auto",
    named_weights: NamedWeights = None,
    study: StudyField = "",
    hyp: HypField = "",
    ref: RefField = "",
    suite: Suite = "papers",
    show_all: ShowAll = False,
    floors: Annotated[
        bool, typer.Option("--floors", help="Against its floors too: those that come with the first run, shuffled.")
    ] = False,
    seeds: Annotated[bool, typer.Option("--seeds", help="Two folders, each with one pairs file per seed.")] = False,
    meteor: Meteor = True,
    resamples: Annotated[int, typer.Option(help="Resamples of each test.", min=1, max=MAX_RESAMPLES)] = 1000,
    seed: Seed = 0,
    scores: Scores = None,
    cache: Cache = None,
    judge: Judge = "",
    judge_model: JudgeModel = "",
    allow_remote: AllowRemote = False,
    judge_limit: Annotated[
        int | None, typer.Option(help="Judge so many studies, drawn at random; 0 for none.", min=0, max=MAX_STUDIES)
    ] = None,
    both_orders: Annotated[bool, typer.Option("--both-orders", help="Judge every study in both orders.")] = False,
    phrases: Annotated[
        int, typer.Option(help="Also write phrases.html: so many studies with matched phrases marked.", min=0, max=1000)
    ] = 0,
    images: Annotated[
        Path | None,
        typer.Option(help="Dataset folder; its images of the studies, which are patients', stand in phrases.html."),
    ] = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Folder for comparison.json, tables.md and tables.tex.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output folder.")] = False,
) -> None:
    """Test which of two or more systems is better, on the same studies or over seeds."""
    options = dict(locals())
    from radweave.metrics.commands import CompareRequest, run_compare

    if run_compare(CompareRequest(**_request(options) | {"runs": tuple(runs)})):
        raise typer.Exit(2)


def label(
    reports: Annotated[Path, typer.Argument(help="Reports as .jsonl, .json or .csv.")],
    ontology: Annotated[str, typer.Option(help=f"Labeler: {LABELERS}.")] = "chexpert14",
    weights: Weights = None,
    text_field: Annotated[
        str, typer.Option("--text", help="Field or column of the text; found by name if not given.")
    ] = "",
    id_field: StudyField = "",
    places: Annotated[
        bool, typer.Option("--places", help="Also side, zone and severity of each finding, by rules (not in a .csv).")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where to write, .jsonl or .csv; standard output if not given.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output file.")] = False,
) -> None:
    """Read findings from report texts with the rule-based labeler."""
    options = dict(locals())
    from radweave.metrics.commands import LabelRequest, run_label

    refused = run_label(LabelRequest(**options))
    if refused:
        raise typer.Exit(2)


def submission(
    leaderboard: Annotated[str, typer.Argument(help="rexrank or vlm3d.")],
    predictions: Annotated[Path, typer.Argument(help="Drafts: .jsonl, .json or .csv with study_id and hyp.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    studies: Annotated[
        Path | None, typer.Option(help="What is reported on: ReXrank's JSON file; for VLM3D the folder of volumes.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write drafts in the form that a leaderboard reads."""
    options = dict(locals())
    from radweave.metrics.submissions import SubmissionRequest, run_submission

    reports = run_submission(SubmissionRequest(**options))
    empty = sum(not text.strip() for text in reports.values())
    print(f"{out}: {len(reports)} reports" + (f", {empty} of them empty" if empty else ""))
