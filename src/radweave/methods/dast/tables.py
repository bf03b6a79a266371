"""The tables of the paper, with the numbers it prints, and one of our own. Table 2 counts studies: nothing to run."""

from __future__ import annotations

from radweave.contract.tables import Row, Table
from radweave.methods.dast.printed import CHEXPERT, CLINICAL, IU, LANGUAGE, OURS, R2GENGPT, other_systems

OPEN = (
    "language model frozen",
    "VMamba encoder from nothing",
    "DMSR alone",
    "DMSR by image only",
    "DMSR by disease only",
    "DMSR with standardised logits",
    "DMSR by standardised disease only",
)


def _paper(
    chexpert_plus: tuple[float, float, float], iu_xray: tuple[float, float, float]
) -> dict[str, dict[str, float]]:
    names = ("BLEU_4", "ROUGE_L", "CIDEr")
    return {
        CHEXPERT: dict(zip(names, chexpert_plus, strict=True)),
        IU: dict(zip(names, iu_xray, strict=True)),
    }


_BASELINE = _paper((0.114, 0.283, 0.193), (0.161, 0.374, 0.550))
_DVAF = _paper((0.122, 0.288, 0.206), (0.175, 0.380, 0.597))

TABLES: dict[str, Table] = {
    "main": Table(
        title="Tables 1 and 3: against other systems",
        kind="main",
        reference="R2GenGPT",
        rows=(
            *other_systems(),
            Row("R2GenGPT", method="baseline", headline=True, paper=R2GENGPT),
            Row("Ours", headline=True, paper=OURS),
        ),
        metrics=(*LANGUAGE, *CLINICAL),
        note="MIMIC-CXR and CheXpert Plus are not run here; R2GenGPT's row trains our baseline",
    ),
    "table4": Table(
        title="Table 4: what each component adds",
        reference="Baseline",
        rows=(
            Row("Baseline", "baseline", headline=True, paper=_BASELINE),
            Row("+ DASTs + DVAF", "DASTs + DVAF", paper=_DVAF),
            Row(
                "+ DASTs + DVAF + DMSR",
                headline=True,
                paper=_paper((0.133, 0.291, 0.227), (0.187, 0.384, 0.634)),
            ),
        ),
        note="all rows share stage 1, the baseline's encoder too",
    ),
    "table5": Table(
        title="Table 5: how disease tokens and patches are fused",
        reference="Simple Concatenation",
        rows=(
            Row(
                "Simple Concatenation",
                "concatenation",
                paper=_paper((0.110, 0.279, 0.188), (0.156, 0.370, 0.525)),
            ),
            Row("Mean Pooling", "mean pooling", paper=_paper((0.112, 0.285, 0.190), (0.161, 0.375, 0.553))),
            Row("DVAF", "DASTs + DVAF", paper=_DVAF),
        ),
        note="without retrieval, as the paper's numbers of DVAF show",
    ),
    "ours": Table(
        title="What the paper leaves open",
        kind="ours",
        reference="full",
        rows=(Row("full", headline=True), *(Row(name, name) for name in OPEN)),
    ),
}
