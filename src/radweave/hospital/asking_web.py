"""An archive that is asked by QIDO-RS and answers with objects by WADO-RS (PS3.18)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import requests
from dicomweb_client.api import DICOMwebClient
from pydicom.datadict import tag_for_keyword

from radweave.hospital.asking import (
    MOST_BYTES,
    MOST_LIST_BYTES,
    SERIES_KEYS,
    STUDY_KEYS,
    Asked,
    Count,
    FoundSeries,
    FoundStudy,
    NotAnsweredError,
    found_series,
    found_study,
    refuse_full,
)
from radweave.hospital.plan import Web
from radweave.hospital.sending import NotKeptError, session_for

_OBJECTS: Final = 'multipart/related; type="application/dicom"; transfer-syntax=*'
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

        rows = self._asked(ask, asked)
        return [study for row in rows if (study := found_study(_words(row, STUDY_KEYS))) is not None]

    def series(self, study: str, asked: Asked) -> list[FoundSeries]:
        def ask(client: DICOMwebClient) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = client.search_for_series(study, fields=list(SERIES_KEYS), limit=asked.most)
            return found

        rows = self._asked(ask, asked)
        return [series for row in rows if (series := found_series(_words(row, SERIES_KEYS))) is not None]

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

    def _asked(self, ask: Callable[[DICOMwebClient], T], asked: Asked) -> T:
        self._count("archive_questions", 1)
        try:
            with _Session(session_for(self._web), asked) as session:
                client = DICOMwebClient(self._web.url, session=session, chunk_size=_CHUNK)
                client.set_http_retry_params(retry=False)  # who asks does so again later
                return ask(client)
        except NotAnsweredError as error:
            reason = str(error)
        except NotKeptError as error:
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
        raise NotAnsweredError(reason)


class _Session(requests.Session):
    """Asks for objects as they are kept, and reads no answer longer than may be: neither in bytes nor in seconds."""

    def __init__(self, plain: requests.Session, asked: Asked) -> None:
        super().__init__()
        self.trust_env, self.verify, self.auth = plain.trust_env, plain.verify, plain.auth
        self.max_redirects = plain.max_redirects
        self._asked_for = asked

    def get(self, url: str | bytes, **more: Any) -> requests.Response:  # type: ignore[override]
        headers = dict(more.pop("headers", None) or {})
        most = MOST_LIST_BYTES
        if headers.get("Accept", "").startswith("multipart/related"):
            headers["Accept"], most = _OBJECTS, MOST_BYTES
        left = self._asked_for.left_s
        answer = super().get(url, headers=headers, **{**more, "stream": True, "timeout": left})
        whole = answer.iter_content

        def bounded(chunk_size: int | None = 1, decode_unicode: bool = False) -> Iterator[bytes]:
            total = 0
            for chunk in whole(chunk_size):
                total += len(chunk)
                if total > most:
                    raise NotAnsweredError("the archive's answer is too long")
                self._asked_for.refuse_late()
                yield chunk

        answer.iter_content = bounded  # type: ignore[method-assign]
        return answer


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
