"""Put tables under ``results/`` into ``docs/select.md``, between its markers.

    python docs/make_select.py

A marker names its table: ``<!-- result: selection/sbc -->`` begins it and ``<!-- end -->`` ends it. A test compares.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "select.md"
MARKED = re.compile(r"<!-- result: (\S+) -->\n.*?<!-- end -->", re.DOTALL)


def shown(name: str, root: Path = ROOT) -> str:
    """A table without its heading, with a link to its raw numbers."""
    text = (root / "results" / f"{name}.md").read_text(encoding="utf-8")
    command = json.loads((root / "results" / f"{name}.json").read_text(encoding="utf-8"))["run"]["command"]
    body = text.partition("\n")[2].rpartition("Made by")[0]
    return f"{body.strip()}\n\nMade by `{command}`: [raw numbers](../results/{name}.json)."


def page(text: str) -> str:
    """The page with the present results."""
    return MARKED.sub(lambda found: f"<!-- result: {found[1]} -->\n\n{shown(found[1])}\n\n<!-- end -->", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
