"""The tables of the papers and the names of their rows, which ``radweave ablate --list`` holds the methods' against.

Written from the papers, apart from the methods' own tables, so that a row dropped there is seen. A row counts as there
when the method's table has a row of that name, with numbers for that data set where the paper's can be read. Tables of
a data set's sizes or of a prompt's words are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

IU, MIMIC, PLUS = "IU X-Ray", "MIMIC-CXR", "CheXpert Plus"
RAD, CTRG = "RadGenome-ChestCT", "CTRG-Chest-548K"
NO_NUMBERS = ""
"""Stands for the data set where the numbers are a picture, or cannot be read in the text we have."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a paper.

    Attributes:
        name: as the paper has it.
        ours: the keys of the method's ``TABLES`` that may hold its rows.
        rows: data set -> names of rows; "printed = ours" where our label is another.
    """

    name: str
    ours: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]


def _table(name: str, ours: str, rows: Mapping[str, str]) -> PublishedTable:
    """``ours`` with blanks, the rows of a data set with bars between."""
    split = {source: tuple(each.strip() for each in names.split("|")) for source, names in rows.items()}
    return PublishedTable(name, tuple(ours.split()), split)


_ON_IU = "R2Gen | R2GenCMN | PPKED | AlignTrans | CMCL | Clinical-BERT | METransformer | DCL | R2GenGPT | PromptMRG"

PUBLISHED: Mapping[str, tuple[PublishedTable, ...]] = {
    "am_mrg": (
        _table(
            "Table I",
            "main",
            {
                IU: "R2Gen | R2GenCMN | METransformer | DCL | R2GenGPT = Baseline (R2GenGPT) | Token-Mixer | PromptMRG"
                " | Med-LMM | SILC | AM-MRG",
                MIMIC: "R2Gen | R2GenCMN | METransformer | DCL | R2GenGPT = Baseline (R2GenGPT) | Token-Mixer"
                " | PromptMRG | Med-LMM | AdaMatch-Cyclic | AM-MRG",
                PLUS: "R2Gen | R2GenCMN | XProNet | ORGan | R2GenGPT = Baseline (R2GenGPT) | ASGMD | Token-Mixer"
                " | PromptMRG | R2GenCSR | AM-MRG",
            },
        ),
        _table("Table II", "main", {MIMIC: "R2Gen | METransformer | KiUT | CoFE | HERGen | SILC | OaD | AM-MRG"}),
        # A picture in the text we have: its other rows have no names there.
        _table("Table III", "main", {PLUS: "AM-MRG"}),
        *(
            _table(
                "Table IV",
                "table4",
                {source: "#01 = #01 neither | #02 = #02 V-Hopfield | #03 = #03 R-Hopfield | #04 = #04 both"},
            )
            for source in (MIMIC, PLUS)
        ),
        _table("Table V", "table5", {MIMIC: "100 | 250 | 500 | 750 | 1000"}),
        # A picture: the text names 500, 1,000, 3,000, 6,000 and 10,000.
        _table("Table VI", "table6", {NO_NUMBERS: "500 | 1000 | 3000 | 6000 | 10000"}),
        _table("Table VII", "table7", {MIMIC: "0.5 | 1.0 | 2.0 | 4.0 | 8.0 | 16.0"}),
        _table("Table VIII", "table8", {MIMIC: "Llama-2 | Vicuna-v1.5 | Orca-2 | InternLM | Bio_ClinicalBERT"}),
        _table("Table IX", "table9", {NO_NUMBERS: "HiResCAM | XGradCAM | EigenCAM | GradCAM++ | GradCAM"}),
        _table(
            "Table X",
            "table10",
            {MIMIC: "GPT2-Medium | InternLM-7B | Yi-1.5-9B | Orca-2-7b | Vicuna-7b-v1.5 | Llama2-7B"},
        ),
    ),
    "dast": (
        _table(
            "Table 1",
            "main main-chexpert table1",
            {
                PLUS: "R2GenRL | XProNet | MSAT | ORGan | M2KT | TIMER | R2Gen | R2GenCMN | Zhu et al. | CAMANet"
                " | ASGMD | Token-Mixer | PromptMRG | R2GenGPT | WCL | VLCI | MambaXray | Ours"
            },
        ),
        _table(
            "Table 3",
            "main table3",
            {
                IU: f"{_ON_IU} | BootstrappingLLM | MambaXray | Ours",
                MIMIC: f"{_ON_IU} | BootstrappingLLM | MambaXray | Ours",
            },
        ),
        *(
            _table("Table 4", "table4", {source: "Baseline | + DASTs + DVAF | + DASTs + DVAF + DMSR"})
            for source in (PLUS, IU)
        ),
        *(_table("Table 5", "table5", {source: "Simple Concatenation | Mean Pooling | DVAF"}) for source in (PLUS, IU)),
    ),
    "diffrgennet": (
        _table(
            "Table 1",
            "main",
            {
                MIMIC: "R2Gen | M2TR | MKSG | CLiBert | M2KT | METrans. | KIUT | DCL | RGRG | MAN | HSA | PromptMRG"
                " | DiffRGenNet",
                IU: "R2Gen | CVT2Dis. | M2KT | DCL | RGRG | PromptMRG | DiffRGenNet = DiffRGenNet, zero-shot",
            },
        ),
        _table(
            "Table 2",
            "table2",
            {MIMIC: "DiffRGenNet | w/o Feature Difference | w/o FAM w Transformer | w/o SCL"},
        ),
        _table("Table 3", "table3", {MIMIC: "Transformer | TRAR | Concat | Ours (FAM)"}),
        _table(
            "Table 4",
            "table4",
            {
                MIMIC: "w/ Feature Difference = all three | w/o L2 distance + dot product = w/o L2 and dot product"
                " | w/o dot product + cosine = w/o dot product and cosine"
                " | w/o L2 distance + cosine = w/o L2 and cosine"
            },
        ),
        _table("Figure 4", "figure4", {NO_NUMBERS: "1 layer | 2 layers | 3 layers | 4 layers | 5 layers"}),
    ),
    "diffvp": (
        *(
            _table("Table 1", "main", {source: "RadFM | M3D | R2GenGPT | MedVInT | CT2Rep | Reg2RG | Ours"})
            for source in (RAD, CTRG)
        ),
        _table("Table 2", "main", {RAD: "RadFM | M3D | R2GenGPT | MedVInT | CT2Rep | Reg2RG | Ours"}),
        _table("Table 3", "table3", {RAD: "4 | 8 | 16 | 24 | 32"}),
        _table("Table 4", "table4", {RAD: "Baseline | #1 = #1 E | #2 = #2 global + E | #3 = #3 local + E | Ours"}),
        _table(
            "Table 5",
            "table5",
            {RAD: "Baseline (mean of five) = Baseline | Ours (mean of five) = Ours, five pairings"},
        ),
        _table(
            "Table 6",
            "table6",
            {
                RAD: "Baseline | + global delta (w/o E) = + global | + both (w/o E) = + global + local"
                " | Ours = + global + local + E (Ours)"
            },
        ),
        _table("Table 7", "table7", {RAD: "1 | 10 | 40 | 60 | 124 = all"}),
        _table(
            "Table 8",
            "table8",
            {RAD: "Baseline (no delta) = no delta | In-domain | 100 % CTRG = 100 % of another domain"},
        ),
        _table(
            "Table 9",
            "table9",
            {RAD: " | ".join(f"{share} % = {share} % of another domain" for share in (10, 50, 100))},
        ),
        _table("Table 10", "table10", {RAD: "10 % | 50 % | 0 % (Ours)"}),
        _table("Figure 5b", "figure5b", {NO_NUMBERS: "w/o Diff | Pixel-level Diff | Ours"}),
    ),
    "vdgen": (
        # Most names of systems are lost in the text we have.
        _table("Table 1", "main", {IU: "Contrastive | DCL | VDGen", MIMIC: "VDGen"}),
        _table("Sec. 4.4", "main", {MIMIC: "SEBTSAT+KG | METransformer | DCL | VDGen"}),
        # The numbers of the rows w/o VSE and w/o DID run into each other in the text we have.
        _table("Table 2", "table2", {MIMIC: "w/o LoRA | VDGen", NO_NUMBERS: "w/o VSE | w/o DID"}),
    ),
}
