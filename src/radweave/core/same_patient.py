"""Whose prior a study may be: one rule for what was uploaded, what came in, and what an archive was asked for.

A wrong prior is worse than none: a draft that compares a patient with another one looks like any other draft. So what
identifies must agree wherever both studies state it, and enough of it must be stated: the id, and name or birth date.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from datetime import date, timedelta
from itertools import zip_longest
from typing import Final, Literal, Protocol, TypeVar

Reason = Literal[
    "same_study", "no_patient_id", "other_patient_id", "other_issuer", "other_name", "other_birth_date", "other_sex",
    "too_little_identity", "no_date", "not_earlier", "too_old",
]  # fmt: skip
"""Why a study is not the prior of another one. None of these says anything of a patient."""

_NOBODYS: Final = re.compile(r"0*|[x?-]+|anon\w*|unknown|unbekannt|none|null|n/?a|removed|deidentified")
"""Ids and names that many patients have at once."""
_SPELLED: Final = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe", "æ": "ae", "œ": "oe"})
_UNMARKED: Final = str.maketrans({"ø": "o", "æ": "a", "œ": "o", "ł": "l", "đ": "d", "ı": "i"})
_MARKS: Final = (202, 216, 220, 230)
"""Combining classes of the marks on Latin, Greek and Cyrillic letters. Those of other scripts make other sounds."""
_YEAR: Final = timedelta(days=365.25)


class StudyIdentity(Protocol):
    """What the header of a study says of its patient and its time, named after PS3.6; "" where it says nothing.

    Dates are YYYYMMDD, times HHMMSS.FFFFFF of which the end may be missing, names in DICOM's form.
    """

    @property
    def patient_id(self) -> str: ...
    @property
    def issuer_of_patient_id(self) -> str: ...
    @property
    def patient_name(self) -> str: ...
    @property
    def patient_birth_date(self) -> str: ...
    @property
    def patient_sex(self) -> str: ...
    @property
    def study_instance_uid(self) -> str: ...
    @property
    def study_date(self) -> str: ...
    @property
    def study_time(self) -> str: ...


def why_no_prior(study: StudyIdentity, prior: StudyIdentity, *, most_years: float | None = None) -> Reason | None:
    """Why ``prior`` cannot be a prior of ``study``; None where it is an earlier study of the same patient.

    ``most_years`` is how much older it may be, in years of 365.25 days.
    """
    if study.study_instance_uid and study.study_instance_uid == prior.study_instance_uid:
        return "same_study"
    return _other_patient(study, prior) or _no_earlier(study, prior, most_years)


W = TypeVar("W", bound=StudyIdentity)


def newest_first(studies: Iterable[W]) -> list[W]:
    """Studies by date and time, the newest first."""
    return sorted(studies, key=lambda one: (one.study_date, one.study_time, one.study_instance_uid), reverse=True)


def _other_patient(study: StudyIdentity, prior: StudyIdentity) -> Reason | None:
    ids = [one.patient_id.strip() for one in (study, prior)]
    if any(_NOBODYS.fullmatch(each.casefold()) for each in ids):
        return "no_patient_id"
    if ids[0] != ids[1]:
        return "other_patient_id"
    if _differ(study.issuer_of_patient_id, prior.issuer_of_patient_id):
        return "other_issuer"
    named = same_name(study.patient_name, prior.patient_name)
    if named is False:
        return "other_name"
    if _differ(study.patient_birth_date, prior.patient_birth_date):
        return "other_birth_date"
    if _differ(study.patient_sex, prior.patient_sex):
        return "other_sex"
    born = bool(study.patient_birth_date.strip() and prior.patient_birth_date.strip())
    return None if named or born else "too_little_identity"


def _differ(one: str, other: str) -> bool:
    """Whether both are stated and are not the same."""
    one, other = one.strip(), other.strip()
    return bool(one and other) and one != other


def same_name(one: str, other: str) -> bool | None:
    """Whether two names in DICOM's form may be one person's; None where one of them says too little to tell.

    Family names must agree but for case, accents, signs that are no letters, and letters that are spelled out
    (Müller, Mueller). Of given and middle names one may have fewer than the other, from the end. All groups of signs
    (alphabetic, ideographic, phonetic) that both have must agree.
    """
    said: list[bool] = []
    for left, right in zip_longest(one.split("="), other.split("="), fillvalue=""):
        (family, given), (other_family, other_given) = _parts(left), _parts(right)
        if any(_NOBODYS.fullmatch(way) for way in plain_spellings(family) | plain_spellings(other_family)):
            continue
        fewer = min(len(given), len(other_given))
        words = [(family, other_family), *zip(given[:fewer], other_given[:fewer], strict=True)]
        said.append(all(plain_spellings(a) & plain_spellings(b) for a, b in words))
    return all(said) if said else None


def _parts(group: str) -> tuple[str, list[str]]:
    """The family name, and given and middle names as a list."""
    parts = [*group.split("^"), "", ""]
    return parts[0], [word for word in re.split(r"[\s-]+", f"{parts[1]} {parts[2]}") if any(plain_spellings(word))]


def plain_spellings(text: str) -> frozenset[str]:
    """The ways to write a name without case, marks on letters, and signs that are none: {""} where nothing is left."""
    folded = unicodedata.normalize("NFC", text.casefold())
    return frozenset(
        "".join(sign for sign in unicodedata.normalize("NFKD", way) if _is_kept(sign))
        for way in (folded.translate(_SPELLED), folded.translate(_UNMARKED))
    )


def _is_kept(sign: str) -> bool:
    return unicodedata.category(sign)[0] in "LNM" and unicodedata.combining(sign) not in _MARKS


def _no_earlier(study: StudyIdentity, prior: StudyIdentity, most_years: float | None) -> Reason | None:
    try:
        this, then = (date.fromisoformat(one.study_date.strip()) for one in (study, prior))
    except ValueError:
        return "no_date"
    if then > this:
        return "not_earlier"
    if then == this:
        times = study.study_time.strip(), prior.study_time.strip()
        known = min(map(len, times))
        # Of two studies of one day whose times do not tell, none is before the other.
        if times[1][:known] >= times[0][:known]:
            return "not_earlier"
    if most_years is not None and this - then > most_years * _YEAR:
        return "too_old"
    return None
