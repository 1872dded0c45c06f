"""How a run that is stopped or fails is told on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from spikeslab.cli.errors import InputError


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """Errors of a run below ``folder`` as sentences, and a signal as its exit code.

    Raises:
        InputError: If the folder is another run's or cannot be written to, or a number is not finite.
        typer.Exit: After a signal.
    """
    from spikeslab.errors import NonFiniteError
    from spikeslab.training import CheckpointError, Interrupted

    try:
        yield
    except Interrupted as error:  # typer would make 130 of every KeyboardInterrupt
        print(str(error).replace("resume=True", "--resume"), file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    except NonFiniteError as error:
        raise InputError(f"{str(error)[:1].upper()}{str(error)[1:]}") from error
    except (CheckpointError, BlockingIOError) as error:
        raise InputError(f"--out must be the folder of this run, but {error}") from error
    except OSError as error:
        raise InputError(
            f"--out must be a folder that can be written to, but {folder}: {error.strerror or error}."
        ) from error
