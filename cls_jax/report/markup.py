"""HTML and SVG whose text is escaped by construction.

Pages are built with `tag` alone: whatever is not markup made here comes out as text.
"""

import html
from collections.abc import Iterable
from typing import Any

_VOID = frozenset({"br", "col", "img", "link", "meta"})
# What no HTML document may hold: control characters and halves of surrogate pairs, which file
# names can have.
_FORBIDDEN = {
    **dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], " "),
    **dict.fromkeys([*range(0xD800, 0xE000), 0xFFFE, 0xFFFF], "\N{REPLACEMENT CHARACTER}"),
    **{ord("\n"): "\n", ord("\t"): "\t"},
}


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(text: Any) -> Html:
    """Any value as text of a page, safe in elements and in quoted attributes."""
    return Html(html.escape(str(text).translate(_FORBIDDEN)))


def join(*parts: Any) -> Html:
    """Markup as it is, None as nothing, the items of iterables in turn, all else as text."""
    return Html("".join(_convert(parts)))


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element.

    Args:
        name: of the element.
        *children: as `join` takes them.
        **attributes: values are escaped; None and False leave an attribute out, True leaves it
            without a value. `class_` is `class`, other underscores are hyphens.
    """
    opening = name + "".join(_to_attribute(*item) for item in attributes.items())
    return Html(f"<{opening}>" if name in _VOID else f"<{opening}>{join(*children)}</{name}>")


def _convert(parts: Iterable[Any]) -> Iterable[str]:
    for part in parts:
        if part is None:
            continue
        if isinstance(part, Html):
            yield part
        elif isinstance(part, Iterable) and not isinstance(part, str):
            yield from _convert(part)
        else:
            yield escape(part)


def _to_attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value)}"'
