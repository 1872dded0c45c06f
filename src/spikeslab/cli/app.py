"""The commands, and the one place where errors become sentences and exit codes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from io import TextIOWrapper
from types import FrameType
from typing import Annotated

import typer

from spikeslab import __version__
from spikeslab.cli._errors import Command, Group, InputError
from spikeslab.cli.bench import bench
from spikeslab.cli.compress import compress, init
from spikeslab.cli.curve import curve
from spikeslab.cli.demo import demo
from spikeslab.cli.doctor import doctor, report
from spikeslab.cli.export import export
from spikeslab.cli.predict import predict
from spikeslab.cli.prune import prune
from spikeslab.cli.reproduce import app as reproduce
from spikeslab.cli.select import select
from spikeslab.cli.sparsity import sparsity
from spikeslab.errors import Interrupted

# The base of typer's own errors of usage: click's class, or the copy that newer versions of typer bring along.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
INTERRUPTED = 130

app = typer.Typer(name="spikeslab", cls=Group, no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")
for command in (demo, select, predict, init, compress, curve, prune, doctor, report, sparsity, export, bench):
    app.command(cls=Command)(command)
app.add_typer(reproduce, name="reproduce")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"spikeslab {__version__}")
        raise typer.Exit


@app.callback(epilog="Examples: `spikeslab demo --out out/demo`, `spikeslab select data.csv --target y`")
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Sparse Bayesian deep learning for PyTorch: an adaptive spike-and-slab prior and SG-MCMC samplers."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Interrupted("Terminated.", number)


def _drop_full_output() -> None:
    """Write what is left of the output to nowhere if it cannot be written, or Python would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 2 for bad input, 128 + n for signal n, each with one sentence."""
    before = (
        signal.signal(signal.SIGTERM, _terminate) if threading.current_thread() is threading.main_thread() else None
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack letters of a name
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="spikeslab", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except UsageError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if message:  # without a command, the help has been shown
            print(f"Error: {message}", file=sys.stderr)
        return 2
    except OSError as error:  # one of a command would be an InputError
        print(f"Error: The output cannot be written: {error.strerror or error}.", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    finally:
        _drop_full_output()
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    if code == INTERRUPTED:
        print("Interrupted.", file=sys.stderr)
    return code if isinstance(code, int) else 0
