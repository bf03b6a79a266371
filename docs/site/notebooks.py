"""Notebooks of the tutorials as pages of the site: text as it is, cells as blocks of code, small outputs below them.

A hook of mkdocs (mkdocs.yml). The notebook itself lies beside its page, to be downloaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ENDING = ".ipynb"


def on_files(files: Any, config: Any) -> Any:
    """Put a page in the place of each notebook that the navigation names."""
    from mkdocs.structure.files import File

    for file in [file for file in files if file.src_uri.endswith(ENDING)]:
        text = as_markdown(Path(file.abs_src_path))
        files.append(File.generated(config, file.src_uri.removesuffix(ENDING) + ".md", content=text))
    return files


def on_config(config: Any) -> Any:
    """Let the navigation name notebooks as they are called in docs/."""
    config.nav = _pages(config.nav)
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links lead to a notebook's page."""
    return markdown.replace(f"{ENDING})", ".md)")


def as_markdown(path: Path) -> str:
    """The page of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join(_cell(cell) for cell in cells)
    title, _, rest = text.partition("\n")
    # A link in HTML, which leads to the file itself.
    return f'{title}\n\n<a href="{path.name}" download>This page as a notebook</a>\n{rest}\n'


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    magic, _, body = source.partition("\n")
    if magic.startswith("%%bash"):
        return f"```bash\n{body}\n```"
    if magic.startswith("%%writefile"):
        return f'```python title="{magic.split()[-1]}"\n{body}\n```'
    return f"```python\n{source}\n```"


def _pages(nav: Any) -> Any:
    if isinstance(nav, list):
        return [_pages(item) for item in nav]
    if isinstance(nav, dict):
        return {title: _pages(item) for title, item in nav.items()}
    return nav.replace(ENDING, ".md")
