"""Execution of the gallery: every script under ``examples/gallery`` becomes a page with its output and figures.

A script is prose and code in turns: its docstring first, then blocks that begin with ``# %%`` and comment lines. What a
block prints and the figures that it shows stand below it. A result is kept under ``out/gallery`` with a checksum of the
script and of the package, so that tests and site execute it once.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "examples" / "gallery"
STORE = ROOT / "out" / "gallery"


@dataclass(frozen=True)
class Block:
    """One step of a script: what it says and what it does."""

    prose: str
    code: str
    line: int


@dataclass(frozen=True)
class Example:
    """An executed script: its title, its page in Markdown and the folder of its figures."""

    name: str
    title: str
    summary: str
    page: str
    folder: Path
    seconds: float

    @property
    def figures(self) -> list[Path]:
        """Figures in the order in which they were shown."""
        return sorted(self.folder.glob("*.png"))


def scripts() -> list[Path]:
    """Return the scripts of the gallery in the order of their names."""
    return sorted(SCRIPTS.glob("*.py"))


def split(source: str) -> tuple[str, str, list[Block]]:
    """Return the title, the introduction and the blocks of a script."""
    tree = ast.parse(source)
    title, _, introduction = (ast.get_docstring(tree) or "").partition("\n")
    lines = source.splitlines()
    first = tree.body[0].end_lineno or 1
    starts = [first, *(number for number, line in enumerate(lines) if line.startswith("# %%") and number >= first)]
    blocks = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        body = lines[start:end]
        skip = 1 if body and body[0].startswith("# %%") else 0
        stop = skip
        while skip and stop < len(body) and body[stop].startswith("#"):
            stop += 1
        prose = "\n".join(re.sub(r"^# ?", "", line) for line in body[skip:stop])
        code = "\n".join(body[stop:])
        if prose.strip() or code.strip():
            blank = len(code) - len(code.lstrip("\n"))
            blocks.append(Block(prose.strip(), code.strip("\n"), start + stop + blank))
    return title.rstrip("."), introduction.strip(), blocks


def execute(script: Path, folder: Path) -> str:
    """Run a script in this process, write its figures to ``folder`` and return the page in Markdown."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    title, introduction, blocks = split(script.read_text(encoding="utf-8"))
    shown: list[Path] = []

    def show() -> None:
        for number in plt.get_fignums():
            path = folder / f"{script.stem}-{len(shown) + 1}.png"
            plt.figure(number).savefig(path, dpi=130, bbox_inches="tight")
            shown.append(path)
        plt.close("all")

    plt.show = lambda *_, **__: show()
    parts = [f"# {title}", introduction]
    namespace: dict[str, object] = {"__name__": "__main__", "__file__": str(script)}
    for block in blocks:
        printed, before = io.StringIO(), len(shown)
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * block.line + block.code, str(script), "exec"), namespace)
        parts += [block.prose, f"```python\n{block.code}\n```" if block.code else ""]
        if printed.getvalue().strip():
            parts.append(f'```text title="Output"\n{printed.getvalue().rstrip()}\n```')
        parts += [f"![Figure of the code above]({path.name})" for path in shown[before:]]
    return "\n\n".join(part for part in parts if part) + "\n"


def run(script: Path) -> Example:
    """Return an executed script, from the store if neither it nor the package has changed since."""
    folder = STORE / script.stem
    record = folder / "page.json"
    key = _checksum(script)
    if not record.exists() or json.loads(record.read_text(encoding="utf-8"))["key"] != key:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.png"):
            old.unlink()
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, __file__, str(script), str(folder)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or done.stderr:
            raise RuntimeError(f"{script.name} failed or warned:\n{done.stderr}")
        seconds = time.perf_counter() - start
        record.write_text(json.dumps({"key": key, "page": done.stdout, "seconds": seconds}), encoding="utf-8")
    stored = json.loads(record.read_text(encoding="utf-8"))
    title, introduction, _ = split(script.read_text(encoding="utf-8"))
    summary = introduction.partition("\n\n")[0]
    return Example(script.stem, title, summary, stored["page"], folder, stored["seconds"])


def _checksum(script: Path) -> str:
    digest = hashlib.sha256()
    for path in [script, Path(__file__), *sorted((ROOT / "src").rglob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(execute(Path(sys.argv[1]), Path(sys.argv[2])), end="")
