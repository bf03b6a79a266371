"""Scores in one call, from texts as users have them: lists, mappings by id, files.

score(["lungs are clear."], ["the lungs are clear."]).corpus["BLEU_4"].value
score("predictions.csv", protocol="r2gen_iu_60", train="iu")
score("drafts.json", "references.csv")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from radweave.base.errors import InputError
from radweave.base.study import TargetText
from radweave.evaluation.commands.evaluate import labeler_for, ontology_of, target_of, train_reports
from radweave.evaluation.commands.label import read_texts
from radweave.evaluation.evaluate import Options, evaluate_pairs
from radweave.evaluation.fields import BY_NAME, HYP_FIELDS, REF_FIELDS, TEXT_FIELDS, Fields
from radweave.evaluation.pairs import Pair, check_pairs, check_text, pair_up, read_pairs
from radweave.evaluation.protocols import EvalProtocol
from radweave.evaluation.result import Evaluation

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
        return {_id(key, what): _text(value, what) for key, value in texts.items()}
    if isinstance(texts, Iterable) and not isinstance(texts, bytes):
        return {str(number): _text(value, what) for number, value in enumerate(texts, start=1)}
    expected = "a list of texts, a mapping of id to text, or a path"
    raise InputError("not texts", field=what, got=type(texts).__name__, expected=expected)


def _id(key: object, what: str) -> str:
    if not isinstance(key, (str, int)) or isinstance(key, bool):
        raise InputError("not a study id", field=what, got=type(key).__name__, expected="a string or a number")
    return str(key)


def _text(value: object, what: str) -> str | tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(check_text(item, what) for item in value)
    return check_text(value, what)


def _one_each(hyps: Mapping[str, str | tuple[str, ...]]) -> dict[str, str]:
    return {study: check_text(hyp, "drafts") for study, hyp in hyps.items()}
