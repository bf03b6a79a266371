"""The command line. Verbs parse and delegate; nothing heavy is imported before a verb runs."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated

import typer

from radweave import __version__
from radweave.cli import ablate as ablating
from radweave.cli import bench as benching
from radweave.cli import data, doctor, estimate, evaluation, explain, generate, reporting
from radweave.cli import data as inspect
from radweave.cli import data as phantom
from radweave.cli import explain as explaining
from radweave.cli import generate as generating
from radweave.cli import serve as serving
from radweave.cli import train as training
from radweave.core.errors import InputError, printable
from radweave.core.stopping import StoppedError, stopped_at_once
from radweave.core.study import RESEARCH_ONLY

app = typer.Typer(
    name="radweave",
    help=f"From chest images to radiology reports, with evidence.\n\n{RESEARCH_ONLY}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"radweave {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


app.command("doctor")(doctor.doctor)
app.command("demo")(reporting.demo)
app.command("phantom")(phantom.phantom)
app.add_typer(data.app, name="data")
app.command("inspect")(inspect.inspect)
app.command("methods")(reporting.methods)
app.command("train")(training.train)
app.command("config")(training.config)
app.command("generate")(generating.generate)
app.command("features")(generate.features)
app.command("export")(explain.export)
app.command("estimate")(estimate.estimate)
app.command("explain")(explaining.explain)
app.add_typer(serving.app, name="serve")
app.command("ablate")(ablating.ablate)
app.command("bench")(benching.bench)
app.command("evaluate")(evaluation.evaluate)
app.command("compare")(evaluation.compare)
app.command("label")(evaluation.label)


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2, a stop is the signal's code."""
    # Threads that spin while they wait make torch up to fifty times slower on a machine that does something else too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # What other libraries say to programmers is no news to who types a command; '-W' and the variables bring it back.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
    try:
        with stopped_at_once():
            app()
    except StoppedError as stop:
        print(stop, file=sys.stderr)
        raise SystemExit(stop.exit_code) from None
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        raise SystemExit(0) from None
    except OSError as error:  # the user's disk or permissions, not our code: no traceback
        place = f"{printable(error.filename)}: " if error.filename else ""
        print(f"error: {place}{error.strerror or error}", file=sys.stderr)
        raise SystemExit(2) from None
