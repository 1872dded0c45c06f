"""HTML pages: a single file that needs no network, for a screen of any width and for paper.

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
    """Paragraph; ``kind`` is ``"plain"``, ``"note"`` (small) or ``"warning"``."""

    text: str
    kind: str = "plain"
    block: ClassVar[str] = "text"


@dataclass(frozen=True)
class Facts:
    """List of names and values."""

    facts: Mapping[str, str]
    block: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Code:
    """Command or code to copy."""

    code: str
    block: ClassVar[str] = "code"


@dataclass(frozen=True)
class Grid:
    """Table that scrolls by itself on a narrow screen."""

    table: Table
    block: ClassVar[str] = "table"


@dataclass(frozen=True)
class Picture:
    """Figure with a caption, and a description for readers who cannot see it."""

    png: bytes
    caption: str
    description: str
    block: ClassVar[str] = "picture"

    @property
    def uri(self) -> str:
        """Data URI of the figure."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


Block: TypeAlias = Text | Facts | Code | Grid | Picture


@dataclass(frozen=True)
class Section:
    """Heading with the blocks below it."""

    title: str
    blocks: Sequence[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """HTML page.

    Attributes:
        title: Heading.
        lead: The result in one or two sentences, below the heading.
        sections: Sections of the page.
    """

    title: str
    lead: str
    sections: Sequence[Section]

    def html(self) -> str:
        """Return the page as one HTML file."""
        environment = Environment(
            loader=PackageLoader("spikeslab.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        return environment.get_template("page.html.j2").render(page=self)
