"""Text that an engine may have written, made harmless to look at.

Invariant: what `visible` returns holds no control, bidirectional, invisible or surrogate character but newline and tab,
so nothing in it can hide, reorder or break what a reader, a browser or an XML parser sees. Escaping for HTML, XML or
Markdown is the writer's, not done here.
"""

from __future__ import annotations

import math
import re
import unicodedata
from urllib.parse import quote

# Cc and Cf hold the control, bidi and zero-width characters, Cs the lone surrogates, Co the private-use ones, Zl and Zp
# the separators that some viewers break lines at.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
# Words and not Unicode's control pictures, which many system fonts lack.
_CONTROLS = (
    *("NUL", "SOH", "STX", "ETX", "EOT", "ENQ", "ACK", "BEL", "BS", "TAB", "LF", "VT", "FF", "CR", "SO", "SI"),
    *("DLE", "DC1", "DC2", "DC3", "DC4", "NAK", "SYN", "ETB", "CAN", "EM", "SUB", "ESC", "FS", "GS", "RS", "US"),
)
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_KEPT = frozenset("\n\t")
_NARROW_SPACE = "\u202f"
_UTC = re.compile(r"\A(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d)?(?:Z|\+00:00)\Z")
_WEB_LINK = re.compile(r"https://[A-Za-z0-9][^\s<>\"'\\]*")


def visible(text: str) -> str:
    """The same text with every character that cannot be seen written out; line ends become plain newlines."""
    if text.replace("\n", "").replace("\t", "").isprintable():  # most text: rules out all that is looked for below
        return text
    return "".join(map(_shown, text.replace("\r\n", "\n")))


def _shown(char: str) -> str:
    code = ord(char)
    if char in _KEPT or not (_noncharacter(code) or unicodedata.category(char) in _HIDDEN):
        return char
    return f"⟨{_CONTROLS[code]}⟩" if code < len(_CONTROLS) else f"⟨U+{code:04X}⟩"


def _noncharacter(code: int) -> bool:
    """U+FFFE and its kin are illegal in XML 1.0 and a parse error in HTML, whatever their category."""
    return code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


def one_line(text: str, limit: int = 600) -> str:
    """Visible text on one line, cut at `limit` characters with a mark."""
    flat = " ".join(visible(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def token_text(text: str) -> str:
    """A token's text with its white space shown: in a token diff a lost newline or blank is the finding."""
    return visible(text).replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·")


def tail(text: str, *, lines: int = 200, characters: int = 20_000) -> str:
    """The end of a log without its colour codes, bounded both ways: one case must not fill the report."""
    return "\n".join(_COLOURS.sub("", text).splitlines()[-lines:])[-characters:]


def storable(value: object) -> object:
    """Plain data with lone surrogates replaced. JSON from an engine can carry them, UTF-8 cannot."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    return [storable(item) for item in value] if isinstance(value, list | tuple) else value


def number(value: float | None) -> str:
    """A figure for a column of figures: whole numbers grouped, others to three significant places."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000 or value == int(value):
        return f"{round(value):,}".replace(",", _NARROW_SPACE)
    return f"{value:.3g}"


def many(count: int, what: str) -> str:
    """So many of something, in words that take an s."""
    return f"{number(count)} {what}{'s' * (count != 1)}"


def duration(seconds: float | None) -> str:
    """A time span as one would say it."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}{_NARROW_SPACE}ms"
    if seconds < 99.95:
        return f"{seconds:.3g}{_NARROW_SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{_NARROW_SPACE}min {rest:02d}{_NARROW_SPACE}s"
    return f"{minutes // 60}{_NARROW_SPACE}h {minutes % 60:02d}{_NARROW_SPACE}min"


def moment(seconds: float) -> str:
    """A time since the workload began, always in seconds so that a column of them compares at a glance."""
    return f"{seconds:.3f}"


def day_and_time(stamp: str) -> str:
    """An ISO 8601 time in UTC as one would write it; anything else as it is."""
    return _UTC.sub(r"\1 \2 UTC", stamp)


def web_link(text: str) -> str:
    """The text if it is one plain https address, else nothing: no other scheme is ever made a link."""
    return text if _WEB_LINK.fullmatch(text) and visible(text) == text else ""


def report_name(address: str) -> str:
    """An issue's or a pull request's address as threads name it; any other address as it is."""
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)", address)
    return f"{found[1]}#{found[2]}" if found else address


def listed(words: list[str]) -> str:
    """Words with commas, and an 'and' before the last."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def slug(text: str) -> str:
    """The part of an HTML id or file name that is safe everywhere."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text) or "unnamed"


def unique(name: str, taken: set[str]) -> str:
    """The name, or with a number behind it where it is taken already; it is taken from then on."""
    found, count = name, 1
    while found in taken:
        count += 1
        found = f"{name}-{count}"
    taken.add(found)
    return found


def file_link(*parts: str) -> str:
    """A relative link to a file of the report's own folder; a part cannot climb out of it."""
    return "/".join(quote(part.encode("utf-8", "replace").strip(b"."), safe="") for part in parts)
