"""Named scoring protocols: everything that decides a score, in one record with a hash.

In this field the protocol moves scores more than the model does, so numbers of different hashes never share a column.
``full`` is the default: whole references, nothing cut, no unknown words, our own Treebank-like tokens. The others are
what papers did, kept to compare with them.
"""

from __future__ import annotations

import difflib
import html
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

from radweave.core.config import Config, Count, Tokens
from radweave.core.errors import InputError
from radweave.core.storage import sha256_json
from radweave.core.study import Modality
from radweave.data.targets import clean_r2gen_iu, clean_r2gen_mimic, clean_r2gengpt_mimic

# Named text rules of the papers: how a report is cleaned and split before it is scored.
#
# Each rule is written from the described behaviour, with its oddities, because the oddities are in the published
# numbers. Tokens are handed on as one string joined by blanks: the coco scorers split it again, BLEU and CIDEr on any
# blank and ROUGE-L on every single blank, and that difference is part of the protocols too.


CleanerName = Literal[
    "none",
    "lower",
    "dots",
    "r2gen_iu",
    "r2gen_mimic",
    "r2gengpt_mimic",
    "r2gengpt_output",
    "promptmrg_output",
    "region_prefix",
    "vlm3d_reference",
    "vlm3d_output",
]
TokenizerName = Literal["none", "words", "ptb_like", "ptb_coco"]

UNKNOWN_WORD = "<unk>"
# A private-use character stands for <unk> while a cleaner runs, which would strip its brackets.
_UNKNOWN_MARK = "\ue000"


def r2gengpt_output(text: str) -> str:
    """Treat generated text as R2GenGPT does: up to the end mark, without unknown-word marks, else untouched."""
    return text.split("</s>")[0].strip().replace(UNKNOWN_WORD, "")


def promptmrg_output(text: str) -> str:
    """Treat generated text as PromptMRG does; the blank at the end is one more token for ROUGE-L."""
    return (text + " ").replace(". ", " . ").replace(" - ", "-")


def dots(text: str) -> str:
    """Set full stops off as tokens, squeeze blanks, nothing else (as RGRG and CvT2DistilGPT2 do)."""
    return re.sub(" +", " ", text.replace(".", " ."))


_REGION_PREFIX = re.compile(r"The region \d+ is [^:]*:\s*")


def region_prefix(text: str) -> str:
    """Drop "The region k is <name>: " as Reg2RG does before it scores."""
    return _REGION_PREFIX.sub("", text)


def vlm3d_reference(text: str) -> str:
    """Treat a reference as VLM3D's scorer does: line breaks vanish, so that words join, and full stops lose blanks."""
    return text.replace("\n", "").replace(" . ", ".").replace(" .", ".")


def vlm3d_output(text: str) -> str:
    """Treat generated text as VLM3D's scorer does: like a reference, after end mark, quotes and underscores went."""
    for mark in ("<|eot_id|>", '"', "_"):
        text = text.replace(mark, "")
    return vlm3d_reference(text)


_CLEANERS: dict[CleanerName, Callable[[str], str]] = {
    "none": str,
    "lower": str.lower,
    "dots": dots,
    "r2gen_iu": clean_r2gen_iu,
    "r2gen_mimic": clean_r2gen_mimic,
    "r2gengpt_mimic": clean_r2gengpt_mimic,
    "r2gengpt_output": r2gengpt_output,
    "promptmrg_output": promptmrg_output,
    "region_prefix": region_prefix,
    "vlm3d_reference": vlm3d_reference,
    "vlm3d_output": vlm3d_output,
}


def clean(text: str, cleaner: CleanerName) -> str:
    """Apply a named cleaner; a generated ``<unk>`` survives it as one word."""
    if cleaner == "r2gengpt_output" or UNKNOWN_WORD not in text:
        return _CLEANERS[cleaner](text)
    return _CLEANERS[cleaner](text.replace(UNKNOWN_WORD, _UNKNOWN_MARK)).replace(_UNKNOWN_MARK, UNKNOWN_WORD)


