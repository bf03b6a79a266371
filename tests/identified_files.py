"""DICOM files of many kinds with identifiers in every place that can bear one, and a search for them. Nothing is real.

The search shares no code with what it tests: it knows each way that an identifier is planted in, word by word.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import gdcm
import numpy as np
from PIL import Image
from pydicom import dcmread
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.tag import Tag
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from tests.image_files import chest, dataset, save

NAMES: Final = (
    "Zquillby^Jonx",
    "Li^Xu",
    "Wzrobel^Ana",
    "Yamada^Tarou=山田^太郎=やまだ^たろう",
    "Grünwaldt^Zoë",
    "Kim^Heejung=김^희중",
)
WAYS: Final = (
    ("Zquillby", "ZQUILLBYJONX", "JonxZquillby", "jzquillby"), ("Li Xu", "LIXU", "XuLi", "Xu, Li"),
    ("Wzrobel", "ANAWZROBEL", "WzrobelAna"), ("Yamada", "山田太郎", "山田 太郎", "やまだ"),
    ("Grünwaldt", "Gruenwaldt", "GRÜNWALDTZOË"), ("Heejung", "김희중", "KIMHEEJUNG"),
)  # fmt: skip
SHARED: Final = (
    "12-3456-78", "12345678", "12 3456 78", "ACC7788990", "ST-90417", "Vrbnikova", "HelaVrbnikova", "Quixola",
    "0176-5559-8432", "017655598432", "19600412", "1960-04-12", "12/04/1960", "04/12/1960", "04/12/60", "12.4.1960",
    "12 April 1960", "April 12, 1960", "12-APR-60", "12apr1960", "1960/04/12", "12041960", "20191123", "11/23/2019",
    "23 November 2019",
)  # fmt: skip
SYNTAXES: Final = (
    ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian, RLELossless,
    JPEGBaseline8Bit, JPEGLosslessSV1, JPEGLSLossless, JPEG2000Lossless,
)  # fmt: skip
SHAPES: Final = ((8, 1, 1), (12, 1, 1), (16, 1, 1), (8, 3, 1), (8, 1, 3), (16, 1, 2), (8, 3, 2), (12, 1, 3))
"""Bits stored, colours, frames."""
JPEGS: Final = (JPEGBaseline8Bit, JPEGLosslessSV1, JPEGLSLossless)


@dataclass(slots=True)
class Made:
    """A file, its pixels before anything was planted, and where that was done."""

    path: Path
    pixels: np.ndarray
    places: list[str] = field(default_factory=list)


class Planter:
    """Says the next identifier of a person, each time another and in another encoding."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.person = number % len(NAMES)

    def text(self, *, ascii_only: bool = False) -> str:
        choice = [*WAYS[self.person] * 2, *SHARED]
        return self.random.choice([text for text in choice if text.isascii() or not ascii_only])

    def bytes(self) -> bytes:
        encoding = self.random.choice(("utf-8", "utf-16-le", "utf-16-be", "utf-8"))
        data = b"." * self.random.randrange(2) + f" {self.text()} ".encode(encoding)
        return data + b" " * (len(data) % 2)


Plant = Callable[[Dataset, Planter], None]


def _raw(ds: Dataset, tag: int, vr: str, data: bytes) -> None:
    little = ds.file_meta.TransferSyntaxUID != ExplicitVRBigEndian if hasattr(ds, "file_meta") else True
    data += b" " * (len(data) % 2)
    ds[tag] = RawDataElement(Tag(tag), vr, len(data), data, 0, False, little)


def _inside(ds: Dataset) -> Dataset:
    """The item of a sequence that stays."""
    if "DerivationCodeSequence" not in ds:
        ds.DerivationCodeSequence = [Dataset()]
    return ds.DerivationCodeSequence[0]


def _private(ds: Dataset, p: Planter) -> None:
    block = ds.private_block(0x0019, p.text(ascii_only=True), create=True)
    block.add_new(1, "LO", p.text(ascii_only=True))
    block.add_new(2, "OB", p.bytes())


