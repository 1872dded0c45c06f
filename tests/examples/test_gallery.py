"""Every script of the gallery runs without a warning, prints and draws; the site shows what these runs leave."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load_gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "hooks" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


gallery = load_gallery()


def test_split() -> None:
    source = '"' * 3 + "Title.\n\nWhy.\n" + '"' * 3 + "\nimport os\n\n# %%\n# Add.\n\nx = 1  # one\n"
    title, introduction, blocks = gallery.split(source)
    assert (title, introduction) == ("Title", "Why.")
    assert [(block.prose, block.code) for block in blocks] == [("", "import os"), ("Add.", "x = 1  # one")]
    assert [source.splitlines()[block.line] for block in blocks] == ["import os", "x = 1  # one"]


def test_there_are_six() -> None:
    assert len(gallery.scripts()) >= 6


@pytest.mark.slow  # `make docs` runs them too, and fails where one does
@pytest.mark.parametrize("script", gallery.scripts(), ids=lambda script: script.stem)
def test_script_runs(script: Path) -> None:
    example = gallery.run(script)
    assert example.figures
    assert "```text" in example.page
    assert example.page.startswith(f"# {example.title}\n")
