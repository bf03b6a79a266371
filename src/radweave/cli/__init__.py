"""The command line. Verbs parse and delegate; heavy imports wait until a verb runs."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import warnings
from typing import Annotated

import typer

from radweave import __version__
from radweave.cli import ablate, bench, data, doctor, estimate, evaluation, explain, fit, generate, probe, serve, train
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


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"radweave {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


app.command("doctor")(doctor.doctor)
app.command("demo")(train.demo)
app.command("phantom")(data.phantom)
app.add_typer(data.app, name="data")
app.command("inspect")(data.inspect)
app.command("fit")(fit.fit)
app.command("methods")(train.methods)
app.command("train")(train.train)
app.command("config")(train.config)
app.command("generate")(generate.generate)
app.command("features")(generate.features)
app.command("export")(explain.export)
app.command("push")(explain.push)
app.command("estimate")(estimate.estimate)
app.command("explain")(explain.explain)
app.command("probe")(probe.probe)
app.add_typer(serve.app, name="serve")
app.command("ablate")(ablate.ablate)
app.command("bench")(bench.bench)
app.command("evaluate")(evaluation.evaluate)
app.command("compare")(evaluation.compare)
app.command("label")(evaluation.label)
app.command("submission")(evaluation.submission)


def main() -> None:
    """Run the command line. Input errors are one line on stderr with exit code 2; signals give their exit code."""
    # Threads that spin while waiting make torch up to fifty times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # At its end Python looks for garbage among all modules, which takes a third of the time of importing them.
    atexit.register(gc.freeze)
    # Libraries' messages for programmers are off by default; '-W' and the variables turn them on.
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
    except OSError as error:  # the user's disk or permissions: no traceback
        file = f"{printable(error.filename)}: " if error.filename else ""
        print(f"error: {file}{error.strerror or error}", file=sys.stderr)
        raise SystemExit(2) from None
