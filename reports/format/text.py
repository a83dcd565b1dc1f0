"""Makes engine output safe to display, and formats numbers, durations and names.

Invariant: the result of `visible` has no control, bidirectional, invisible or surrogate character except newline and
tab. So it cannot hide or reorder text, or break a browser or an XML parser. It does not escape HTML, XML or Markdown.
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
    """Return the text with every invisible character written out. Line ends become newlines."""
    if text.replace("\n", "").replace("\t", "").isprintable():  # most text: rules out all that is looked for below
        return text
    return "".join(map(_shown, text.replace("\r\n", "\n")))


def _shown(char: str) -> str:
    code = ord(char)
    if char in _KEPT or not (_noncharacter(code) or unicodedata.category(char) in _HIDDEN):
        return char
    return f"⟨{_CONTROLS[code]}⟩" if code < len(_CONTROLS) else f"⟨U+{code:04X}⟩"


def _noncharacter(code: int) -> bool:
    """Return whether a code point is a noncharacter such as U+FFFE: illegal in XML 1.0, a parse error in HTML."""
    return code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


def one_line(text: str, limit: int = 600) -> str:
    """Return visible text on one line, cut at `limit` characters with "…"."""
    flat = " ".join(visible(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def token_text(text: str) -> str:
    """Return a token's text with visible white space, because a token diff may differ only in it."""
    return visible(text).replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·")


def tail(text: str, *, lines: int = 200, characters: int = 20_000) -> str:
    """Return the end of a log without colour codes, limited in lines and characters."""
    return "\n".join(_COLOURS.sub("", text).splitlines()[-lines:])[-characters:]


def storable(value: object) -> object:
    """Return plain data with lone surrogates replaced. JSON can contain them, UTF-8 cannot."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    return [storable(item) for item in value] if isinstance(value, list | tuple) else value


def visible_data(value: object) -> object:
    """Return plain data with every text visible, the keys of objects included."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible_data(key): visible_data(item) for key, item in value.items()}
    return [visible_data(item) for item in value] if isinstance(value, list | tuple) else value


def number(value: float | None) -> str:
    """Return a number as text: whole numbers with grouped digits, others with three significant digits."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000 or value == int(value):
        return f"{round(value):,}".replace(",", _NARROW_SPACE)
    return f"{value:.3g}"


def many(count: int, what: str) -> str:
    """Return a count with its noun, for example "2 runs"."""
    return f"{number(count)} {what}{'s' * (count != 1)}"


def duration(seconds: float | None) -> str:
    """Return a duration as text with a suitable unit."""
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
    """Return a time since the workload's start in seconds, with three decimals."""
    return f"{seconds:.3f}"


def day_and_time(stamp: str) -> str:
    """Return an ISO 8601 time in UTC as date and time; any other text unchanged."""
    return _UTC.sub(r"\1 \2 UTC", stamp)


def web_link(text: str) -> str:
    """Return the text if it is one plain https address, else "". No other scheme may become a link."""
    return text if _WEB_LINK.fullmatch(text) and visible(text) == text else ""


def report_name(address: str) -> str:
    """Return a GitHub issue or pull request as owner/name#number; any other address unchanged."""
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)", address)
    return f"{found[1]}#{found[2]}" if found else address


def listed(words: list[str]) -> str:
    """Join words with commas, and "and" before the last one."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def slug(text: str) -> str:
    """Return the text with only characters that are safe in an HTML id or a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text) or "unnamed"


def is_file_name(text: str) -> bool:
    """Return whether a text from outside is a safe name of a file that is not hidden."""
    return slug(text) == text and not text.startswith(".")


def unique(name: str, taken: set[str]) -> str:
    """Return the name, with a number appended if it is taken, and add it to `taken`."""
    found, count = name, 1
    while found in taken:
        count += 1
        found = f"{name}-{count}"
    taken.add(found)
    return found


def file_link(*parts: str) -> str:
    """Return a relative link to a file in the report's folder. No part can leave that folder."""
    return "/".join(quote(part.encode("utf-8", "replace").strip(b"."), safe="") for part in parts)
