"""``radweave serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.cli.options import DataInstead, RunFolder, SplitName, Untrained, known_split


def serve(
    run: RunFolder,
    data: DataInstead = None,
    split: SplitName = "test",
    watch: Annotated[Path | None, typer.Option("--watch", help="Folder whose new files become studies.")] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on.", min=1, max=65_535)] = 8765,
    database: Annotated[
        str | None, typer.Option("--database", help="URL of a database instead of a file beside the run.")
    ] = None,
    untrained: Untrained = False,
    verify_log: Annotated[bool, typer.Option("--verify-log", help="Check the log of what was done, and end.")] = False,
) -> None:
    """Serve a workstation on this machine: studies in, drafts with evidence out, edits and signatures kept."""
    whole = known_split(split)
    from radweave.serve import check_log
    from radweave.serve import serve as start
    from radweave.serve.settings import Settings

    settings = Settings(
        run=run, state=run.absolute().with_name(f"{run.absolute().name}.workstation"), data=data, split=whole,
        watch=watch, host=host, port=port, database=database, untrained=untrained,
    )  # fmt: skip
    if verify_log:
        typer.echo(check_log(settings))
        return
    start(settings)
