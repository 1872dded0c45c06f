"""The command line. What it needs beyond the optimizer comes with extras, so nothing of it is imported before use."""

from __future__ import annotations

import sys

from spikeslab.errors import MissingExtraError

EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "pooch": "cli",
    "matplotlib": "report",
    "jinja2": "report",
    "torchmetrics": "report",
    "sklearn": "sklearn",
    "scipy": "sklearn",
    "numba": "sklearn",
    "pandas": "sklearn",
}


def main() -> int:
    """Run the command of ``sys.argv`` and return its exit code."""
    try:
        from spikeslab.cli.app import run

        return run()
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS and not isinstance(error, MissingExtraError):
            raise
        print(_advise(package) if package in EXTRAS else error, file=sys.stderr)
        return 2


def _advise(package: str) -> str:
    """Return a sentence that says what to install.

    >>> _advise("rich")
    "The command line needs the package 'rich', which is not installed: pip install 'spikeslab[cli,report,sklearn]'."
    """
    extras = ",".join(dict.fromkeys(EXTRAS.values()))
    return f"The command line needs the package {package!r}, which is not installed: pip install 'spikeslab[{extras}]'."
