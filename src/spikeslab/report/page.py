"""The one style of HTML pages: a single file that needs no network, for a screen of any width and for paper.

>>> page = Page("Selection", "y from 3 variables", [Section("Result", [Text("One variable was selected.")])])
>>> "<h2>Result</h2>" in page.html()
True
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined

if TYPE_CHECKING:
    from spikeslab.report.tables import Table


@dataclass(frozen=True)
class Text:
    """A paragraph; ``kind`` is ``"plain"``, ``"note"`` (small) or ``"warning"``."""

    text: str
    kind: str = "plain"
    block: ClassVar[str] = "text"


@dataclass(frozen=True)
class Facts:
    """Names and what they are."""

    facts: Mapping[str, str]
    block: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Code:
    """Something to type."""

    code: str
    block: ClassVar[str] = "code"


@dataclass(frozen=True)
class Grid:
    """A table, which scrolls by itself where the screen is too narrow."""

    table: Table
    block: ClassVar[str] = "table"


@dataclass(frozen=True)
class Picture:
    """A figure: what it shows, for those who see it (``caption``) and those who do not (``description``)."""

    png: bytes
    caption: str
    description: str
    block: ClassVar[str] = "picture"

    @property
    def uri(self) -> str:
        """The figure as a PNG in a data URI."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


Block: TypeAlias = Text | Facts | Code | Grid | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what is below it."""

    title: str
    blocks: Sequence[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: Its heading.
        lead: The result in one or two sentences, below the heading.
        sections: What follows.
    """

    title: str
    lead: str
    sections: Sequence[Section]

    def html(self) -> str:
        """The page as one HTML file."""
        environment = Environment(
            loader=PackageLoader("spikeslab.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        return environment.get_template("page.html.j2").render(page=self)
