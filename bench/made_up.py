"""Sentences of made-up reports."""

from __future__ import annotations

import random

SIDES = ("left", "right", "bilateral")
PLACES = ("base", "lower lobe", "upper lobe", "apex", "costophrenic angle", "hilum", "perihilar region")
FINDINGS = ("opacity", "effusion", "atelectasis", "consolidation", "nodule", "scarring", "thickening", "edema")
DEGREES = ("small", "mild", "moderate", "large", "patchy", "streaky", "subtle", "dense")
NORMAL = (
    "the heart is normal in size .",
    "the mediastinal contours are unremarkable .",
    "there is no pneumothorax .",
    "no acute osseous abnormality is seen .",
    "the lungs are otherwise clear .",
    "pulmonary vascularity is within normal limits .",
    "no pleural effusion is identified on either side .",
)


def made_up_sentence(draw: random.Random) -> str:
    if draw.random() < 0.5:
        return draw.choice(NORMAL)
    finding = f"{draw.choice(DEGREES)} {draw.choice(SIDES)} {draw.choice(PLACES)} {draw.choice(FINDINGS)}"
    return f"there is {finding} measuring {draw.randint(3, 60)} mm which is {draw.choice(('new', 'stable'))} ."
