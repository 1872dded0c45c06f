"""Every Python example of the documentation runs, and every link in it leads somewhere."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("CONTRIBUTING.md")), *sorted((ROOT / "docs").glob("*.md"))]
TEXT_ONLY = re.compile(r"results.*|benchmarks")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def one_thread():
    """Small tensors gain nothing from threads, and lose much where cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("page", [page for page in PAGES if not TEXT_ONLY.fullmatch(page.stem)], ids=page_name)
def test_examples_run(page, tmp_path, monkeypatch, one_thread):
    text = page.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert blocks, f"{page_name(page)} has no Python example"
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace = {"__name__": "example"}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        # Blank lines in front make a traceback show the line of the page.
        exec(compile("\n" * line + block[1], str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    targets = [link for link in links if "://" not in link]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_the_pieces_for_own_work_are_where_the_page_says():
    section = (ROOT / "docs" / "images.md").read_text(encoding="utf-8").partition("## Pieces for your own work")[2]
    rooms = re.findall(r"^- `(spikeslab\.[\w.]+)`:(.*(?:\n  .*)*)", section, re.MULTILINE)
    assert [room for room, _ in rooms] == [
        f"spikeslab.{room}" for room in ("paper.images", "metrics", "report.plots", "attacks")
    ]
    for room, names in rooms:
        there = dir(importlib.import_module(room))
        missing = [name for name in re.findall(r"`(\w+)`", names) if name not in there]
        assert not missing, f"{room} has no {missing}"


WALKS = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Four walks")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    "walk",
    [pytest.param(walk, id=walk.partition("\n")[0]) for walk in WALKS.split("\n### ")[1:]],
)
def test_the_files_and_names_of_a_walk_are_there(walk):
    """A file stands with its folder, or next to one named before; its names are the module's or of a class in it."""
    source, folders, known = ROOT / "src" / "spikeslab", [], {}
    for file in re.findall(r"[\w/]+\.py", walk):
        found = [folder / file for folder in (source, *folders) if (folder / file).exists()]
        assert found, f"there is no {file}"
        folders.append(found[0].parent)
        parts = found[0].relative_to(source).with_suffix("").parts
        module = importlib.import_module(".".join(("spikeslab", *parts)))
        known[file] = [module, *(each for each in vars(module).values() if isinstance(each, type))]
    everything = [each for owners in known.values() for each in owners]
    for line in re.search(r"^```text\n(.*?)^```$", walk, re.MULTILINE | re.DOTALL)[1].splitlines():
        file, names = re.match(r" *(?:([\w/]+\.py) +)?(.*?)(?:  |$)", line).groups()
        if not re.fullmatch(r"[\w., ]+(?: -> \w+)?", names) or line.startswith(" " * 40):
            continue  # a call, or the rest of an explanation
        for name in re.split(", | -> ", names):
            first, _, last = name.partition(".")
            if name == "..." or (last and first.islower()):  # an object, not a name of a module
                continue
            owners = [getattr(owner, first) for owner in known.get(file, everything) if hasattr(owner, first)]
            assert any(not last or hasattr(owner, last) for owner in owners), f"{file or 'the walk'} has no {name}"


def load_script(name: str) -> dict[str, object]:
    return runpy.run_path(str(ROOT / "docs" / name))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_tables_are_those_of_the_results(page):
    with_tables = load_script("make_tables.py")["with_tables"]
    assert with_tables(page) == page.read_text(encoding="utf-8"), "run python docs/make_tables.py"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 800


def test_every_public_room_has_an_api_page():
    source = (ROOT / "docs" / "hooks" / "pages.py").read_text(encoding="utf-8")
    pages = re.search(r"^API = \{\n(.*?)^\}", source, re.MULTILINE | re.DOTALL)[1]
    shown = set(re.findall(r'"([a-z_.]+)"', pages))
    inside = {
        "bench",
        "cli",
        "graph",
        "kernels",
        "paper",
        "tabular",
    }  # not for users to import
    rooms = {path.parent.name for path in (ROOT / "src" / "spikeslab").glob("*/__init__.py")} - inside
    assert rooms <= {name.partition(".")[0] for name in shown}