def _icon(ds: Dataset, p: Planter) -> None:
    icon = Dataset()
    icon.Rows, icon.Columns, icon.PixelData = 4, 8, p.bytes().ljust(32)[:32]
    icon["PixelData"].VR = "OB"
    ds.IconImageSequence = [icon]


def _table(ds: Dataset, p: Planter) -> None:
    item = Dataset()
    item.LUTDescriptor = [16, 0, 16]
    item.add_new(0x00283006, "OW", np.arange(0, 4096, 256, dtype="<u2").tobytes() + p.bytes())
    item.LUTExplanation, item.ModalityLUTType = p.text(ascii_only=True), "US"
    ds.VOILUTSequence = [item]


def _overlay(ds: Dataset, p: Planter) -> None:
    ds.add_new(0x60000010, "US", 4)
    ds.add_new(0x60000011, "US", 8)
    ds.add_new(0x60000022, "LO", p.text(ascii_only=True))
    ds.add_new(0x60001500, "LO", p.text(ascii_only=True))
    ds.add_new(0x60003000, "OW", p.bytes())
    ds.add_new(0x60004000, "LT", p.text(ascii_only=True))


def _numbers_as_text(ds: Dataset, p: Planter) -> None:
    ds.add_new(0x00189376, "US", [ord(sign) for sign in "Zquillby 12345678"])
    ds.add_new(0x00281199, "UI", "1.2.12345678.19600412")
    data = b"12345678Wzrobel1"
    ds.add_new(0x00189377, "US", [int.from_bytes(data[n : n + 2], "little") for n in range(0, len(data), 2)])


def _functional_groups(ds: Dataset, p: Planter) -> None:
    voxel, anatomy = Dataset(), Dataset()
    anatomy.FrameLaterality, anatomy.CodeMeaning = "L", p.text(ascii_only=True)
    anatomy.FrameComments = p.text(ascii_only=True)
    voxel.FrameAnatomySequence = [anatomy]
    ds.SharedFunctionalGroupsSequence = [voxel]


def _code(ds: Dataset, p: Planter) -> None:
    item = _inside(ds)
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = p.text(ascii_only=True)[:16], "99X", p.text()
    item.LongCodeValue, item.URNCodeValue = p.text(ascii_only=True), f"urn:{p.text(ascii_only=True)}"
    item.CodingSchemeUID = "1.2.3.12345678"


def _nested_pixels(ds: Dataset, p: Planter) -> None:
    _inside(ds).add_new(0x7FE00010, "OB", p.bytes())
    _inside(ds).add_new(0x00420011, "OB", p.bytes())
    _private(_inside(ds), p)


def _dates(ds: Dataset, p: Planter) -> None:
    ds.AcquisitionDate, ds.ContentDate, ds.AcquisitionDateTime = "19600412", "20191123", "19600412101112"
    item = _inside(ds)
    item.Date, item.DateTime, item.TextValue = "19600412", "20191123", p.text()
    item.PersonName = NAMES[p.person]
    _raw(item, 0x00189701, "DT", p.text(ascii_only=True).encode())


def _free_numbers(ds: Dataset, p: Planter) -> None:
    _raw(ds, 0x00181151, "IS", b"12345678")
    _raw(ds, 0x00181152, "IS", b"19600412")
    _raw(ds, 0x00180050, "DS", b"12345678.5")
    _raw(ds, 0x00181200, "DA", b"12APR1960")
    _raw(ds, 0x00080032, "TM", b"101112.123456 " + p.text(ascii_only=True).encode())
    _raw(ds, 0x00180088, "DS", p.text(ascii_only=True).encode())


def _short_texts(ds: Dataset, p: Planter) -> None:
    ds.Manufacturer, ds.ManufacturerModelName = f"for {p.text()}", f"{p.text()}"
    ds.SoftwareVersions = ["7.1", f"VB {p.text()}", f"x{p.text()}"]
    ds.GridID, ds.DeviceID = p.text()[:16], p.text(ascii_only=True).lower()


