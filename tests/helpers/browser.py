"""A real browser for tests of pages: Chromium without a window, driven by its command line alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)
PROBE = """
<script>
addEventListener("load", () => setTimeout(() => {
  const page = document.querySelector("iframe").contentDocument;
  const images = [...page.images].map(
    image => [image.complete, image.naturalWidth, image.getBoundingClientRect().width]);
  const requests = document.querySelector("iframe").contentWindow.performance.getEntriesByType("resource");
  const sizes = [...page.querySelectorAll("p, dd, dt, td, figcaption, h1, h2")].map(
    element => parseFloat(page.defaultView.getComputedStyle(element).fontSize));
  const result = {
    title: page.title,
    headings: [...page.querySelectorAll("h2")].map(heading => heading.textContent),
    images: images,
    requests: requests.map(request => request.name),
    width: page.documentElement.scrollWidth,
    smallest_font: Math.min(...sizes),
    text: page.body.innerText,
  };
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify(result);
  document.body.append(out);
}, 50));
</script>
"""


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def look(page: str, folder: Path, width: int) -> dict[str, Any]:
    """What a browser window of this width shows of a page, and what the browser complained about.

    The page is in a frame of a page of ours, which looks into it once it has loaded: a window cannot be as narrow as
    a telephone, a frame can.
    """
    frame = f'<iframe style="border:0;width:{width}px;height:800px" srcdoc="{escape(page)}"></iframe>'
    outer = folder / f"outer-{width}.html"
    outer.write_text(f"<!doctype html><body style='margin:0'>{frame}{PROBE}", encoding="utf-8")
    command = [str(find_chromium()), *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},800"]
    ran = subprocess.run(
        [*command, "--virtual-time-budget=5000", "--dump-dom", outer.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="probe">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found, f"the page did not load: {ran.stderr[-2000:]}"
    seen: dict[str, Any] = json.loads(unescape(found[1]))
    seen["console"] = [line for line in ran.stderr.splitlines() if ":CONSOLE" in line]
    return seen
