"""An archive that is asked by QIDO-RS and answers with objects by WADO-RS (PS3.18)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import requests
from dicomweb_client.api import DICOMwebClient
from pydicom.datadict import tag_for_keyword

from radweave.hospital.asking import (
    SERIES_KEYS,
    STUDY_KEYS,
    Asked,
    Count,
    FoundSeries,
    FoundStudy,
    NotAnsweredError,
    Row,
    found_series,
    found_study,
    readable,
    refuse_full,
)
from radweave.hospital.plan import Web
from radweave.hospital.sending import NotKeptError, session_for

_CHUNK: Final = 1 << 18
T = TypeVar("T")


class WebArchive:
    """Asks the service of ``web``; ``count`` is told of questions, objects and failures by name."""

    def __init__(self, web: Web, count: Count) -> None:
        self._web, self._count = web, count

    def studies(self, keys: Mapping[str, str], asked: Asked) -> list[FoundStudy]:
        def ask(client: DICOMwebClient) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = client.search_for_studies(
                search_filters=dict(keys), fields=list(STUDY_KEYS), limit=asked.most
            )
            return found

        return self._rows(ask, lambda row: found_study(_words(row, STUDY_KEYS)), asked)

    def series(self, study: str, asked: Asked) -> list[FoundSeries]:
        def ask(client: DICOMwebClient) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = client.search_for_series(study, fields=list(SERIES_KEYS), limit=asked.most)
            return found

        return self._rows(ask, lambda row: found_series(_words(row, SERIES_KEYS)), asked)

    def fetch(self, study: str, series: str, folder: Path, asked: Asked) -> int:
        def ask(client: DICOMwebClient) -> int:
            came = 0
            # The client's own ``retrieve_series`` would parse what comes, here and without limits.
            for data in client.iter_bulkdata(f"{self._web.url.rstrip('/')}/studies/{study}/series/{series}"):
                refuse_full(folder)
                (folder / f"{uuid.uuid4().hex}.dcm").write_bytes(data)
                self._count("objects_retrieved", 1)
                came += 1
            return came

        return self._asked(ask, asked)

    def _rows(
        self, ask: Callable[[DICOMwebClient], list[dict[str, Any]]], read: Callable[[Any], Row | None], asked: Asked
    ) -> list[Row]:
        rows = self._asked(ask, asked)
        if len(rows) > asked.most:  # what was asked for is a limit that not every archive knows
            self._count("archive_answers_cut", 1)
        return readable(rows[: asked.most], read, self._count)

    def _asked(self, ask: Callable[[DICOMwebClient], T], asked: Asked) -> T:
        self._count("archive_questions", 1)
        try:
            with session_for(self._web, asked) as session:
                client = DICOMwebClient(self._web.url, session=session, chunk_size=_CHUNK)
                client.set_http_retry_params(retry=False)  # who asks does so again later
                answer = ask(client)
                asked.refuse_late()  # what was cut may look like an answer
                return answer
        except (NotAnsweredError, NotKeptError) as error:
            reason = str(error)
        except requests.HTTPError as error:
            status = error.response.status_code if error.response is not None else "no status"
            reason = f"the archive answers with HTTP {status}"
        except requests.RequestException as error:
            reason = f"the archive cannot be reached ({type(error).__name__})"
        except OSError as error:
            reason = f"the answer cannot be kept ({type(error).__name__})"
        except Exception as error:  # an answer that is none may fail in any way
            reason = f"the archive's answer cannot be read ({type(error).__name__})"
        self._count("archive_failures", 1)
        raise NotAnsweredError(asked.over or reason)


def _words(row: Any, keywords: Sequence[str]) -> dict[str, str]:
    """The values of an answer in DICOM's JSON (PS3.18 F), the first of each, names in DICOM's form."""
    said: dict[str, str] = {}
    for keyword in keywords:
        tag = tag_for_keyword(keyword)
        values = row.get(f"{tag:08X}", {}).get("Value") or [""]
        first = values[0]
        if isinstance(first, dict):
            groups = [str(first.get(group, "")) for group in ("Alphabetic", "Ideographic", "Phonetic")]
            first = "=".join(groups).rstrip("=")
        said[keyword] = "" if first is None else str(first)
    return said