def _codes(ds: Dataset, p: Planter) -> None:
    _raw(ds, 0x00180015, "CS", re.sub("[^A-Z0-9 _]", " ", p.text(ascii_only=True).upper()).encode()[:16])
    _raw(ds, 0x00181401, "LO", p.text().encode("utf-8"))
    _raw(ds, 0x00185101, "CS", NAMES[p.person].upper().replace("^", " ").encode("ascii", "ignore")[:16])


def _other_encodings(ds: Dataset, p: Planter) -> None:
    _raw(ds, 0x00080070, "LO", NAMES[p.person].split("^")[0].encode("utf-16-le"))
    _raw(ds, 0x00081090, "LO", "Grünwaldt".encode("latin-1"))
    _raw(ds, 0x00181000, "LO", "山田太郎".encode("shift_jis"))
    _raw(ds, 0x00181020, "LO", "김희중".encode("euc_kr"))
    _raw(ds, 0x00181030, "LO", b"\x1b$B;3ED\x1b(B " + p.text(ascii_only=True).encode())


def _elements_of_wrong_kind(ds: Dataset, p: Planter) -> None:
    _raw(ds, 0x00280103 + 0x1000, "LT", p.text(ascii_only=True).encode())
    _raw(ds, 0x00189999, "UN", p.bytes())
    _raw(ds, 0x00091234, "UN", p.bytes())
    _raw(ds, 0x00180000, "UL", p.text(ascii_only=True).encode()[:4].ljust(4))
    _raw(ds, 0x00081030, "UN", p.bytes())


def _set(tag: int, vr: str) -> Plant:
    def plant(ds: Dataset, p: Planter) -> None:
        ds.add_new(tag, vr, p.bytes() if vr in ("OB", "OW", "UN") else p.text(ascii_only=True))

    return plant


def _signature(ds: Dataset, p: Planter) -> None:
    item = Dataset()
    item.CertificateOfSigner, item.Signature = p.bytes(), p.bytes()
    ds.DigitalSignaturesSequence = [item]


def _high_bits(ds: Dataset, p: Planter) -> None:
    """A name in the bits above the stored ones, one bit a pixel, as overlays of older files."""
    syntax = ds.file_meta.TransferSyntaxUID
    if syntax.is_compressed or ds.BitsStored != 12:
        return
    words = np.frombuffer(ds.PixelData, ">u2" if syntax == ExplicitVRBigEndian else "<u2").copy()
    bits = np.unpackbits(np.frombuffer(p.bytes(), np.uint8)).astype(words.dtype)
    words[: len(bits)] |= bits << 13
    nibbles = np.frombuffer(b"Zquillby", np.uint8)  # two pixels for a sign
    words[1000:1016] |= np.stack([nibbles >> 4, nibbles & 15], 1).reshape(-1).astype(words.dtype) << 12
    ds.PixelData = words.tobytes()
    ds.add_new(0x60020100, "US", 16)
    ds.add_new(0x60020102, "US", 13)


def _behind_pixels(ds: Dataset, p: Planter) -> None:
    if not ds.file_meta.TransferSyntaxUID.is_compressed:
        ds.PixelData = bytes(ds.PixelData) + p.bytes()


def _meta(ds: Dataset, p: Planter) -> None:
    ds.file_meta.SourceApplicationEntityTitle = p.text(ascii_only=True)[:16]
    ds.file_meta.SendingApplicationEntityTitle = p.text(ascii_only=True)[:16]
    ds.file_meta.ImplementationVersionName = p.text(ascii_only=True)[:16]
    ds.file_meta.PrivateInformationCreatorUID, ds.file_meta.PrivateInformation = "1.2.12345678", p.bytes()


def _preamble(ds: Dataset, p: Planter) -> None:
    ds.preamble = (p.bytes() + p.bytes()).ljust(128, b"\0")[:128]


def _frames(ds: Dataset) -> list[bytes]:
    return list(generate_frames(ds.PixelData, number_of_frames=int(ds.get("NumberOfFrames", 1))))


def _in_frames(change: Callable[[bytes, Planter], bytes], *syntaxes: UID) -> Plant:
    def plant(ds: Dataset, p: Planter) -> None:
        if ds.file_meta.TransferSyntaxUID in syntaxes:
            ds.PixelData = encapsulate([change(frame, p) for frame in _frames(ds)])
            ds["PixelData"].is_undefined_length = True

    return plant


