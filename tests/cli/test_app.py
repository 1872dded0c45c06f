"""Exit codes and sentences of the command line."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import spikeslab.paper.demo.demo
from spikeslab import __version__
from spikeslab.cli import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["spikeslab", *arguments])
    return main()


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"spikeslab {__version__}\n"


def test_the_package_runs_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["spikeslab", "--threads"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("spikeslab", run_name="__main__")
    assert end.value.code == 2
    assert re.match(r"Error: No such option:? .?--threads", capsys.readouterr().err)


def test_help_has_examples(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    assert "spikeslab demo --out out/demo" in capsys.readouterr().out
    assert run(monkeypatch, "demo", "--help") == 0
    assert "spikeslab demo --steps 500" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [(), ("reproduce",)])
def test_without_a_command_the_help_is_shown_and_no_error(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, *arguments)
    captured = capsys.readouterr()
    assert "Usage: spikeslab" in captured.out + captured.err
    assert "Error" not in captured.out + captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--steps", "0"), "--steps must be an integer >= 1, but got 0."),
        (("demo", "--seed", "-1"), "--seed must be an integer >= 0, but got -1."),
        (("demo", "--seed", f"{2**63}"), f"--seed must be an integer below 2**63, but got {2**63}."),
        (("reproduce", "linear", "--seed", f"{2**63}"), f"--seed must be an integer below 2**63, but got {2**63}."),
    ],
)
def test_bad_options_are_one_sentence(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"


@pytest.mark.parametrize("arguments", [("demo", "--steps", "many"), ("demo", "--nonsense"), ("nonsense",)])
def test_what_typer_finds_is_one_line(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: ")
    assert arguments[-1].strip("-") in line or "integer" in line


@pytest.mark.parametrize("below", ["", "demo/deeper"])
def test_out_must_not_be_or_lie_in_a_file(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert run(monkeypatch, "demo", "--out", str(file / below)) == 2
    assert capsys.readouterr().err == f"Error: --out must be a folder, but {file} is a file.\n"
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("command", "name", "what"),
    [
        ("demo", "digits.md", "a table"),
        ("demo", "linear.png", "a figure"),
        ("reproduce theory", "theorem1.json", "a table"),
        ("reproduce linear", "methods.md", "a table"),
        ("reproduce logistic", "latents.png", "a figure"),
        ("reproduce uci", "table.md", "a table"),
        ("reproduce adversarial", "figure2.png", "a figure"),
    ],
)
def test_files_of_others_are_not_replaced(
    command: str,
    name: str,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / name
    file.write_text("my own notes")
    assert run(monkeypatch, *command.split(), "--out", str(tmp_path)) == 2
    expected = f"Error: --out must be a new file or one with {what}, but {file} holds something else.\n"
    assert capsys.readouterr().err == expected
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "my own notes")]


def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "x.png"))

    monkeypatch.setattr(spikeslab.paper.demo.demo, "run_demo", refuse)
    assert run(monkeypatch, "demo", "--out", str(tmp_path)) == 2
    expected = f"Error: --out must be writable, but {tmp_path}: Permission denied.\n"
    assert capsys.readouterr().err == expected


def test_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(spikeslab.paper.demo.demo, "run_demo", interrupt)
    assert run(monkeypatch, "demo", "--out", str(tmp_path)) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."


@pytest.mark.parametrize(
    ("package", "modules"),
    [
        ("typer", ("spikeslab.cli.app",)),
        ("rich", ("spikeslab.cli.app", "spikeslab.cli.demo")),
        (
            "matplotlib",
            ("spikeslab.paper.demo.demo", "spikeslab.paper.selection_figures", "spikeslab.report.figures"),
        ),
    ],
)
def test_missing_packages(
    package: str, modules: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert run(monkeypatch, "demo") == 2
    assert capsys.readouterr().err == (
        f"The command line needs the package {package!r}, which is not installed: "
        "pip install 'spikeslab[cli,report,sklearn]'.\n"
    )


def test_missing_scikit_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert run(monkeypatch, "demo", "--out", str(tmp_path), "--steps", "1") == 2
    assert capsys.readouterr().err.endswith("The digits come with scikit-learn: pip install spikeslab[sklearn].\n")


LOADED = "import sys; from spikeslab.cli import main; code = main(); print('CODE', code, *sys.modules); sys.exit(code)"


def load(*arguments: str, cwd: Path) -> tuple[int, set[str]]:
    """Run a command in a process of its own, and return its exit code and the modules that it imported."""
    done = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, cwd=cwd)
    assert "Traceback" not in done.stderr
    _, _, modules = done.stdout.rpartition("CODE ")
    return done.returncode, set(modules.split())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help", 0),
        ("compress --help", 0),
        ("bench --help", 0),
        ("compress --nonsense", 2),
        ("compress recipe.py --sparsity 2", 2),
        ("select t.csv --target y --level 2", 2),
        ("predict model t.csv --level 2", 2),
        ("bench --threads 0", 2),
        ("reproduce linear --steps 5", 2),
    ],
)
def test_nothing_heavy_is_imported_before_a_command_works(arguments: str, code: int, tmp_path: Path) -> None:
    found, modules = load(*arguments.split(), cwd=tmp_path)
    assert found == code
    assert not modules & {"torch", "numpy", "sklearn", "scipy", "pandas", "numba", "matplotlib", "jinja2"}
    assert ("rich" in modules) == ("--help" in arguments)


def test_select_and_predict_import_no_torch(tmp_path: Path) -> None:
    rows = "".join(f"{i % 7},{i % 5},{i % 7 + i % 2 / 9}\n" for i in range(40))
    (tmp_path / "t.csv").write_text(f"a,b,y\n{rows}")
    for arguments in ("select t.csv --target y --iterations 10 --out model", "predict model t.csv --out p.csv"):
        code, modules = load(*arguments.split(), cwd=tmp_path)
        assert code == 0
        assert "numba" in modules
        assert "torch" not in modules


def test_names_in_help_texts_are_those_of_the_library() -> None:
    from spikeslab.cli import compress, select
    from spikeslab.compression import METHODS
    from spikeslab.sklearn import SpikeSlabClassifier, SpikeSlabRegressor
    from spikeslab.tabular.target import FAMILIES

    assert tuple(METHODS) == compress.METHODS
    assert tuple(FAMILIES) == select.FAMILIES
    assert set(select.METHODS) == {*SpikeSlabClassifier._methods, *SpikeSlabRegressor._methods}


def test_letters_that_the_terminal_lacks_are_replaced(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "spikeslab", "init", "réçipe.py"], capture_output=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0
    assert b"r??ipe.py" in done.stdout or b"r?\xc3" in done.stdout or b"?ipe.py" in done.stdout
    assert done.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_full_output_is_one_sentence(option: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spikeslab", option], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (2, "Error: The output cannot be written: No space left on device.\n")
