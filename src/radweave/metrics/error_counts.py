"""GREEN and CRIMSON: a language model compares a draft with its reference and counts errors.

GREEN, per study, from the number m of matched findings and e_k of clinically significant errors of six kinds:

    GREEN = m / (m + sum_k e_k),   0 where m is 0

CRIMSON, from findings with a weight of significance w (urgent 1, actionable 1/2, not actionable 1/4, expected 0):

    S = (correct - false) / sum of reference weights,   correct = sum over matched findings of w w / (w + its errors)

with 1/2 for each significant error of an attribute. CRIMSON is S where it is not negative, else -d / (1 + d) with
d = false - correct, and 0 where d is negative too.

Sources: Ostmeier et al., "GREEN: Generative Radiology Report Evaluation and Error Notation", EMNLP Findings 2024;
Baharoon et al., "CRIMSON: A Clinically-Grounded LLM-Based Metric for Generative Radiology Report Evaluation",
arXiv:2603.06183; both as the RadEval package 2.2.1 parses them.

The models were tuned on the prompts of their repositories, which are not ours to copy. A file ``prompt.txt`` in the
score's folder is sent as it is, with ``{reference}`` and ``{draft}`` in it replaced; without one the prompt is in our
words and asks for the same form of answer. The version of the score says which it was.

Deviations: an answer without the form asked for is asked for again, then has no score and is counted, where the
packages give 0; a CRIMSON score is not rounded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from radweave.core.chat import ChatFailedError, Messages
from radweave.core.errors import InputError
from radweave.core.foreign_models import read_model, read_tokenizer
from radweave.core.storage import read_text, sha256_bytes
from radweave.metrics.encoders import position_limit, weights_hash
from radweave.metrics.judge import Chat

SIGNIFICANT: Final = "Clinically Significant Errors"
MATCHED: Final = "Matched Findings"
KINDS: Final = (
    "a finding in the draft that the reference does not have",
    "a finding of the reference that the draft lacks",
    "a finding at another place or side",
    "a finding of another severity",
    "a comparison that the reference does not make",
    "a change since an earlier study that the draft leaves out",
)
"""The errors that GREEN counts under (a) to (f)."""
_MOST_WORDS: Final = 300
_ATTEMPTS: Final = 2
# After so many studies in a row without any answer the endpoint is taken to be gone.
_GIVE_UP_AFTER: Final = 5

_GREEN_PROMPT: Final = (
    "Compare a generated radiology report with the report that radiologists wrote of the same examination, which is"
    " the truth. Judge findings, not style.\n\nCount errors of six kinds, and for each kind tell those that matter"
    " clinically from those that do not:\n"
    + "\n".join(f"({letter}) {kind}" for letter, kind in zip("abcdef", KINDS, strict=True))
    + "\n\nReference:\n{reference}\n\nGenerated report:\n{draft}\n\nAnswer in this form and no other, every line"
    " present, 0 where there is none:\n[Explanation]:\n<one or two sentences>\n\n"
    + "\n\n".join(
        f"[{heading}]:\n" + "\n".join(f"({letter}) <kind>: <number>. <each, parted by ;>" for letter in "abcdef")
        for heading in (SIGNIFICANT, "Clinically Insignificant Errors")
    )
    + f"\n\n[{MATCHED}]:\n<number>. <each, parted by ;>\n"
)
WEIGHTS: Final[Mapping[str, float]] = {
    "urgent": 1.0,
    "actionable_not_urgent": 0.5,
    "not_actionable_not_urgent": 0.25,
    "benign_expected": 0.0,
}
"""Weight of a finding by its clinical significance."""
_ATTRIBUTE_WEIGHTS: Final[Mapping[str, float]] = {"significant": 0.5, "negligible": 0.0}
_OTHER_WEIGHT: Final = 0.25
_CRIMSON_PROMPT: Final = (
    "Compare the abnormal findings of a generated chest radiology report with those of the reference, which is the"
    " truth. Leave normal findings out.\n\n1. List every abnormal finding of each report as written, one entry each,"
    " with an id (R1, R2, ... for the reference, P1, P2, ... for the generated report) and its clinical significance: "
    + ", ".join(WEIGHTS)
    + ".\n2. Match findings that are the same, also where place, severity or another attribute differs; one finding may"
    " match several. A reference finding without a match is missing, a generated one without a match is false.\n3. For"
    " matched findings list each attribute that differs (location, severity, descriptor, measurement, certainty,"
    " unspecific, overinterpretation, temporal) as significant or negligible.\n\nReference:\n{reference}\n\nGenerated"
    ' report:\n{draft}\n\nAnswer with one JSON object and nothing else:\n{"reference_findings": [{"id": "R1",'
    ' "finding": "...", "clinical_significance": "..."}], "predicted_findings": [{"id": "P1", "finding": "...",'
    ' "clinical_significance": "..."}], "matched_findings": [{"ref_id": "R1", "pred_id": "P1"}], "errors":'
    ' {"false_findings": ["P2"], "missing_findings": ["R2"], "attribute_errors": [{"ref_id": "R1", "pred_id": "P1",'
    ' "severity": "significant", "error_types": ["location"]}]}}\n'
)


def green_prompt(reference: str, draft: str, template: str | None = None) -> str:
    """The question of GREEN; 300 words of each report at most, as published."""
    short = (" ".join(text.split()[:_MOST_WORDS]) for text in (reference, draft))
    return _filled(template or _GREEN_PROMPT, *short)


def crimson_prompt(reference: str, draft: str, template: str | None = None) -> str:
    """The question of CRIMSON."""
    return _filled(template or _CRIMSON_PROMPT, reference, draft)


def _filled(template: str, reference: str, draft: str) -> str:
    parts = re.split(r"(\{reference\}|\{draft\})", template)
    return "".join({"{reference}": reference, "{draft}": draft}.get(part, part) for part in parts)


def read_prompt(folder: Path | None) -> str | None:
    """The prompt of a folder, if it has one.

    Raises:
        InputError: if it is no text, or has no place for the two reports.
    """
    path = None if folder is None else folder / "prompt.txt"
    if path is None or not path.is_file():
        return None
    text = read_text(path)
    if "{reference}" not in text or "{draft}" not in text:
        raise InputError("has no place for the reports", file=path, expected="{reference} and {draft}")
    return text


def green_score(answer: str) -> float | None:
    """GREEN of an answer; None where it does not state the matched findings."""
    matched = _section(answer, MATCHED)
    if matched is None:
        return None
    numbers = re.findall(r"^\d+(?=\.)", matched, re.MULTILINE)
    count = int(numbers[0]) if numbers else 0
    return count / (count + sum(green_errors(answer))) if count else 0.0


def green_errors(answer: str) -> tuple[int, ...]:
    """Number of clinically significant errors of each of ``KINDS``; a kind that is not stated counts 0."""
    section = _section(answer, SIGNIFICANT)
    counts = [0] * len(KINDS)
    if section is None or section.startswith("No"):
        return tuple(counts)
    marks = "abcdef" if re.search(r"\([a-f]\) ", section) else "123456"
    for mark, line in re.findall(rf"\(([{marks}])\) (.*)", section):
        if number := re.search(r"(?<=: )\d+(?=\.)", line):
            counts[marks.index(mark)] = int(number.group())
    return tuple(counts)


def _section(answer: str, heading: str) -> str | None:
    match = re.search(rf"\[{re.escape(heading)}\]:\s*(.*?)(?:\n\s*\n|\Z)", answer, re.DOTALL)
    return match.group(1) if match else None


def crimson_score(answer: str) -> float | None:
    """CRIMSON of an answer; None where it is not the object that was asked for."""
    try:
        return _crimson(json.loads(_json_text(answer)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _json_text(answer: str) -> str:
    """The object in an answer, without a fence around it and commas before a closing bracket."""
    start, end = answer.find("{"), answer.rfind("}")
    return re.sub(r",(\s*[}\]])", r"\1", answer[start : end + 1])


def _crimson(counted: Mapping[str, Any]) -> float:
    errors = counted["errors"]
    reference, draft = (
        {entry["id"]: WEIGHTS.get(entry.get("clinical_significance", ""), _OTHER_WEIGHT) for entry in counted[name]}
        for name in ("reference_findings", "predicted_findings")
    )
    matched = [entry.get("ref_id") for entry in counted["matched_findings"]]
    false = sum(draft.get(number, 0.0) for number in errors.get("false_findings", []))
    missed = sum(reference.get(number, 0.0) for number in errors.get("missing_findings", []))
    differences: dict[object, float] = {}
    for error in errors.get("attribute_errors", []):
        weight = _ATTRIBUTE_WEIGHTS.get(error.get("severity", ""), _OTHER_WEIGHT)
        differences[error.get("ref_id")] = differences.get(error.get("ref_id"), 0.0) + weight
    correct = 0.0
    for number in dict.fromkeys(matched):
        weight = reference.get(number, 0.0)
        if total := weight + differences.get(number, 0.0):
            correct += weight * weight / total
    most = sum(
        WEIGHTS.get(entry.get("clinical_significance", ""), _OTHER_WEIGHT) for entry in counted["reference_findings"]
    )
    if most == 0 and not counted["reference_findings"]:
        most = len(matched) + missed
    if most == 0:
        share = 1.0 if false == 0 and missed == 0 else -1.0
    else:
        share = (correct - false) / most
    excess = false - correct
    return share if share >= 0 else -excess / (1 + excess) if excess > 0 else 0.0


@dataclass(frozen=True, slots=True)
class CountedErrors:
    """Scores (M,) of M pairs, NaN where there is none, and the answers that they were read from."""

    scores: NDArray[np.float64]
    answers: tuple[str, ...]


class ErrorCounter:
    """Asks a language model about pairs of texts; each different pair is asked about once.

    Args:
        chat: a chat endpoint, or a local model.
        prompt: reference and draft -> the question.
        score: answer -> score, None for an answer without the form asked for.
        template: the user's prompt, for the version; None for ours.
    """

    def __init__(
        self,
        chat: Chat,
        prompt: Callable[[str, str], str],
        score: Callable[[str], float | None],
        template: str | None = None,
    ) -> None:
        self._chat, self._prompt, self._score = chat, prompt, score
        own = "our prompt" if template is None else f"prompt {sha256_bytes(template.encode())[:12]}"
        self._name = f"{chat.name}, {own}"
        self._answers: dict[tuple[str, str], tuple[float, str]] = {}

    def version(self, pairs: Sequence[tuple[str, str]]) -> str:
        """The model, its prompt, and how many of these pairs, which were scored, have no score."""
        different = set(pairs)
        missing = sum(math.isnan(self._answers[pair][0]) for pair in different)
        return self._name + (f"; no usable answer for {missing} of {len(different)} pairs" if missing else "")

    def score(self, pairs: Sequence[tuple[str, str]]) -> CountedErrors:
        """Scores of M pairs of (draft, reference).

        Raises:
            InputError: if the endpoint answers none of several pairs in a row, or none at all.
        """
        silent = 0
        for pair in dict.fromkeys(pairs):
            if pair in self._answers:
                continue
            try:
                self._answers[pair] = self._ask(pair)
                silent = 0
            except ChatFailedError as error:
                self._answers[pair] = (math.nan, "")
                silent += 1
                if silent >= min(_GIVE_UP_AFTER, len(set(pairs))):
                    raise InputError(f"the model gives no answer: {error}", field="judge") from None
        scores = np.array([self._answers[pair][0] for pair in pairs], dtype=np.float64)
        return CountedErrors(scores, tuple(self._answers[pair][1] for pair in pairs))

    def _ask(self, pair: tuple[str, str]) -> tuple[float, str]:
        draft, reference = pair
        messages: Messages = [{"role": "user", "content": self._prompt(reference, draft)}]
        answer = ""
        for _ in range(_ATTEMPTS):
            answer = self._chat.complete(messages)
            score = self._score(answer)
            if score is not None:
                return score, answer
        return math.nan, answer


class LocalChat:
    """A causal language model in a local folder as a chat: greedy, one question at a time.

    Raises:
        InputError: for a folder that cannot be loaded.
    """

    max_length: Final = 2048

    def __init__(self, folder: Path, *, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        what = "the language model of GREEN"
        self._model, _ = read_model(folder, "causal_lm", what=what, dtype=dtype)
        self._tokenizer: Any = read_tokenizer(folder, what=what)
        self._model.eval().to(device)
        self._device = device
        self._most = min(self.max_length, position_limit(self._model.config))
        self.name = weights_hash(folder)

    @torch.inference_mode()
    def complete(self, messages: Messages) -> str:
        """The model's answer, at most up to 2,048 tokens with the question, which is cut from its start on.

        The frame around a question is that of GREEN's model: a line for each role, the end mark after a question.
        """
        end = self._tokenizer.eos_token or ""
        text = "".join(f"<|user|>\n{message['content']}{end}\n" for message in messages) + "<|assistant|>"
        ids = self._tokenizer(text)["input_ids"][-(self._most - 1) :]
        prompt_ids = torch.tensor([ids], device=self._device)
        made = self._model.generate(
            input_ids=prompt_ids,
            attention_mask=torch.ones_like(prompt_ids),
            max_length=self._most,
            do_sample=False,
            eos_token_id=self._tokenizer.eos_token_id,
            pad_token_id=self._tokenizer.eos_token_id,
        )
        answer: str = self._tokenizer.decode(made[0, prompt_ids.shape[1] :], skip_special_tokens=True)
        return answer