def _segment(marker: int, start: bytes = b"") -> Callable[[bytes, Planter], bytes]:
    def change(frame: bytes, p: Planter) -> bytes:
        content = start + p.bytes()
        return frame[:2] + b"\xff" + bytes([marker]) + (len(content) + 2).to_bytes(2, "big") + content + frame[2:]

    return change


def _late_comment(frame: bytes, p: Planter) -> bytes:
    """Just before the scan."""
    at = frame.rindex(b"\xff\xda")
    return frame[:at] + _segment(0xFE)(b"\0\0", p)[2:] + frame[at:]


def _behind_image(frame: bytes, p: Planter) -> bytes:
    return frame.rstrip(b"\0") + p.bytes()


def _codestream_comment(frame: bytes, p: Planter) -> bytes:
    content = b"\0\1" + p.bytes()
    at = frame.index(b"\xff\x52")  # COD: SIZ goes first
    return frame[:at] + b"\xff\x64" + (len(content) + 2).to_bytes(2, "big") + content + frame[at:]


def _offsets(ds: Dataset, p: Planter) -> None:
    """A basic offset table that is a text; readers need none."""
    if ds.file_meta.TransferSyntaxUID.is_compressed and "NumberOfFrames" not in ds and _encapsulated(ds):
        text = (p.bytes() + b"  Zquillby  ")[:12]
        ds.PixelData = b"\xfe\xff\0\xe0" + len(text).to_bytes(4, "little") + text + bytes(ds.PixelData)[8:] if (
            bytes(ds.PixelData)[4:8] == b"\0\0\0\0") else ds.PixelData  # fmt: skip


def _encapsulated(ds: Dataset) -> bool:
    return ds.file_meta.TransferSyntaxUID not in SYNTAXES[:4]


def _extended_offsets(ds: Dataset, p: Planter) -> None:
    if not _encapsulated(ds):
        ds.add_new(0x7FE00001, "OV", p.bytes().ljust(32)[:32])
        ds.add_new(0x7FE00002, "OV", p.bytes().ljust(32)[:32])


def _palette(ds: Dataset, p: Planter) -> None:
    ds.add_new(0x00281101, "US", [4, 0, 8])
    ds.add_new(0x00281201, "OW", b"\0\1\2\3" + p.bytes())
    ds.add_new(0x00281221, "OW", p.bytes())


def _waveform(ds: Dataset, p: Planter) -> None:
    ds.add_new(0x00281408, "OW", p.bytes())
    ds.add_new(0x00660023, "OW", p.bytes())
    ds.add_new(0x00686210, "OB", p.bytes())


def _people(ds: Dataset, p: Planter) -> None:
    ds.OtherPatientNames, ds.OperatorsName = NAMES[p.person], "Vrbnikova^Hela"
    ds.PatientComments = ds.AdditionalPatientHistory = p.text()
    ds.PatientAddress = ds.PatientTelephoneNumbers = "0176-5559-8432"
    ds.RequestingPhysician = "Vrbnikova^Hela"


