"""``radweave serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radweave.cli.bounds import MAX_STUDIES
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
    queue: Annotated[
        int, typer.Option("--queue", help="Most studies that wait for a draft.", min=1, max=MAX_STUDIES)
    ] = 256,
    upload_mib: Annotated[
        int, typer.Option("--upload-mib", help="Most of one upload, in MiB.", min=1, max=1 << 20)
    ] = 1024,
    upload_files: Annotated[
        int, typer.Option("--upload-files", help="Most files of one upload.", min=1, max=MAX_STUDIES)
    ] = 2000,
    draft_seconds: Annotated[
        float, typer.Option("--draft-seconds", help="Most that a draft may take.", min=1, max=86_400)
    ] = 120,
    verify_log: Annotated[bool, typer.Option("--verify-log", help="Check the log of what was done, and end.")] = False,
) -> None:
    """Serve a workstation on this machine: studies in, drafts with evidence out, edits and signatures kept."""
    whole = known_split(split)
    from radweave.serve import check_log
    from radweave.serve import serve as start
    from radweave.serve.settings import Limits, Settings

    settings = Settings(
        run=run, state=run.absolute().with_name(f"{run.absolute().name}.workstation"), data=data, split=whole,
        watch=watch, host=host, port=port, database=database, untrained=untrained, study_s=draft_seconds,
        limits=Limits(waiting=queue, body_bytes=upload_mib << 20, files=upload_files),
    )  # fmt: skip
    if verify_log:
        typer.echo(check_log(settings))
        return
    start(settings)
