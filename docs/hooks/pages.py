"""Hooks of the documentation site: API pages, the executed gallery, formulas, and links into the repository."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import gallery
import mathml

log = logging.getLogger("mkdocs.hooks.pages")

ROOT = Path(__file__).resolve().parents[2]
# Each page of the API and the modules on it: rooms show what they export, modules what they define.
API = {
    "Samplers": ["samplers"],
    "Priors": ["priors", "weights"],
    "Likelihoods": ["likelihoods"],
    "Schedules": ["schedules"],
    "Pruning": ["pruning"],
    "Posterior": ["posterior"],
    "Presets": ["presets"],
    "Compression": ["compression"],
    "Estimators": ["sklearn"],
    "Training": ["training", "forward_pass"],
    "Integrations": ["integrations.lightning", "integrations.huggingface", "integrations.lora"],
    "Parallel": ["parallel"],
    "Diagnostics": ["diagnostics"],
    "Metrics": ["metrics"],
    "Attacks": ["attacks"],
    "Reports": ["report.plots", "report.tables"],
    "Equations": [
        "functional.mixture",
        "functional.evidence",
        "functional.reconstruction",
        "functional.patterns",
        "functional.sgld",
        "functional.sghmc",
        "functional.psgld",
    ],
    "Errors": ["errors"],
}
OUTSIDE = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")
INSIDE = re.compile(r"\[([^]]*)\]\(([^)#\s:]+)\)")
COPIES = "repository"
HIDDEN = {"index.md": "navigation", "results-cifar10.md": "toc"}
"""Sidebars that leave their room to the page."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the formats of formulas and the pages that are made here to the navigation."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "math", "class": "formula", "format": mathml.format_block}]
    inline = config.mdx_configs.setdefault("pymdownx.inlinehilite", {})
    inline["custom_inline"] = [{"name": "math", "class": "formula", "format": mathml.format_inline}]
    made = {
        "gallery/index.md": [f"gallery/{script.stem}.md" for script in gallery.scripts()],
        "api/index.md": [{title: _api_uri(title)} for title in API],
    }
    for section in config.nav or []:
        for title, entry in section.items():
            if isinstance(entry, str) and entry in made:
                section[title] = [entry, *made[entry]]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the API pages, the executed gallery, and the files of the repository that pages link to."""
    for uri, content in [("index.md", _home()), *_api_pages(), *_gallery_pages()]:
        files.append(File.generated(config, uri, content=content))
    waiting = [file for file in files.documentation_pages() if not file.src_uri.startswith(f"{COPIES}/")]
    while waiting:
        page = waiting.pop()
        for target in _outside_targets(page):
            uri = f"{COPIES}/{target}"
            if files.get_file_from_path(uri) is None:
                copy = File.generated(config, uri, abs_src_path=str(ROOT / target))
                files.append(copy)
                if copy.is_documentation_page():
                    waiting.append(copy)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave ``docs/`` to their copies in the site."""
    here = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri in HIDDEN:
        page.meta["hide"] = [HIDDEN[page.file.src_uri]]

    def replace(found: re.Match[str]) -> str:
        target = _target(page.file, found[2])
        return found[0] if target is None else found[1] + posixpath.relpath(f"{COPIES}/{target}", here or ".")

    if here.startswith(COPIES):  # links to folders have no page
        there = ROOT / here.removeprefix(COPIES).lstrip("/")
        return INSIDE.sub(lambda found: found[0] if (there / found[2]).is_file() else found[1], markdown)
    return OUTSIDE.sub(replace, markdown)


def _outside_targets(page: File) -> Iterator[str]:
    if page.src_uri.startswith(f"{COPIES}/"):  # a page of results: its own figures come with it
        folder = posixpath.dirname(page.src_uri.removeprefix(f"{COPIES}/"))
        for _, link in INSIDE.findall(page.content_string):
            target = posixpath.normpath(posixpath.join(folder, link))
            if (ROOT / target).is_file():
                yield target
        return
    for found in OUTSIDE.finditer(page.content_string):
        target = _target(page, found[2])
        if target is not None:
            yield target


