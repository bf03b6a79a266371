"""Which images may bear text in their pixels. Nobody looks at the pixels here: kinds that often do are refused."""

from __future__ import annotations

from typing import Any, Final

from pydicom.dataset import Dataset

from radweave.base.errors import InputError

_SECONDARY_CAPTURE: Final = "1.2.840.10008.5.1.4.1.1.7"
_TEXT_MODALITIES: Final = frozenset({"DOC", "ES", "GM", "IVUS", "OT", "SC", "SM", "US", "XC"})


def refuse_burned_in(dataset: Dataset) -> None:
    """Refuse an image that says of itself that it bears text, or is of a kind that often does and does not deny it.

    Raises:
        InputError: naming the attribute that tells.
    """
    stated = _text(dataset, "BurnedInAnnotation").upper()
    if stated == "NO":
        return
    if stated:
        raise _refusal("may bear text about the patient", "BurnedInAnnotation")
    sop_class = _text(dataset, "SOPClassUID")
    if sop_class == _SECONDARY_CAPTURE or sop_class.startswith(f"{_SECONDARY_CAPTURE}."):
        raise _refusal("is a secondary capture, which often bears text about the patient", "SOPClassUID")
    if _text(dataset, "ConversionType"):
        raise _refusal("was captured or scanned, and often bears text about the patient then", "ConversionType")
    if _text(dataset, "Modality").upper() in _TEXT_MODALITIES:
        raise _refusal("is of a kind that often bears text about the patient", "Modality")


def _refusal(reason: str, field: str) -> InputError:
    return InputError(f"{reason}; look at it, then allow burned-in text", field=field)


def _text(dataset: Dataset, keyword: str) -> str:
    try:
        value: Any = dataset.get(keyword)
    except Exception:  # pydicom converts on access, and a damaged value may raise nearly anything
        return "?"
    return "" if value is None else str(value).strip(" \0")
