"""Pages load nothing from elsewhere: the theme's one script from a network gives way to docs/site/worker.js.

A hook of mkdocs (mkdocs.yml). tests/docs/test_site.py looks through what was built.
"""

from __future__ import annotations

import re
from typing import Any

FOREIGN = re.compile(r'<script src="https?://[^"]*iframe-worker[^"]*"></script>')
OURS = '<script src="{base}site/worker.js"></script>'


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Of a page in a folder, the way up is part of the address."""
    return FOREIGN.sub(OURS.format(base="../" * page.url.count("/")), output)


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """The page for addresses that do not exist."""
    return FOREIGN.sub("", output_content) if template_name.endswith(".html") else output_content
