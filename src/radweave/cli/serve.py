"""``radweave serve``: the workstation, and statistics of its signed reports."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from radweave.cli.options import (
    MAX_STUDIES,
    DataInstead,
    Decoding,
    Overwrite,
    OwnDecoder,
    RunFolder,
    SplitName,
    Untrained,
    comma_separated,
    known_split,
)
from radweave.core.errors import InputError


class _OrStart(TyperGroup):
    """The verb ``start`` is the default: ``radweave serve RUN`` starts a workstation."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._with_verb(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, self._with_verb(args))

    def _with_verb(self, args: list[str]) -> list[str]:
        return args if args and args[0] in self.commands else ["start", *args]


app = typer.Typer(cls=_OrStart)
Database = Annotated[str | None, typer.Option("--database", help="URL of a database instead of a file beside the run.")]


@app.callback()
def serve() -> None:
    """Serve a workstation on this machine, or report statistics of its signed reports."""


@app.command(epilog="radweave serve report RUN: time, edits and accepted sentences of what was signed.")
def start(
    run: RunFolder,
    data: DataInstead = None,
    split: SplitName = "test",
    watch: Annotated[Path | None, typer.Option("--watch", help="Folder whose new files become studies.")] = None,
    hospital: Annotated[
        Path | None, typer.Option("--hospital", help="YAML: what an archive may send here, and where reports are sent.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on.", min=1, max=65_535)] = 8765,
    database: Database = None,
    untrained: Untrained = False,
    decoding: Decoding = None,
    own_decoder: OwnDecoder = False,
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
    storage_gib: Annotated[
        float | None,
        typer.Option(
            "--storage-gib", help="Most that the workstation's folder may hold, in GiB.", min=0.01, max=1 << 20
        ),
    ] = None,
    lock_minutes: Annotated[
        float,
        typer.Option(
            "--lock-minutes", help="A study stays its reader's for so long without a sign of them.", min=0.1, max=1_440
        ),
    ] = 15,
    hide_patients: Annotated[
        bool, typer.Option("--hide-patients", help="Show pseudonyms; no name, id, number or date of the headers.")
    ] = False,
    reader_study: Annotated[
        bool, typer.Option("--reader-study", help="Half of the studies, by chance, are read without their draft.")
    ] = False,
    behind_proxy: Annotated[
        str | None,
        typer.Option(
            "--behind-proxy", help="ADDRESS[,NETWORK...] whose X-Forwarded-For, -Proto and -Host are trusted."
        ),
    ] = None,
    public_url: Annotated[
        str | None, typer.Option("--public-url", help="Address of the server in browsers: https://HOST[:PORT].")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate with its chain (PEM): TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Key of the certificate (PEM).")] = None,
    oidc_issuer: Annotated[
        str | None, typer.Option("--oidc-issuer", help="OpenID Connect: URL of the provider.")
    ] = None,
    oidc_client_id: Annotated[str | None, typer.Option("--oidc-client-id", help="Client id of this server.")] = None,
    oidc_secret_file: Annotated[
        Path | None,
        typer.Option("--oidc-secret-file", help="File with the client's secret; or environment RADWEAVE_OIDC_SECRET."),
    ] = None,
    oidc_claim: Annotated[str, typer.Option("--oidc-claim", help="Claim that names a user's groups.")] = "groups",
    oidc_readers: Annotated[
        str | None, typer.Option("--oidc-readers", help="GROUP[,GROUP...] whose users may log in as readers.")
    ] = None,
    oidc_admins: Annotated[
        str | None, typer.Option("--oidc-admins", help="GROUP[,GROUP...] whose users may log in as admins.")
    ] = None,
    try_out: Annotated[
        bool, typer.Option("--try", help="Without log-in, for this machine alone; nothing is kept.")
    ] = False,
    verify_log: Annotated[bool, typer.Option("--verify-log", help="Verify the audit log, and end.")] = False,
) -> None:
    """Serve a workstation on this machine: studies in, drafts with evidence out, edits and signatures kept."""
    from radweave.nn.decoding import chosen_options
    from radweave.workstation import check_log
    from radweave.workstation import serve as run_server
    from radweave.workstation.settings import Limits, OpenId, Settings, network, origin

    options = chosen_options(decoding or (), own_decoder=own_decoder)
    openid = None
    if oidc_issuer is not None and oidc_client_id is not None:
        openid = OpenId(
            issuer=oidc_issuer, client_id=oidc_client_id, secret_file=oidc_secret_file, claim=oidc_claim,
            readers=comma_separated(oidc_readers), admins=comma_separated(oidc_admins),
        )  # fmt: skip
    elif any((oidc_issuer, oidc_client_id, oidc_secret_file, oidc_readers, oidc_admins)):
        missing = "--oidc-issuer" if oidc_issuer is None else "--oidc-client-id"
        raise InputError("is missing: the other options of OpenID Connect need it", field=missing)
    if try_out:
        persistent = {
            "--data": data, "--watch": watch, "--hospital": hospital, "--database": database, "--tls-cert": tls_cert,
            "--oidc-issuer": openid, "--reader-study": reader_study or None,
        }  # fmt: skip
        for name, value in persistent.items():
            if value is not None:
                raise InputError("does not go with --try, which keeps nothing", field=name)
    settings = Settings(
        run=run, state=_state(run), data=data, split=known_split(split), watch=watch, hospital=hospital,
        host=host, port=port, database=database, untrained=untrained, study_s=draft_seconds,
        decoding=options, behind_proxy=tuple(map(network, comma_separated(behind_proxy))),
        public_url=None if public_url is None else origin(public_url), tls_cert=tls_cert,
        tls_key=tls_key, openid=openid, idle_s=60 * lock_minutes, hide_patients=hide_patients,
        reader_study=reader_study, try_out=try_out, limits=Limits(
            waiting=queue, body_bytes=upload_mib << 20, files=upload_files,
            state_bytes=None if storage_gib is None else int(storage_gib * (1 << 30)),
        ),
    )  # fmt: skip
    if try_out:
        with TemporaryDirectory(prefix="radweave-try-") as folder:
            run_server(settings.model_copy(update={"state": Path(folder)}))
    elif verify_log:
        typer.echo(check_log(settings))
    else:
        run_server(settings)


@app.command()
def report(
    run: RunFolder,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write a line for each signed study here.")] = None,
    overwrite: Overwrite = False,
    database: Database = None,
) -> None:
    """For a reader study: seconds, edits and accepted sentences of all signed reports, by reader."""
    from radweave.core.storage import refuse_existing, write_text
    from radweave.workstation import report as made
    from radweave.workstation.settings import Settings

    if csv is not None:
        refuse_existing(csv, overwrite=overwrite)
    table, lines = made(Settings(run=run, state=_state(run), database=database))
    if csv is not None:
        write_text(csv, lines)
    typer.echo(table)


def _state(run: Path) -> Path:
    """The state folder of the workstation of a run."""
    return run.absolute().with_name(f"{run.absolute().name}.workstation")
