"""Links of README and the pages that lead to a file of the project lead somewhere."""

from __future__ import annotations

import re

from tests.docs.page_commands import PAGES, text_of
from tests.toys import ROOT


def test_every_link_to_a_file_leads_to_one() -> None:
    results = sorted((ROOT / "docs/results").glob("*.md"))
    links = [
        (page, link)
        for page in [*PAGES, *results, ROOT / "CONTRIBUTING.md"]
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(page))
        if "://" not in link
    ]
    assert len(links) > 50
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []
