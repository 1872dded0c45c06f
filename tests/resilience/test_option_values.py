"""Attack on the command line: every option of every command with values that nobody thought of.

A command ends in 0 or 2. If a value is refused, one sentence names the option or quotes the value. There is no
traceback, and nothing is written that is not the command's own.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from recipes import RECIPE, read_files

from spikeslab.cli.app import app, run

pytestmark = pytest.mark.slow

WORDS = (
    "", " ", "-1", "0", "1", "2", "1e9", "nan", "inf", "-inf", "1e400", "1e-400", "9" * 20, "9" * 400, "9" * 5000,
    "é😀", "\udcff", "a" * 300, "b/" * 3000, "../..", ".", "~", "folder", "file.txt", "missing/x/y", "link", "loop",
    "/proc/nope", "/dev/null", "/dev/null/x", "/dev/full", "a\0b", "a\nb", "{lr}", "{", "%s", "[red]x[/]", "a=b",
    "lr=nan", "samples=" + "9" * 400, "1,1", ",", "true", "None", "c" * 243,
)  # fmt: skip
"""Values of an option."""
COMMANDS = {
    "demo": "",
    "select": "t.csv --target y --iterations 10 --no-compare",
    "predict": "fitted t.csv",
    "init": "new.py",
    "compress": "recipe.py --epochs 1 --sparsity 0.5",
    "curve": "recipe.py --epochs 8 --levels 0.3,0.5",
    "prune": "recipe.py --weights 2.weight",
    "doctor": "run",
    "report": "run --out page.html",
    "sparsity": "run --no-latency",
    "export": "run",
    "bench": "--suite update --quick",
    "reproduce theory": "",
    "reproduce linear": "",
    "reproduce logistic": "",
    "reproduce uci": "--data-dir folder",
    "reproduce mnist": "--data-dir folder",
    "reproduce fashion": "--data-dir folder",
    "reproduce image-search": "mnist --data-dir folder",
    "reproduce adversarial": "--data-dir folder",
    "reproduce cifar10": "--pretrain --data-dir folder",
}
"""Arguments with which a command has nothing to refuse but the data sets that it lacks."""
WORK = {
    "spikeslab.paper.demo.demo": "run_demo",
    "spikeslab.cli.select": "_fit",
    "spikeslab.compression.compress": "CompressionRun.run",
    "spikeslab.compression.curve": "CurveRun.run",
    "spikeslab.compression.one_shot": "prune_one_shot",
    "spikeslab.compression": "export_onnx",
    "spikeslab.diagnostics.report": "examine",
    "spikeslab.bench.suites": "Suite.run",
    "spikeslab.paper.cifar10.study": "check_run",
    "spikeslab.paper.theory.study": "theorem1",
    "spikeslab.paper.selection": "SelectionStudy.run",
}
"""Long work, in place of which an attacked command is stopped: its options have been accepted."""
STOPPED = 130


def run_quietly(arguments: list[str]) -> tuple[int, str]:
    """Run a command, and return its exit code and what it wrote to standard error."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            code = run(arguments)
        except BaseException as error:
            return -1, f"{type(error).__name__}: {error}"
    return code, errors.getvalue()


def list_parameters(command: str) -> list[Any]:
    found: Any = typer.main.get_command(app)
    for name in command.split():
        found = found.commands[name]
    return [parameter for parameter in found.params if parameter.name != "help"]


def make_arguments(command: str, parameter: Any, value: str) -> list[str]:
    """Return the arguments with ``value`` for the parameter in place of what ``COMMANDS`` says."""
    words = COMMANDS[command].split()
    option = parameter.opts[0]
    if not option.startswith("--"):  # an argument, by its place
        place = [item.name for item in list_parameters(command) if not item.opts[0].startswith("--")].index(option)
        return [*command.split(), *words[:place], value, *words[place + 1 :]]
    if option in words:
        at = words.index(option)
        del words[at : at + 2]
    return [*command.split(), *words, f"{option}={value}"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table and a model of it, a recipe and its run."""
    folder = tmp_path_factory.mktemp("made")
    rows = "".join(f"{i % 7},{i % 5},{i % 7 + i % 2 / 9}\n" for i in range(40))
    (folder / "t.csv").write_text(f"a,b,y\n{rows}")
    (folder / "recipe.py").write_text(RECIPE)
    table, recipe = str(folder / "t.csv"), str(folder / "recipe.py")
    assert (
        run_quietly(
            ["select", table, "--target", "y", "--iterations", "10", "--no-compare", "--out", str(folder / "fitted")]
        )[0]
        == 0
    )
    assert (
        run_quietly(
            ["compress", recipe, "--epochs", "2", "--sparsity", "0.5", "--no-report", "--out", str(folder / "run")]
        )[0]
        == 0
    )
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The present folder, three levels below the test's own, with things in it that must stay."""

    def end(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for module, name in WORK.items():
        owner, _, function = name.rpartition(".")
        target = import_module(module)
        monkeypatch.setattr(getattr(target, owner) if owner else target, function, end)
    folder = tmp_path / "one" / "two" / "here"
    (folder / "folder").mkdir(parents=True)
    for kept in ("file.txt", "folder/keep.txt", "../keep.txt", "../../keep.txt"):
        (folder / kept).write_text("mine")
    for name in ("t.csv", "recipe.py", "fitted", "run"):
        (folder / name).symlink_to(made / name)
    (folder / "link").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("SPIKESLAB_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield folder
    for kept in ("file.txt", "folder/keep.txt", "../keep.txt", "../../keep.txt"):
        assert (folder / kept).read_text() == "mine"


@pytest.mark.parametrize("command", COMMANDS)
def test_no_value_of_an_option_is_a_traceback(command: str, made: Path, place: Path) -> None:
    before = read_files(made)
    around = {path: sorted(path.iterdir()) for path in (Path("/"), place.parents[3])}
    accepted = run_quietly([*command.split(), *COMMANDS[command].split()])
    assert accepted[0] in (0, STOPPED) or "--data-dir" in accepted[1] or "--runs" in accepted[1], accepted
    wrong: list[tuple[list[str], int, str]] = []
    for parameter in list_parameters(command):
        name = parameter.opts[0] if parameter.opts[0].startswith("--") else parameter.metavar
        names = {name, "--sparsity"} if name == "--floor" else {name}  # a floor bounds the sparsity
        for word in WORDS:
            if word.startswith("-") and not name.startswith("-"):
                continue  # an option, not an argument
            arguments = make_arguments(command, parameter, word)
            code, errors = run_quietly(arguments)
            if code in (0, STOPPED) or (code, errors) == accepted:
                continue
            lines = [line for line in errors.replace("a\nb", "").splitlines() if not line.startswith("Warning: ")]
            named = any(text in ascii(errors) for text in (*names, ascii(word)[1:-1]))
            if code != 2 or len(lines) != 1 or not named:
                wrong.append((arguments, code, errors))
    assert wrong == []
    assert {path: sorted(path.iterdir()) for path in around} == around
    assert read_files(made) == before


def test_every_command_is_attacked() -> None:
    commands: Any = typer.main.get_command(app)
    found = {name: getattr(command, "commands", {}) for name, command in commands.commands.items()}
    names = [
        " ".join(words) for name, below in found.items() for words in ([(name, each) for each in below] or [(name,)])
    ]
    assert set(names) == set(COMMANDS)


def test_there_are_a_thousand_values() -> None:
    assert len(WORDS) * sum(len(list_parameters(command)) for command in COMMANDS) >= 1000