PLACES: Final[dict[str, Plant]] = {
    "preamble": _preamble, "meta information": _meta, "private elements": _private, "icon": _icon, "table": _table,
    "palette": _palette, "overlay": _overlay, "bits above": _high_bits, "behind native pixels": _behind_pixels,
    "numbers that are a text": _numbers_as_text, "functional groups": _functional_groups, "code": _code,
    "nested pixels and private": _nested_pixels, "dates": _dates, "IS, DS, TM, DA": _free_numbers,
    "LO and SH": _short_texts, "CS": _codes, "other encodings": _other_encodings, "people": _people,
    "unknown elements": _elements_of_wrong_kind, "signature": _signature, "extended offsets": _extended_offsets,
    "offset table": _offsets, "data of other objects": _waveform,
    "trailing padding": _set(0xFFFCFFFC, "OB"), "profile": _set(0x00282000, "OB"), "curve": _set(0x50003000, "OW"),
    "study description": _set(0x00081030, "LO"), "image comments": _set(0x00204000, "LT"),
    "text value": _set(0x0040A160, "UT"), "station": _set(0x00081010, "SH"), "URL": _set(0x00081190, "UR"),
    "derivation": _set(0x00082111, "ST"), "protocol": _set(0x00181030, "LO"), "AE title": _set(0x00080054, "AE"),
    "acquisition context": _set(0x00400556, "ST"), "contrast": _set(0x00180010, "LO"), "UC": _set(0x00080119, "UC"),
    "JPEG comment": _in_frames(_segment(0xFE), *JPEGS), "EXIF": _in_frames(_segment(0xE1, b"Exif\0\0"), *JPEGS),
    "ICC in JPEG": _in_frames(_segment(0xE2, b"ICC_PROFILE\0\1\1"), *JPEGS),
    "application data": _in_frames(_segment(0xED, b"Photoshop 3.0\0"), *JPEGS),
    "JPEG comment before the scan": _in_frames(_late_comment, *JPEGS),
    "behind the image": _in_frames(_behind_image, JPEGBaseline8Bit, JPEGLosslessSV1, JPEGLSLossless, JPEG2000Lossless),
    "behind the runs": _in_frames(_behind_image, RLELossless),
    "JPEG 2000 comment": _in_frames(_codestream_comment, JPEG2000Lossless),
}  # fmt: skip