# One alternative per kind of token: ideographs one by one; a number with its inner marks; letters with dots between
# them ("p.m"); a word with inner hyphens, slashes and apostrophes; a symbol that carries meaning. Everything else
# (punctuation, brackets) is dropped.
_TOKEN = re.compile(
    r"[\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af]"
    r"|\d+(?:[.,:/]\d+)+\w*"
    r"|(?:[^\W\d_]\.)+[^\W\d_]\b"
    r"|[^\W\u3040-\u9fff\uac00-\ud7af]+(?:[-/'’][^\W\u3040-\u9fff\uac00-\ud7af]+)*"
    r"|[%+<>=~&#@$°±×≤≥]"
)
_CLITIC = re.compile(r"^(.+?)(n['’]t|['’](?:s|re|ve|ll|d|m))$|^(can)(not)$")


def ptb_like_tokens(text: str) -> list[str]:
    """Split lower-cased text into words in the way of the Penn Treebank, without its punctuation.

    Hyphenated words, decimals, fractions and ratios stay whole; clitics are split ("doesn't" -> "does", "n't"), and
    "cannot" is two words.
    Unlike coco's tokenizer brackets leave no "-lrb-" behind and an abbreviation loses its last full stop.
    """
    tokens: list[str] = []
    for token in _TOKEN.findall(text.lower()):
        clitic = _CLITIC.match(token) if "'" in token or "’" in token or token == "cannot" else None
        tokens.extend(part for part in clitic.groups() if part) if clitic else tokens.append(token)
    return tokens


def rouge_score_tokens(text: str) -> list[str]:
    """Tokens of the rouge-score package without stemming: lower case, runs of a-z and 0-9, all else dropped."""
    return re.findall("[a-z0-9]+", text.lower())


_13A_SPLIT = re.compile(r"([{-~\[-` -&(-+:-@/])")
_13A_DOT_AFTER_NON_DIGIT = re.compile(r"([^0-9])([.,])")
_13A_DOT_BEFORE_NON_DIGIT = re.compile(r"([.,])([^0-9])")
_13A_DASH_AFTER_DIGIT = re.compile(r"([0-9])(-)")


def tokens_13a(text: str) -> list[str]:
    """Tokens of NIST's mteval-v13a: ASCII punctuation set off, inside numbers dots and commas stay; case is kept.

    Source: the international tokenization rules of mteval-v13a, as sacrebleu and HF evaluate apply them.
    """
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    if "&" in text:
        for entity in ("&quot;", "&amp;", "&lt;", "&gt;"):
            text = text.replace(entity, html.unescape(entity))
    text = _13A_SPLIT.sub(r" \1 ", f" {text} ")
    text = _13A_DOT_AFTER_NON_DIGIT.sub(r"\1 \2 ", text)
    text = _13A_DOT_BEFORE_NON_DIGIT.sub(r" \1 \2", text)
    return _13A_DASH_AFTER_DIGIT.sub(r"\1 \2 ", text).split()


# Raised when a change of code changes a score; part of every protocol hash.
IMPLEMENTATION = "radweave-metrics 1"

Average = Literal["micro", "macro", "weighted", "example"]
UncertainPolicy = Literal["negative", "positive"]


# Fields without effect on a language score.
_OF_THE_FINDINGS = ("clinical", "labeler", "deviations")


class SideRule(Config):
    """Rule by which one side's text becomes tokens. ``max_tokens`` cuts at blanks; None keeps the whole text."""

    cleaner: CleanerName = "none"
    tokenizer: TokenizerName = "none"
    max_tokens: Tokens | None = None


class ClinicalRule(Config):
    """The clinical average that the source of a protocol prints."""

    average: Average = "micro"
    uncertain: UncertainPolicy = "negative"