def _target(page: File, link: str) -> str | None:
    """Return the path in the repository of a link that leaves ``docs/``, or None if it stays."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.src_uri), link))
    if path.startswith(("docs/", "../")):
        return None
    if not (ROOT / path).is_file():
        log.warning("%s links to %s, which is not a file of the repository", page.src_uri, link)
        return None
    return path


def _home() -> str:
    """Return the README with its links as seen from ``docs/``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", lambda found: f"]({posixpath.relpath(found[1], 'docs')})", text)


def _api_uri(title: str) -> str:
    return f"api/{title.lower()}.md"


def _api_pages() -> Iterator[tuple[str, str]]:
    for title, modules in API.items():
        blocks = [_api_block(f"spikeslab.{module}") for module in modules]
        yield _api_uri(title), "\n\n".join([f"# {title}", *blocks]) + "\n"
    package = importlib.import_module("spikeslab")
    rows = []
    for name in sorted(package.__all__, key=str.lower):
        value = getattr(package, name)
        sentence = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
        path = value.__name__ if inspect.ismodule(value) else f"{value.__module__}.{value.__qualname__}"
        sentence = re.sub(r":[a-z]+:`~?([^`]*)`", r"`\1`", sentence)
        rows.append(f"| [`ss.{name}`][{path}] | {sentence} |")
    rooms = [f"- [{title}]({title.lower()}.md): {_rooms(modules)}" for title, modules in API.items()]
    head = (
        "# API\n\nNames at the top level, after `import spikeslab as ss`; the pages hold these and the rest of each "
        "room. A name that is not here may change without notice.\n"
    )
    table = "\n".join(["| | |", "|---|---|", *rows])
    yield "api/index.md", "\n\n".join([head, table.replace("``", "`"), "## Rooms", "\n".join(rooms)]) + "\n"


def _rooms(modules: list[str]) -> str:
    return ", ".join(f"`spikeslab.{module}`" for module in modules)


def _api_block(module: str) -> str:
    """Return the directive that shows what a module exports, or what it defines."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None) or [
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module
    ]
    hidden = [name for name in names if _is_module(f"{module}.{name}") and not inspect.ismodule(getattr(loaded, name))]
    members = "".join(f"\n        - {name}" for name in names if name not in hidden)
    blocks = [f"::: {module}\n    options:\n      members:{members}"]
    for name in hidden:  # a module of the same name would be shown instead
        options = f"heading: {module}.{name}\n      heading_level: 3\n      show_root_full_path: false"
        blocks.append(f"::: {getattr(loaded, name).__module__}.{name}\n    options:\n      {options}")
    return "\n\n".join(blocks)


def _is_module(path: str) -> bool:
    try:
        return importlib.util.find_spec(path) is not None
    except ModuleNotFoundError:
        return False


def _gallery_pages() -> Iterator[tuple[str, str | bytes]]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        examples = list(pool.map(gallery.run, gallery.scripts()))
    cards = []
    for example in examples:
        source = f"../../examples/gallery/{example.name}.py"
        foot = f"Executed when this site was built, in {example.seconds:.0f} s on one core: [the script]({source}).\n"
        yield f"gallery/{example.name}.md", f"{example.page}\n{foot}"
        for path in example.figures:
            yield f"gallery/{path.name}", path.read_bytes()
        picture = f"![]({example.figures[0].name})" if example.figures else ""
        cards.append(f"-   **[{example.title}]({example.name}.md)**\n\n    {picture}\n\n    {example.summary}")
    head = "# Gallery\n\nScripts of a few seconds on data that comes with scikit-learn; every figure is of this build."
    body = "\n\n".join(cards).replace("\n    \n", "\n\n")
    yield "gallery/index.md", f'{head}\n\n<div class="grid cards" markdown>\n\n{body}\n\n</div>\n'
