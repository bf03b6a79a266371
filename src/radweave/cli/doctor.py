"""``radweave doctor``."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
    self_test: Annotated[
        bool, typer.Option(help="Draw, train, draft and score for some seconds, or only look.")
    ] = True,
) -> None:
    """Show versions, devices, extras and disk, and test that a model trains and reports. Exit code 1 for a problem."""
    import json

    from radweave.cli.progress import console
    from radweave.doctor import examine, lines

    health = examine(self_test=self_test, say=lambda step: console.print(f"self-test: {step}"))
    typer.echo(json.dumps(health.to_json(), indent=2) if as_json else "\n".join(lines(health)))
    if health.problems:
        raise typer.Exit(1)
