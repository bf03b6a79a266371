"""JSON and binary interface of a study's images, maps and prior, under ``/api/v1/studies/ID``."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, Final

import numpy as np
import sqlalchemy as sa
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi import Path as InPath
from fastapi.responses import StreamingResponse
from numpy.typing import NDArray

from radweave.core.errors import InputError, printable
from radweave.core.evidence import DraftEvidence
from radweave.core.map_kinds import kind_of
from radweave.core.storage import sha256_json
from radweave.core.study import RESEARCH_ONLY, Study, View
from radweave.io import viewer
from radweave.workstation import drafts, log, reader_study, related, store
from radweave.workstation.access import CurrentStation, CurrentUser
from radweave.workstation.api import AHEAD, visible_study
from radweave.workstation.disk import Entry, Make
from radweave.workstation.map_objects import on_grid, stack
from radweave.workstation.station import Station
from radweave.workstation.users import User
from radweave.workstation.work_list import file_name, shown_headers, study_json

# Maps of a draft in 256 steps, with their position on the images. A map shows the attention of the model: it is no
# outline of a lesion, and absent findings have maps too.

Grid = NDArray[np.uint8]


def names(evidence: DraftEvidence) -> list[str]:
    """Findings with a map that fits the images of the study."""
    return [name for name in evidence.get("attention_maps") or {} if stack(evidence, name) is not None]


def read_maps(evidence: DraftEvidence, name: str, method: str) -> dict[str, Any] | None:
    """A map as JSON values: per image its values, 0 to 255 of ``peak``, and the part of the image it covers.

    ``covers`` is (start, extent) along each axis, in shares of the image's size.
    """
    maps = stack(evidence, name)
    if maps is None:
        return None
    grids = [
        {"image": view["image"], "shape": list(grid.shape), "covers": view["covers"], "values": grid.ravel().tolist()}
        for view, grid in zip(evidence["views"], _steps(maps), strict=False)
    ]
    peak = max(float(values.max()) for values in maps)
    return {"name": name, "method": method, "note": kind_of(evidence).note, "peak": peak, "grids": grids}


def on_scan(
    evidence: DraftEvidence, name: str, affine: NDArray[np.float64], shape: tuple[int, int, int]
) -> tuple[Grid, NDArray[np.float64]] | None:
    """A map (z, y, x) of a scan, and its affine (voxel x, y, z to mm) where that of the scan is ``affine``.

    It has ``FINE`` voxels along each axis, interpolated linearly, since viewers show each voxel as a block.

    Args:
        affine: of the scan. ``shape``: its voxels (z, y, x).
    """
    grids = stack(evidence, name)
    if grids is None or grids[0].ndim != 3:
        return None
    fine, placed = on_grid(grids[0], evidence["views"][0]["covers"], shape)
    return np.rint(fine * (255 / float(grids[0].max()))).astype(np.uint8), affine @ placed


def _steps(maps: list[NDArray[np.float64]]) -> list[Grid]:
    peak = max(float(values.max()) for values in maps) or 1.0
    return [np.rint(values * (255 / peak)).astype(np.uint8) for values in maps]


router = APIRouter(prefix="/api/v1", tags=["images"])

FORMAT: Final = 1
"""Version of cached entries, part of every key."""
PRIOR: Final = "prior-"
PRIOR_CALLED: Final = "prior"
Name = Annotated[str, InPath(pattern=r"^(prior-)?\d{1,5}$")]
_AT_ONCE = 1 << 20
_LOOKED: Final = "images opened"
_HEADERS: Final = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
"""Browsers may cache the data but must revalidate it, so that it is not shown after a logout."""


@dataclass(frozen=True, slots=True)
class Source:
    """An image file: its name in the interface, upload name, path, view and original size."""

    name: str
    called: str
    path: Path
    view: View = View.UNKNOWN
    original_size_wh: tuple[int, int] | None = None


def _read_evidence(connection: sa.Connection, study: str) -> dict[str, Any]:
    """Evidence of the draft; empty without one, and for a draft that is hidden."""
    if reader_study.hides_draft(connection, study):
        return {}
    return drafts.read_evidence(connection, study) or {}


@router.get("/studies/{study}/images")
def list_images(study: str, user: CurrentUser, station: CurrentStation, ahead: bool = False) -> dict[str, Any]:
    """The images of a study and its prior as a viewer needs them, the headers of both, and the findings with a map.

    ``problem`` is the reason if a file cannot be shown. A scan is described with its ``volume``. ``ahead``, here and
    for pixels, tables and volumes, says that the reader has not opened the study yet, as the log then has it.
    """
    with visible_study(station.database.reading(), study, user) as (connection, row):
        own, prior = _sources(station, connection, row)
        headers = study_json(station, connection, row, user)["headers"]
        draft_evidence = _read_evidence(connection, study)
    earlier = [one.path for one in prior] if row.dataset_study is None else []
    log.note_first(station.database, AHEAD if ahead else _LOOKED, user=user.id, study=study)
    evidence: DraftEvidence = draft_evidence.get("evidence") or DraftEvidence()
    views = {str(view["image"]): view["view"] for view in evidence.get("views") or () if "image" in view}
    most = station.settings.limits.images
    return {
        "images": [_described(station, study, one, views.get(one.name)) for one in own[:most]],
        "prior": [_described(station, study, one, None) for one in prior[:most]],
        "headers": headers, "prior_headers": shown_headers(station, earlier), "left_out": max(0, len(own) - most),
        "maps": names(evidence), "map_note": kind_of(evidence).note,
        "method": (draft_evidence.get("model") or {}).get("method"), "notice": RESEARCH_ONLY,
    }  # fmt: skip


@router.get("/studies/{study}/images/{name}/pixels")
def read_pixels(
    study: str, name: Name, user: CurrentUser, station: CurrentStation, request: Request, ahead: bool = False
) -> Response:
    """The stored values of a radiograph: unsigned 16-bit little-endian words, row by row from the top.

    The list of images describes the words.
    """
    return _part(study, name, "words", user, station, request, ahead=ahead)


@router.get("/studies/{study}/images/{name}/table")
def read_table(
    study: str, name: Name, user: CurrentUser, station: CurrentStation, request: Request, ahead: bool = False
) -> Response:
    """The VOI LUT of the file, if it has one: unsigned 16-bit little-endian words."""
    return _part(study, name, "table", user, station, request, ahead=ahead)


@router.get("/studies/{study}/images/{name}/volume")
def read_volume(
    study: str, name: Name, user: CurrentUser, station: CurrentStation, request: Request, ahead: bool = False
) -> Response:
    """A CT scan in Hounsfield units as an upright NIfTI-1 file, resampled only to correct a gantry tilt."""
    return _part(study, name, "volume", user, station, request, ahead=ahead)


@router.get("/studies/{study}/maps/{finding:path}")
def read_map(study: str, finding: str, user: CurrentUser, station: CurrentStation, form: str = "json") -> Any:
    """The map of a finding. ``form=nifti`` returns that of a scan as a gzipped NIfTI-1 file aligned with its volume."""
    with visible_study(station.database.reading(), study, user) as (connection, row):
        draft_evidence = _read_evidence(connection, study)
        own, _ = _sources(station, connection, row)
    map_json = draft_evidence and read_maps(
        draft_evidence["evidence"], finding, str(draft_evidence["model"].get("method"))
    )
    if not draft_evidence or not map_json:
        raise HTTPException(404, "no such map")
    log.note_first(station.database, _LOOKED, user=user.id, study=study)
    if form != "nifti":
        return {**map_json, "notice": RESEARCH_ONLY}
    scan = next((one for one in own if one.name == str(map_json["grids"][0]["image"])), None)
    if station.modality != "ct" or scan is None:
        raise HTTPException(404, "no map of a scan")
    about = _entry(station, study, scan).about
    laid = on_scan(draft_evidence["evidence"], finding, np.array(about["affine_ras"]), tuple(about["shape_zyx"]))
    assert laid is not None, "a scan's map has three axes"
    return Response(viewer.nifti_bytes(*laid), media_type="application/gzip")


def _part(study: str, name: str, part: str, user: User, station: Station, request: Request, *, ahead: bool) -> Response:
    with visible_study(station.database.reading(), study, user) as (connection, row):
        sources = [one for both in _sources(station, connection, row) for one in both]
    source = next((one for one in sources if one.name == name), None)
    if source is None:
        raise HTTPException(404, "no such image")
    action = AHEAD if ahead else _LOOKED
    log.note_first(station.database, action, user=user.id, study=study)
    packed = part != "volume" and _takes_gzip(request)
    tag = f'"{_key(source)}-{part}{"-gzip" if packed else ""}"'
    if tag in [known.strip() for known in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers={**_HEADERS, "ETag": tag})
    entry = _entry(station, study, source)
    try:
        file = entry.parts[part].open("rb")
    except KeyError:
        raise HTTPException(404, f"this image has no {part}") from None
    except FileNotFoundError:  # evicted from the cache meanwhile
        file = _entry(station, study, source).parts[part].open("rb")
    headers = {**_HEADERS, "ETag": tag}
    if packed:
        headers["Content-Encoding"] = "gzip"
    if packed or part == "volume":
        headers["Content-Length"] = str(file.seek(0, 2))
        file.seek(0)
    media = "application/gzip" if part == "volume" else "application/octet-stream"
    content = file if packed or part == "volume" else gzip.GzipFile(fileobj=file)
    return StreamingResponse(_chunks(content), media_type=media, headers=headers)


def _takes_gzip(request: Request) -> bool:
    codings = (one.replace(" ", "").lower() for one in request.headers.get("accept-encoding", "").split(","))
    return any(one.split(";")[0] in ("gzip", "*") and not one.endswith((";q=0", ";q=0.0")) for one in codings)


def _chunks(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    with closing(file):
        while chunk := file.read(_AT_ONCE):
            yield chunk


def _sources(station: Station, connection: sa.Connection, row: sa.Row[Any]) -> tuple[list[Source], list[Source]]:
    """The files of a study and of its prior; none of a refused study that cannot be shown."""
    if row.state == "refused" and not drafts.shows_images(connection, row.id):
        return [], []
    if row.dataset_study is None:
        return _upload_sources(connection, row.id), _prior_sources(connection, row.id)
    study, prior = station.dataset_studies(row.dataset_study)
    return _dataset_sources(station, study, ""), _dataset_sources(station, prior, PRIOR)


def _prior_sources(connection: sa.Connection, study: str) -> list[Source]:
    """Files of the prior; those of a local study keep their names."""
    prior, local = store.prior_of(connection, study), related.prior_of(connection, study)
    if prior is None:
        return []
    own = [] if local is None else _upload_sources(connection, local.id, PRIOR)
    if tuple(str(one.path) for one in own) == prior.files:
        return own
    return [Source(f"{PRIOR}{number}", PRIOR_CALLED, Path(path)) for number, path in enumerate(prior.files)]


def _upload_sources(connection: sa.Connection, study: str, prefix: str = "") -> list[Source]:
    pairs = zip(store.uploaded(connection, study), store.file_names(connection, study), strict=True)
    return [Source(f"{prefix}{number}", called, Path(path)) for number, (path, called) in enumerate(pairs)]


def _dataset_sources(station: Station, study: Study | None, prefix: str) -> list[Source]:
    sources = []
    for number, ref in enumerate(() if study is None else study.images):
        if ref.modality == station.modality and station.dataset is not None:
            path = station.dataset.path / ref.path
            sources.append(Source(f"{prefix}{number}", path.name, path, ref.view, ref.original_size_wh))
    return sources


def _file_name(station: Station, source: Source) -> str:
    number = int(source.name.removeprefix(PRIOR))
    return file_name(number) if station.settings.hide_patients else printable(source.called)


def _described(station: Station, study: str, source: Source, view: str | None) -> dict[str, Any]:
    """Description of an image for the list; a scan is not decoded."""
    known = {"name": source.name, "file": _file_name(station, source)}
    known["kind"] = "volume" if station.modality == "ct" else "radiograph"
    if station.modality == "ct":
        return {**known, "presets": [*viewer.SCAN_PRESETS]}
    try:
        about = _entry(station, study, source).about
    except InputError as error:
        return {**known, "problem": error.reason}
    if view is None and source.view is not View.UNKNOWN:
        view = source.view.value
    return {**known, **about, "view": view or about["view"]}


def _key(source: Source) -> str:
    """Cache key of a file in its present state. The folder of a series changes with its slices."""
    try:
        state = source.path.stat()
    except OSError:
        raise InputError("the image is not there any more") from None
    return sha256_json([FORMAT, str(source.path), state.st_mtime_ns, state.st_size, source.original_size_wh])[:32]


def _entry(station: Station, study: str, source: Source) -> Entry:
    make: Make = partial(_scan if station.modality == "ct" else _radiograph, station, source)
    return station.image_cache.get(study, _key(source), make)


def _path(station: Station, source: Source) -> Path:
    """Path of the file; one of a data set is checked by the data set."""
    if station.dataset is None or not source.path.is_relative_to(station.dataset.path):
        return source.path
    return station.dataset.image_path(source.path.relative_to(station.dataset.path).as_posix())


def _radiograph(station: Station, source: Source) -> tuple[dict[str, Any], dict[str, Any]]:
    read = viewer.read_words(_path(station, source), original_size_wh=source.original_size_wh)
    writers = {"words": partial(viewer.write_words, read.words)}
    if read.table is not None:
        writers["table"] = partial(viewer.write_words, read.table)
    return read.about, writers


def _scan(station: Station, source: Source) -> tuple[dict[str, Any], dict[str, Any]]:
    volume, about = viewer.read_scan(_path(station, source))
    return about, {"volume": partial(viewer.write_nifti, volume.hu, viewer.affine_ras(volume))}
