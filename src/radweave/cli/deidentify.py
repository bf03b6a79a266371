"""``radweave data deidentify``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from radweave.base.errors import InputError, printable
from radweave.cli.options import Out, Overwrite

_SHOWN = 20


def deidentify(
    source: Annotated[Path, typer.Argument(help="A DICOM image, or a folder of them.")],
    out: Out,
    key: Annotated[Path, typer.Option("--key", help="File with the secret, which its owner alone may read.")],
    new_key: Annotated[bool, typer.Option("--new-key", help="Make the key first; it must not be there.")] = False,
    burned_in: Annotated[
        bool, typer.Option("--allow-burned-in", help="Take images that may bear text; nothing is done to pixels.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Take patients out of DICOM images: DICOM's basic profile, dates of a patient moved together. Pixels stay."""
    from radweave.cli.progress import bar
    from radweave.data.deidentify.folder import deidentify_folder
    from radweave.data.deidentify.key import read_key, write_key

    if new_key:
        write_key(key)
    elif not key.exists():
        raise InputError("no such file; --new-key makes one", file=key, field="--key")
    secret = read_key(key)
    with bar("images") as progress:
        done = deidentify_folder(source, out, secret, burned_in=burned_in, overwrite=overwrite, progress=progress)
    typer.echo(
        f"{printable(out)}: {done.images} images, {len(done.studies)} studies, {len(done.patients)} patients"
        + (f", {done.again} files were there twice" if done.again else "")
    )
    typer.echo("Pixels show what they showed: look at them before you give them away.", err=True)
    for path, _, reason in done.refused[:_SHOWN]:
        print(f"refused {printable(path)}: {printable(reason)}", file=sys.stderr)
    if done.refused:
        print(f"{len(done.refused)} files were refused; all others are written", file=sys.stderr)
        raise typer.Exit(2)