def make(folder: Path, number: int, *, places: int = 14, only: str | None = None) -> Made:
    """Write the ``number``-th file; all places turn up in turn, ``places`` of them in each file."""
    planter = Planter(number)
    syntax, (bits, samples, frames) = SYNTAXES[number % len(SYNTAXES)], SHAPES[number // len(SYNTAXES) % len(SHAPES)]
    bits, frames = (8, 1) if syntax == JPEGBaseline8Bit else (bits, frames)
    ds = _image(bits, samples, frames, number)
    path = folder / f"{number:03d}.dcm"
    _compress(ds, syntax, path)
    ds = dcmread(path)
    pixels = decoded(ds)
    wanted = list(PLACES) if only is None else [only]
    chosen = planter.random.sample(wanted, min(places, len(wanted)))
    for name in chosen:
        PLACES[name](ds, planter)
    save(ds, path)
    data = path.read_bytes()
    if syntax != DeflatedExplicitVRLittleEndian and number % 5 == 0 and only is None:
        extra = b"\xfc\xff\xfc\xffOB\0\0" + (32).to_bytes(4, "little") + (planter.bytes() * 2).ljust(32)[:32]
        path.write_bytes(data + (extra if syntax not in (ImplicitVRLittleEndian, ExplicitVRBigEndian) else b""))
        chosen.append("padding behind the data set")
    return Made(path, pixels, chosen)


def decoded(ds: Dataset) -> np.ndarray:
    """Pixels by pydicom's own choice of decoder; gdcm ends the process on some runs."""
    if ds.file_meta.TransferSyntaxUID == RLELossless:
        ds.pixel_array_options(decoding_plugin="pydicom")
    return np.array(ds.pixel_array)


def _image(bits: int, samples: int, frames: int, number: int) -> Dataset:
    rows, columns = 40 + number % 3, 32 + number % 5
    values = np.rint(chest(rows, columns) * ((1 << bits) - 1)).astype(np.int64)
    values = np.stack([values, values[::-1], values.T.copy().reshape(values.shape)], -1) if samples == 3 else values
    ds = dataset(values, bits=bits)
    if frames > 1:
        ds.NumberOfFrames = frames
        stack = np.stack([np.roll(values, n, 0) for n in range(frames)]).astype(f"<u{ds.BitsAllocated // 8}").tobytes()
        ds.PixelData = stack + b"\0" * (len(stack) % 2)
    ds.SpecificCharacterSet = "ISO_IR 192"
    ds.PatientName, ds.PatientID, ds.AccessionNumber = NAMES[number % len(NAMES)], "12-3456-78", "ACC7788990"
    ds.StudyID, ds.PatientBirthDate, ds.StudyDate = "ST-90417", "19600412", "20191123"
    ds.ReferringPhysicianName, ds.InstitutionName = "Vrbnikova^Hela", "Santa Quixola Infirmary"
    ds.ReferringPhysicianTelephoneNumbers = "0176-5559-8432"
    return ds


def _compress(ds: Dataset, syntax: UID, path: Path) -> None:
    if syntax == JPEGBaseline8Bit:
        buffer = io.BytesIO()
        values = np.frombuffer(ds.PixelData, np.uint8)[: ds.Rows * ds.Columns * ds.SamplesPerPixel]
        shape = (ds.Rows, ds.Columns) if ds.SamplesPerPixel == 1 else (ds.Rows, ds.Columns, 3)
        Image.fromarray(values.reshape(shape)).save(buffer, "JPEG", quality=92)
        ds.file_meta.TransferSyntaxUID = syntax
        ds.PixelData = encapsulate([buffer.getvalue()])
        ds["PixelData"].is_undefined_length = True
        if ds.SamplesPerPixel == 3:
            ds.PhotometricInterpretation = "YBR_FULL_422"
    elif syntax == JPEGLosslessSV1:
        save(ds, path)
        reader = gdcm.ImageReader()
        reader.SetFileName(str(path))
        assert reader.Read()
        change = gdcm.ImageChangeTransferSyntax()
        change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
        change.SetInput(reader.GetImage())
        assert change.Change()
        writer = gdcm.ImageWriter()
        writer.SetFileName(str(path))
        writer.SetFile(reader.GetFile())
        writer.SetImage(change.GetOutput())
        assert writer.Write()
        return
    elif syntax == ExplicitVRBigEndian:
        ds.file_meta.TransferSyntaxUID = syntax
        if ds.BitsAllocated == 16:
            ds.PixelData = np.frombuffer(ds.PixelData, "<u2").astype(">u2").tobytes()
        from pydicom.filewriter import dcmwrite

        dcmwrite(path, ds, enforce_file_format=True)
        return
    elif syntax in SYNTAXES[:4]:
        ds.file_meta.TransferSyntaxUID = syntax
    else:
        plugin = "pydicom" if syntax == RLELossless else ""  # gdcm ends the process on some
        ds.compress(syntax, encoding_plugin=plugin, generate_instance_uid=False)
    save(ds, path)


_DASHES = str.maketrans("", "", "-^ ,./")


def left(data: bytes) -> list[str]:
    """Planted identifiers in bytes, in any encoding and case."""
    words = {text for ways in WAYS for text in ways} | set(SHARED)
    words |= {
        "Li^Xu",
        "Jonx",
        "Xu^Li",
        "xuli",
        "Grunwaldt",
        "희중",
        "太郎",
        "山田",
        "1234567",
        "7788990",
        "5559-8432",
        "55598432",
    }
    words |= {"12.04.1960", "12-04-1960", "1960.04.12", "12 apr", "apr 12", "april", "112319", "041260", "Infirmary"}
    readings = [data.decode("latin-1"), data.decode("utf-8", "replace")]
    readings += [data[start:].decode(f"utf-16-{order}", "replace") for start in (0, 1) for order in ("le", "be")]
    readings += [data.decode(encoding, "replace") for encoding in ("shift_jis", "euc_kr", "gb18030", "iso2022_jp")]
    folded = [reading.casefold() for reading in readings]
    matches = [word for word in words if any(word.casefold() in reading for reading in folded)]
    try:
        ds = dcmread(io.BytesIO(data))
    except Exception:
        return [*matches, "no DICOM"]
    for element in ds.iterall():
        if element.VR not in ("OB", "OW", "SQ", "UI", "DA", "DT"):
            text = str(element.value).casefold()
            matches += [f"{element.keyword}: {word}" for word in ("li", "xu", "ana", "kim", "zoë", "hela")
                      if re.search(rf"(?<![^\W_]){word}(?![^\W_])", text)]  # fmt: skip
            digits = text.translate(_DASHES)
            matches += [
                f"{element.keyword}: {n}" for n in ("12345678", "19600412", "12041960", "041260") if n in digits
            ]
    return matches
