"""Captions and cautions of the maps over an image, by kind. A method's evidence names the kind (``map_kind``).

    kind_of(evidence).caption("Edema")

Similar maps have different meanings: attention of a class is no activation of a class, and a difference from a
reference image belongs to no class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from radweave.core.evidence import DraftEvidence

KEY: Final = "map_kind"
"""Key in the evidence, next to ``attention_maps``."""
OF_WORDS: Final = "input gradient"
"""The kind of maps that belong to the words of one report."""
_SUMS_TO_1: Final = "a share: all patches of all views of the study add up to 1"
_NO_OUTLINE: Final = "It is not the outline of a lesion"


@dataclass(frozen=True, slots=True)
class MapKind:
    """A kind of maps.

    Attributes:
        shows, lacks: the content and its limits; ``{name}`` stands for the map's name.
        of_class: the name is a class.
        adds_up: the map sums to 1 over the patches of a study, which defines a uniform map.
    """

    title: str
    shows: str
    unit: str
    lacks: str
    of_class: bool = True
    adds_up: bool = False

    def caption(self, name: str) -> str:
        """Content and unit of the map of this name."""
        return f"{self.shows.format(name=name)} Unit: {self.unit}."

    def caution(self, name: str) -> str:
        """Limits of the map of this name."""
        return self.lacks.format(name=name)

    @property
    def note(self) -> str:
        """Caption and caution in one line."""
        rest = "no sign that the finding is there" if self.of_class else "of no finding"
        return f"{self.title[0].lower()}{self.title[1:]}; not a lesion boundary, and {rest}"


def _cam(name: str, method: str, lacks: str = "", *, of_class: bool = True) -> MapKind:
    shown = (
        "Where the encoder's last visual tokens raise the model's score of {name}"
        if of_class
        else "Where the encoder's last visual tokens vary most"
    )
    return MapKind(
        title=f"Class activation map ({name})" if of_class else f"Activation map ({name})",
        shows=f"{shown}: {method}.",
        unit="none; scaled so that the study's strongest patch is 1",
        lacks=f"{_NO_OUTLINE}. What lowers the score is cut off at 0 and not shown, and a high value does not say that"
        f" {{name}} is there: the probability does.{lacks}",
        of_class=of_class,
    )


UNKNOWN: Final = MapKind(
    title="Where the model looked",
    shows="What the method keeps as its map of {name}; the evidence does not say of which kind it is.",
    unit="not stated",
    lacks=f"{_NO_OUTLINE}, and it does not say that {{name}} is there.",
)
KINDS: Final[Mapping[str, MapKind]] = {
    "class attention": MapKind(
        title="Where the model looked",
        shows="Attention of the class token of {name} over the patches of the image, mean over the heads.",
        unit=_SUMS_TO_1,
        lacks=f"{_NO_OUTLINE}, and it does not say that {{name}} is there: the token looks somewhere for an absent"
        " finding too. Nor does it say whether what is there speaks for {name} or against it.",
        adds_up=True,
    ),
    "case attention": MapKind(
        title="Where recalled cases read the image",
        shows="Attention of the recalled cases ({name}) over the patches of the image, in the last layer, mean over the"
        " cases.",
        unit=_SUMS_TO_1,
        lacks=f"{_NO_OUTLINE}, and of no class: it does not say which finding was looked for, nor that one is there.",
        of_class=False,
        adds_up=True,
    ),
    "difference": MapKind(
        title="Where the image differs from its reference",
        shows="Attention of the model's latent tokens over the image, each weighed by its squared distance from the"
        " same token of the reference image (see the recalled cases).",
        unit=f"{_SUMS_TO_1}, or 0 everywhere where nothing differs",
        lacks=f"{_NO_OUTLINE}, and of no class. A difference is no abnormality: another build, position or exposure"
        " differs too. It does not say in which direction, and another reference gives another map.",
        of_class=False,
        adds_up=True,
    ),
    OF_WORDS: MapKind(
        title="Where the report hangs on the image",
        shows="Image tokens as the language model reads them, times the gradient of the log-probability of the whole"
        " {name}, place by place; of an image in tiles those of the overview.",
        unit="none; scaled so that the study's strongest patch is 1",
        lacks=f"{_NO_OUTLINE}, and of no class: all words of the draft count, the normal ones too. Tokens that raise"
        " their probability and tokens that lower it are shown alike.",
        of_class=False,
    ),
    "gradcam": _cam("Grad-CAM", "token values, weighed by the mean gradient of the score"),
    "gradcam++": _cam("Grad-CAM++", "token values, weighed by the positive gradients of the score"),
    "hirescam": _cam("HiResCAM", "token values times the gradient of the score, place by place"),
    "xgradcam": _cam("XGrad-CAM", "token values, weighed by the gradient of the score where they are large"),
    "eigencam": _cam(
        "Eigen-CAM",
        "the first principal component of the token values, which knows no class",
        " The map is the same for every class.",
        of_class=False,
    ),
}


def kind_of(evidence: DraftEvidence) -> MapKind:
    """The kind that a report's evidence names; ``UNKNOWN`` for a missing or unknown name."""
    return KINDS.get(str(evidence.get(KEY)), UNKNOWN)
