"""Named text rules of the papers: how a report is cleaned and split before it is scored.

Each rule is written from the described behaviour, with its oddities, because the oddities are in the published
numbers. Tokens are handed on as one string joined by blanks: the coco scorers split it again, BLEU and CIDEr on any
blank and ROUGE-L on every single blank, and that difference is part of the protocols too.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Literal

from radweave.data.cleaning import clean_r2gen_iu, clean_r2gen_mimic, clean_r2gengpt_mimic

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
