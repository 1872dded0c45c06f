"""Griffe extension: the reStructuredText in docstrings becomes Markdown.

Roles such as ``:class:`~spikeslab.SGHMC` `` become cross-references, ``:math:`` and ``.. math::`` become formulas. A
role that names nothing is a warning, which fails the build; one that names a helper without a page is plain code.
"""

from __future__ import annotations

import logging
import re
import textwrap
from typing import Any

import griffe

log = logging.getLogger("mkdocs.plugins.docstrings")

ROLE = re.compile(r":(class|func|meth|mod|attr|data|exc):`(~?)([^`]+)`")
INLINE_MATH = re.compile(r":math:`([^`]+)`")
BLOCK_MATH = re.compile(r"^( *)\.\. math::[ \t]*(.*)\n((?:[ \t]*\n|\1 +\S.*(?:\n|\Z))*)", re.MULTILINE)
DOCTEST = re.compile(r"^( *)>>> .*\n?(?:\1[^\s].*\n?|\1 +\S.*\n?)*", re.MULTILINE)
DOUBLE = re.compile(r"(?<!`)``(?!`)")
CODE_BLOCK = re.compile(r"^( *)\.\. code-block:: (\w+)\n((?:[ \t]*\n|\1 +\S.*(?:\n|\Z))*)", re.MULTILINE)


class RestructuredText(griffe.Extension):
    """Translation of every docstring of the package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Translate when the whole package is loaded, so that names can be resolved."""
        self._visit(pkg)

    def _visit(self, item: griffe.Object) -> None:
        if item.docstring is not None:
            item.docstring.value = to_markdown(item.docstring.value, item)
        for member in item.members.values():
            if not member.is_alias:
                self._visit(member)


def to_markdown(text: str, scope: griffe.Object) -> str:
    """Return a docstring as Markdown, with its roles resolved from ``scope``."""
    text = BLOCK_MATH.sub(_block_math, text)
    text = CODE_BLOCK.sub(lambda found: _fence(found[1], found[2], found[3]), text)
    text = INLINE_MATH.sub(lambda found: f"`#!math {' '.join(found[1].split())}`", text)
    text = ROLE.sub(lambda found: _reference(found[1], bool(found[2]), " ".join(found[3].split()), scope), text)
    text = DOCTEST.sub(lambda found: _fence(found[1], "pycon", found[0]), text)
    return DOUBLE.sub("`", text)


def _block_math(found: re.Match[str]) -> str:
    indent, first, rest = found.groups()
    return _fence(indent, "math", "\n".join(line.strip() for line in (first, *rest.splitlines())))


def _fence(indent: str, language: str, body: str) -> str:
    lines = textwrap.dedent(body).strip("\n").splitlines()
    return "\n".join([f"{indent}```{language}", *(f"{indent}{line}" for line in lines), f"{indent}```"]) + "\n\n"


def _reference(role: str, short: bool, target: str, scope: griffe.Object) -> str:
    shown = target.rpartition(".")[2] if short else target
    shown += "()" if role in {"func", "meth"} else ""
    if target.partition(".")[0] in {"torch", "numpy", "sklearn", "arviz"}:
        return f"`{shown}`"
    path = _resolve(target, scope)
    if path is None:
        log.warning("%s: :%s:`%s` names nothing", scope.path, role, target)
        return f"`{shown}`"
    return f'<autoref identifier="{path}" optional><code>{shown}</code></autoref>'


def _resolve(target: str, scope: griffe.Object) -> str | None:
    """Return the canonical path of a name as Python sees it from a scope, or None."""
    here: griffe.Object | None = scope
    while here is not None:
        found: Any = here
        try:
            for part in target.split("."):
                found = found.all_members[part]
            return str(found.canonical_path)
        except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
            here = here.parent
    try:
        return str(scope.modules_collection[target].canonical_path)
    except (KeyError, griffe.AliasResolutionError):
        return None
