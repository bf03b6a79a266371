"""The rule by which a study is a prior of another one: for uploads, received studies and archive queries.

A wrong prior is worse than none, since a draft that compares two patients looks like any other. All identifying fields
that both studies state must agree, and both must state the id and the name or the birth date.
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
"""Reasons against a prior; none discloses anything about a patient."""

_PLACEHOLDERS: Final = re.compile(r"0*|[x?-]+|anon\w*|unknown|unbekannt|none|null|n/?a|removed|deidentified")
"""Placeholder ids and names, shared by many patients."""
_SPELLED: Final = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe", "æ": "ae", "œ": "oe"})
_UNMARKED: Final = str.maketrans({"ø": "o", "æ": "a", "œ": "o", "ł": "l", "đ": "d", "ı": "i"})
_MARKS: Final = (202, 216, 220, 230)
"""Combining classes of marks on Latin, Greek and Cyrillic letters; marks of other scripts change the sound."""
_YEAR: Final = timedelta(days=365.25)


class StudyIdentity(Protocol):
    """Header fields of a study about patient and time, named after PS3.6; "" if absent.

    Dates are YYYYMMDD, times HHMMSS.FFFFFF or a prefix, names in DICOM's form.
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
    """The reason why ``prior`` is no prior of ``study``; None if it is an earlier study of the same patient.

    ``most_years`` limits its age in years of 365.25 days.
    """
    if study.study_instance_uid and study.study_instance_uid == prior.study_instance_uid:
        return "same_study"
    return _other_patient(study, prior) or _no_earlier(study, prior, most_years)


S = TypeVar("S", bound=StudyIdentity)


def newest_first(studies: Iterable[S]) -> list[S]:
    """Studies by date and time, the newest first."""
    return sorted(studies, key=lambda each: (each.study_date, each.study_time, each.study_instance_uid), reverse=True)


def _other_patient(study: StudyIdentity, prior: StudyIdentity) -> Reason | None:
    ids = [each.patient_id.strip() for each in (study, prior)]
    if any(_PLACEHOLDERS.fullmatch(patient_id.casefold()) for patient_id in ids):
        return "no_patient_id"
    if ids[0] != ids[1]:
        return "other_patient_id"
    if _differ(study.issuer_of_patient_id, prior.issuer_of_patient_id):
        return "other_issuer"
    same = same_name(study.patient_name, prior.patient_name)
    if same is False:
        return "other_name"
    if _differ(study.patient_birth_date, prior.patient_birth_date):
        return "other_birth_date"
    if _differ(study.patient_sex, prior.patient_sex):
        return "other_sex"
    have_birth_dates = bool(study.patient_birth_date.strip() and prior.patient_birth_date.strip())
    return None if same or have_birth_dates else "too_little_identity"


def _differ(left: str, right: str) -> bool:
    """True if both are stated and differ."""
    left, right = left.strip(), right.strip()
    return bool(left and right) and left != right


def same_name(left: str, right: str) -> bool | None:
    """True if two names in DICOM's form may be one person's; None if one of them is too incomplete to decide.

    Family names must agree except for case, accents, punctuation and spelled-out letters (Müller, Mueller). Given and
    middle names may be missing from the end. All groups that both have (alphabetic, ideographic, phonetic) must agree.
    """
    agreements: list[bool] = []
    for group, other_group in zip_longest(left.split("="), right.split("="), fillvalue=""):
        (family, names), (other_family, other_names) = _split_name(group), _split_name(other_group)
        if any(_PLACEHOLDERS.fullmatch(text) for text in plain_spellings(family) | plain_spellings(other_family)):
            continue
        words = [(family, other_family), *zip(names, other_names, strict=False)]
        agreements.append(all(plain_spellings(a) & plain_spellings(b) for a, b in words))
    return all(agreements) if agreements else None


def _split_name(group: str) -> tuple[str, list[str]]:
    """Family name, and the list of given and middle names."""
    parts = [*group.split("^"), "", ""]
    return parts[0], [word for word in re.split(r"[\s-]+", f"{parts[1]} {parts[2]}") if any(plain_spellings(word))]


def plain_spellings(text: str) -> frozenset[str]:
    """Spellings of a name without case, marks and punctuation; {""} if nothing is left."""
    folded = unicodedata.normalize("NFC", text.casefold())
    return frozenset(
        "".join(sign for sign in unicodedata.normalize("NFKD", spelling) if _is_significant(sign))
        for spelling in (folded.translate(_SPELLED), folded.translate(_UNMARKED))
    )


def _is_significant(sign: str) -> bool:
    return unicodedata.category(sign)[0] in "LNM" and unicodedata.combining(sign) not in _MARKS


def _no_earlier(study: StudyIdentity, prior: StudyIdentity, most_years: float | None) -> Reason | None:
    try:
        day, prior_day = (date.fromisoformat(each.study_date.strip()) for each in (study, prior))
    except ValueError:
        return "no_date"
    if prior_day > day:
        return "not_earlier"
    if prior_day == day:
        times = study.study_time.strip(), prior.study_time.strip()
        precision = min(map(len, times))
        # Studies of one day with equal or missing times have no order.
        if times[1][:precision] >= times[0][:precision]:
            return "not_earlier"
    if most_years is not None and day - prior_day > most_years * _YEAR:
        return "too_old"
    return None