class EvalProtocol(Config):
    """A way to score reports. ``vocabulary_threshold``: words rarer than this in training references become <unk>."""

    name: str
    description: str
    reference: SideRule = SideRule()
    hypothesis: SideRule = SideRule()
    metrics: Literal["coco", "hf"] = "coco"
    vocabulary_threshold: Count | None = None
    clinical: ClinicalRule | None = None
    deviations: tuple[str, ...] = ()


def _read_protocols() -> dict[str, EvalProtocol]:
    content = tomllib.loads((files("radweave.metrics") / "protocols.toml").read_text(encoding="utf-8"))
    for entry in content.values():
        if (both := entry.pop("both", None)) is not None:
            entry.setdefault("reference", both)
            entry.setdefault("hypothesis", both)
    return {name: EvalProtocol.model_validate({"name": name, **entry}) for name, entry in content.items()}


PROTOCOLS: Mapping[str, EvalProtocol] = MappingProxyType(_read_protocols())
PUBLISHED_ON: Mapping[str, str] = {"iu-xray": "r2gen_iu_60"}
"""The protocol of most papers on a data set, by the name that an import gives it."""


def published_protocol(datasets: Iterable[str | None], modality: Modality) -> str:
    """The papers' protocol for studies of these data sets: that of the one they are all of, else of their modality."""
    names = set(datasets)
    name = names.pop() if len(names) == 1 else None
    return PUBLISHED_ON.get(name or "", "hf" if modality == "ct" else "r2gen_mimic")


def get_protocol(protocol: str | EvalProtocol) -> EvalProtocol:
    """Find a protocol by name.

    Raises:
        InputError: with the names there are.
    """
    if isinstance(protocol, EvalProtocol):
        return protocol
    if protocol not in PROTOCOLS:
        close = difflib.get_close_matches(protocol, PROTOCOLS, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise InputError(f"no protocol '{protocol}'{hint}", field="protocol", expected=", ".join(PROTOCOLS))
    return PROTOCOLS[protocol]


@dataclass(frozen=True)
class Vocabulary:
    """Words frequent enough in the training references."""

    words: frozenset[str]
    threshold: int

    @classmethod
    def of(cls, train_texts: Iterable[str], protocol: EvalProtocol) -> Vocabulary | None:
        """Count the words of cleaned *training* reports; None if the protocol has no vocabulary."""
        if protocol.vocabulary_threshold is None:
            return None
        counts = Counter(word for text in train_texts for word in clean(text, protocol.reference.cleaner).split())
        frequent = (word for word, count in counts.items() if count >= protocol.vocabulary_threshold)
        return cls(frozenset(frequent), protocol.vocabulary_threshold)

    @cached_property
    def sha256(self) -> str:
        return sha256_json(sorted(self.words))

    def to_json(self) -> dict[str, object]:
        return {"size": len(self.words), "threshold": self.threshold, "sha256": self.sha256}


@dataclass(frozen=True)
class ProtocolRecord:
    """The rules of a result with what else decided its scores. The versions of outside programs are noted beside.

    ``hash`` covers the rules, the vocabulary, and the labeler with its version. ``language_hash`` covers what decides a
    language score, so that the same rules with and without a labeler share a column.
    """

    rules: EvalProtocol
    vocabulary: Vocabulary | None = None
    labeler: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.rules.name

    def _settings(self) -> dict[str, object]:
        return {
            **self.rules.model_dump(mode="json", exclude={"name", "description"}),
            "vocabulary": self.vocabulary.to_json() if self.vocabulary else None,
            "labeler": self.labeler,
            "implementation": IMPLEMENTATION,
        }

    @cached_property
    def hash(self) -> str:
        return sha256_json(self._settings())[:16]

    @cached_property
    def language_hash(self) -> str:
        settings = self._settings()
        return sha256_json({name: settings[name] for name in settings if name not in _OF_THE_FINDINGS})[:16]

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "hash": self.hash,
            "language_hash": self.language_hash,
            "description": self.rules.description,
            "deviations": list(self.rules.deviations),
            "settings": self._settings(),
            "versions": dict(sorted(self.versions.items())),
        }
