"""LaTeX as MathML, which browsers draw by themselves: no script, no fonts to download."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert


def to_mathml(latex: str, display: str) -> str:
    """Return the MathML element of a formula; ``display`` is ``"block"`` or ``"inline"``."""
    latex = re.sub(r"\\(?:[Bb]igg?[lrm]?)(?![a-zA-Z])", "", " ".join(latex.split()))  # fences stretch by themselves
    return convert(latex, display=display)


def format_block(source: str, language: str, css_class: str, options: Any, md: Any, **keywords: Any) -> str:
    """Format a fence ```` ```math ````, as pymdownx.superfences asks for it."""
    return f'<div class="formula">{to_mathml(source, "block")}</div>'


def format_inline(source: str, language: str, css_class: str, md: Any) -> str:
    """Format inline code that begins with ``#!math``, as pymdownx.inlinehilite asks for it."""
    return to_mathml(html.unescape(source), "inline")
