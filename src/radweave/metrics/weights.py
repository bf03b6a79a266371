"""Weights of models that scores need, by name: what a user gets, from where, under which licence.

    radweave evaluate drafts.jsonl --weights chexbert=/models/chexbert --weights radgraph=/models/radgraph
    radweave evaluate drafts.jsonl --weights weights.toml      # the same once in a file: chexbert = "/models/chexbert"

Nothing is downloaded. A score whose folder is not named has no value, and its row says what to get.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from radweave.core.errors import InputError
from radweave.core.ontology import NETWORKS

WeightsName = Literal["radgraph", "chexbert", "bertscore", "radcliq", "rate-ner", "biolord", "green", "crimson", "srr"]


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights that a score needs.

    Attributes:
        name: in ``--weights NAME=FOLDER``.
        title: name of the model.
        files: content of the folder.
        source: where its authors publish it.
        licence: the terms that they state.
        size: of the download.
    """

    name: WeightsName
    title: str
    files: str
    source: str
    licence: str
    size: str

    @property
    def line(self) -> str:
        """One line on what to get, for a score that lacks it."""
        return (
            f"needs {self.title}: --weights {self.name}=FOLDER with {self.files}"
            f" ({self.source}; licence: {self.licence}; {self.size})"
        )


# Sizes are those of the published files, or the number of parameters times the bytes of each.
WEIGHTS: Mapping[WeightsName, Weights] = {
    weights.name: weights
    for weights in (
        Weights(
            "radgraph",
            "RadGraph",
            "config.json, weights.th, vocabulary/ and encoder/",
            "PhysioNet radgraph 1.0.0, or radgraph.tar.gz of StanfordAIMI/RRG_scorers",
            "PhysioNet Credentialed Health Data License; MIT for the radgraph package",
            "about 0.4 GB",
        ),
        Weights(
            "chexbert",
            "CheXbert",
            "chexbert.pth and vocab.txt of bert-base-uncased",
            "github.com/stanfordmlgroup/CheXbert, or StanfordAIMI/RRG_scorers",
            "Stanford Academic Software License",
            "0.4 GB or more",
        ),
        Weights(
            "bertscore",
            "the text encoder of BERTScore",
            "model.safetensors, config.json, tokenizer files of distilroberta-base, and for the rescaled score"
            " rescale_baseline/en/distilroberta-base.tsv of the bert-score package",
            "distilbert/distilroberta-base",
            "Apache-2.0",
            "0.3 GB",
        ),
        Weights(
            "radcliq",
            "the coefficients of RadCliQ-v0",
            "radcliq_v0.json; the published ones are in pickles, which are not read",
            "github.com/rajpurkarlab/CXR-Report-Metric",
            "MIT",
            "a few kB",
        ),
        Weights(
            "rate-ner",
            "RaTE-NER-Deberta",
            "model.safetensors, config.json and tokenizer files",
            "Angelakeke/RaTE-NER-Deberta",
            "as its page states",
            "about 0.7 GB",
        ),
        Weights(
            "biolord",
            "BioLORD-2023-C",
            "model.safetensors, config.json and tokenizer files",
            "FremyCompany/BioLORD-2023-C",
            "IHTSDO and NLM licences for BioLORD-2023",
            "about 0.4 GB",
        ),
        Weights(
            "green",
            "GREEN's language model",
            "model-*.safetensors, config.json, tokenizer files and if wanted prompt.txt; or an endpoint that serves it"
            " (--judge URL --judge-model NAME)",
            "StanfordAIMI/GREEN-radllama2-7b",
            "as its page states",
            "about 14 GB",
        ),
        Weights(
            "crimson",
            "a language model at an endpoint for CRIMSON (--judge URL --judge-model NAME); if wanted its prompt",
            "prompt.txt",
            "CRIMSONScore/medgemma-4b-it-crimson",
            "Health AI Developer Foundations terms of MedGemma",
            "about 9 GB",
        ),
        Weights(
            "srr",
            "SRR-BERT",
            "model.safetensors, config.json, tokenizer files and the *mapping.json of its classes",
            "StanfordAIMI/SRR-BERT-Leaves-with-Statuses, mapping of the RadEval package",
            "as its page states",
            "about 0.4 GB",
        ),
    )
}
"""By name, in the order of the scores."""
assert tuple(WEIGHTS) == get_args(WeightsName)


@dataclass(frozen=True, slots=True)
class Named:
    """The folders that a user named: of a trained labeler without a name, and by name."""

    labeler: Path | None
    folders: Mapping[str, Path]


def read_weights(values: Sequence[str]) -> Named:
    """The folders of ``--weights``: ``NAME=FOLDER``, a ``.toml`` file of such names, or the folder of a labeler.

    A relative path of a file counts from the file's folder. A name that comes twice has the later folder.

    Raises:
        InputError: for a name that no weights have, or a file that is no table of folders.
    """
    labeler: Path | None = None
    folders: dict[str, Path] = {}
    for value in values:
        name, mark, folder = value.partition("=")
        if mark and "/" not in name:
            folders[_known(name, None)] = Path(folder).expanduser()
        elif value.endswith(".toml"):
            folders |= _from_file(Path(value))
        else:
            labeler = Path(value)
    return Named(labeler, folders)


def _known(name: str, file: Path | None) -> str:
    known = (*WEIGHTS, *(network for network in NETWORKS if network not in WEIGHTS))
    if name not in known:
        raise InputError("no weights of this name", file=file, field="weights", got=name, expected=", ".join(known))
    return name


def _from_file(path: Path) -> dict[str, Path]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"not a readable table of folders: {error}", file=path, expected='lines NAME = "FOLDER"'
        ) from None
    folders = {}
    for name, folder in table.items():
        if not isinstance(folder, str):
            raise InputError("not a folder", file=path, field=name, got=type(folder).__name__, expected="a text")
        folders[_known(name, path)] = path.parent / Path(folder).expanduser()
    return folders
