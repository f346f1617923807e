"""How does text that an agent printed become XML 1.0, whatever is in it? (B11, B12)

XML 1.0 has no way to hold most control characters, U+FFFE, U+FFFF or half an emoji: `&#27;` is as forbidden as the
character. So they are shown as what they are, `\\u001b`. All else stays: names keep their letters.
"""

from __future__ import annotations

import re

_FORBIDDEN = re.compile("[^\\t\\n\\r\\x20-\\x7e\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
"""What is no `Char` of XML 1.0, and the controls U+007F–U+009F: allowed, and discouraged."""

_TEXT = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"}
_ATTRIBUTE = _TEXT | {'"': "&quot;", "\t": "&#9;", "\n": "&#10;"}
_IN_TEXT, _IN_ATTRIBUTE = re.compile("[&<>\r]"), re.compile('[&<>\r"\t\n]')


def shown(text: str) -> str:
    """The text with every character that XML 1.0 cannot hold as its escape."""
    return _FORBIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def text(value: str) -> str:
    """Between tags. `>` is escaped too: `]]>` may not stand in text; and a CR, which a parser would make a LF."""
    return _IN_TEXT.sub(lambda found: _TEXT[found[0]], shown(value))


def attribute(value: str) -> str:
    """Between double quotes. Line ends and tabs are written as references, or a parser would make them blanks."""
    return _IN_ATTRIBUTE.sub(lambda found: _ATTRIBUTE[found[0]], shown(value))


def tag(name: str, attributes: dict[str, str | int | None]) -> str:
    """`name a="b"`: what stands between `<` and `>`; None leaves an attribute out."""
    shown_ones = (f' {key}="{attribute(str(value))}"' for key, value in attributes.items() if value is not None)
    return name + "".join(shown_ones)
