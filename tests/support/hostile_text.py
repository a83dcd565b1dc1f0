"""Replaces the strings of a stored value by hostile text, and checks that an output contains only our own markup.

Equal strings are replaced by equal ones, because names in a workload have to agree.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from html.parser import HTMLParser
from typing import Any, TypeVar
from xml.etree import ElementTree

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

Stored = TypeVar("Stored", bound=msgspec.Struct)

MARK = "planted"  # every line of the text begins with it, and so does everything that it would add
HOSTILE = (
    f"{MARK}' \" \\ ` ``` ''' \"\"\" '; {MARK} #\n"
    f"{MARK} $({MARK}) `{MARK}` ; {MARK} | {MARK} & {MARK} > {MARK} < /etc/passwd\r\n"
    f"{MARK}\r{MARK} </script><{MARK} {MARK}=1><img src=x {MARK}=2>\" {MARK}='3' --> ]]> <!-- &{MARK}; &amp;\n"
    f"\n{MARK}\n===\n# {MARK}\n- {MARK}\n| {MARK} | {MARK} |\n> {MARK}\n```\n~~~\n</details>\n"
    f"![{MARK}](https://{MARK}.example/a.png) [{MARK}](https://{MARK}.example) <https://{MARK}.example> "
    f"www.{MARK}.example @{MARK} <!doctype {MARK}>\n\n[{MARK}]: https://{MARK}.example\n\n"
    f"[[issue]]\n{MARK} = 1\n\"\"\"\n'''\n{{{{ {MARK} }}}} {{% {MARK} %}}\\\n"
    f"\x00\x07\x08\x0b\x0c\x1b[2J\x1b]0;{MARK}\x07\x1b[31m\x7f\x85\x9b31m\u2028\u2029\u202e\u2066\u200b\ufeff\ufffe\U0001f600"
)
SURROGATE = "\ud83d"
BENIGN = "benign"


def hostile(number: int) -> str:
    """Return one of many different hostile texts."""
    return f"{HOSTILE}{number}"


def benign(number: int) -> str:
    """Return the harmless text in the place of `hostile(number)`."""
    return f"{BENIGN}{number}"


def texts(value: Any) -> Iterator[str]:
    """Yield every string of plain data: the keys of dicts too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from texts(key)
            yield from texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts(one)


def replaced(value: Any, by: Mapping[str, str]) -> Any:
    """Return plain data with these strings replaced."""
    if isinstance(value, str):
        return by.get(value, value)
    if isinstance(value, Mapping):
        return {replaced(key, by): replaced(one, by) for key, one in value.items()}
    return [replaced(one, by) for one in value] if isinstance(value, list | tuple) else value


class Variants:
    """A stored value, in which each string can be replaced that may be any text. `accepts`: whether it can be read."""

    def __init__(self, value: msgspec.Struct, accepts: Callable[[Any], object]) -> None:
        self.plain, self.accepts, self.kind = plain_data(value), accepts, type(value)
        found = list(dict.fromkeys(one for one in texts(self.plain) if one))
        refused = {*self.refused(found, hostile), *self.refused(found, benign)}
        self.open = [one for one in found if one not in refused]

    def refused(self, names: list[str], text: Callable[[int], str]) -> list[str]:
        """Return the strings without which the value can no longer be read: names of steps, verdicts and so on."""
        if self.readable({one: text(number) for number, one in enumerate(names)}):
            return []
        half = len(names) // 2
        return names if not half else [*self.refused(names[:half], text), *self.refused(names[half:], text)]

    def readable(self, by: Mapping[str, str]) -> bool:
        """Return whether the value can still be read with these strings replaced."""
        try:
            self.accepts(self.value(by))
        except (msgspec.ValidationError, ValueError):
            return False
        return True

    def value(self, by: Mapping[str, str]) -> Any:
        """Return the value with these strings replaced."""
        return msgspec.json.decode(json.dumps(field_names_kept(self.plain, by)), type=self.kind)

    def all(self, text: Callable[[int], str], *, kept: Collection[str] = ()) -> Any:
        """Return the value with all open strings replaced but those that are kept."""
        return self.value({one: text(number) for number, one in enumerate(self.open) if one not in kept})

    def each(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield a string of each field, with the values that have a harmless and a hostile text in its place."""
        fields = fields_of(self.plain)
        covered: set[str] = set()
        for number, one in enumerate(self.open):
            if not fields[one] <= covered:
                covered |= fields[one]
                yield one, self.value({one: benign(number)}), self.value({one: hostile(number)})


def fields_of(value: Any) -> dict[str, set[str]]:
    """Return the fields in which each string occurs."""
    found: dict[str, set[str]] = defaultdict(set)

    def visit(one: Any, field: str) -> None:
        if isinstance(one, str):
            found[one].add(field)
        elif isinstance(one, dict):
            for key, item in one.items():
                named = key in field_names()
                if not named:
                    found[key].add(f"{field} key")
                visit(item, f"{field}.{key if named else '*'}")
        elif isinstance(one, list):
            for item in one:
                visit(item, field)

    visit(value, "")
    return found


def plain_data(value: msgspec.Struct) -> Any:
    """Return a struct as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def subclasses(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """Yield all structs that have been defined."""
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


@functools.cache
def field_names() -> frozenset[str]:
    """Return the names of all fields of structs: as keys they are no data."""
    return frozenset(name for one in subclasses(msgspec.Struct) for name in (*one.__struct_encode_fields__, "type"))


def field_names_kept(value: Any, by: Mapping[str, str]) -> Any:
    """Return plain data with these strings replaced, but not where a key is the name of a field."""
    if isinstance(value, dict):
        return {
            key if key in field_names() else replaced(key, by): field_names_kept(one, by) for key, one in value.items()
        }
    if isinstance(value, list):
        return [field_names_kept(one, by) for one in value]
    return replaced(value, by)


SPACES = "\n\t\u202f\xa0"


def shows_no_control(text: str) -> None:
    """Check that a text has no control, bidirectional or invisible character but line feed and tab."""
    found = {char for char in text if char not in SPACES and not char.isprintable()}
    assert not found, f"{sorted(map(ascii, found))} in {text[:300]!r}"
    text.encode()


LINKS = ("href", "src", "action", "srcset", "xlink:href")


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and the links."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.links: set[str] = set()
        self.comments: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.found.append((tag, tuple(name for name, _ in attributes)))
        self.links |= {text or "" for name, text in attributes if name in LINKS}

    def handle_comment(self, data: str) -> None:
        """Record a comment."""
        self.comments.append(data)


def html_is_ours(page: str, like: str) -> None:
    """Check that a page has the kinds of elements, attributes and links of the page with harmless text, and no more."""
    mine, wanted = Elements(page), Elements(like)
    assert set(mine.found) - set(wanted.found) == set()
    assert [one for one in mine.found if one[0] in ("script", "style", "link", "meta")] == [
        one for one in wanted.found if one[0] in ("script", "style", "link", "meta")
    ]
    assert not any(MARK in tag or any(MARK in name for name in names) for tag, names in mine.found)
    assert not any(MARK in comment for comment in mine.comments)
    assert not [link for link in mine.links - wanted.links if re.match(r"[a-z][a-z0-9+.-]*:|//", link)]
    shows_no_control(page)


XML_ILLEGAL = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_is_ours(text: str, like: str) -> None:
    """Check that an XML document can be parsed and has the elements and attributes of the one with harmless text."""
    assert not XML_ILLEGAL.search(text)

    def shape(document: str) -> list[tuple[str, list[str]]]:
        return [(one.tag, sorted(one.attrib)) for one in ElementTree.fromstring(document).iter()]

    assert shape(text) == shape(like)
    shows_no_control(text)


OWN_HTML = {"<details>", "</details>"}
_MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def markdown_is_ours(text: str, like: str) -> list[Token]:
    """Check that a Markdown text has no HTML, image, link, heading, list or table cell but ours. Return its tokens."""
    tokens = _MARKDOWN.parse(text)
    assert blocks(tokens) == blocks(_MARKDOWN.parse(like))
    for token in tokens:
        assert token.type != "html_block" or token.content.strip() in OWN_HTML, token.content
        for child in token.children or ():
            assert child.type not in ("html_inline", "image"), child.content
            assert MARK not in str(child.attrs.get("href", "")), child.attrs
        if token.type == "inline":
            assert not re.search(rf"(?<![\\`])(?:://|www\.|@){MARK}", without_code(token.content)), token.content
        if token.type == "table_open" and token.map is not None:
            rows = text.splitlines()[slice(*token.map)]
            assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}) == 1, rows
    shows_no_control(text)
    return tokens


def without_code(text: str) -> str:
    """Return inline Markdown without its code spans."""
    return re.sub(r"(?<![`\\])(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


def blocks(tokens: list[Token]) -> list[tuple[str, str]]:
    """Return the structure of a text: its blocks, without what is in them."""
    return [(token.type, token.tag) for token in tokens]


def python_is_ours(source: str, like: str) -> None:
    """Check that a script is the one with harmless text, apart from what its texts say."""

    def shape(text: str) -> list[str]:
        return [type(node).__name__ for node in ast.walk(ast.parse(text))]

    compile(source, "<reproducer>", "exec")
    assert shape(source) == shape(like)
    for node in ast.walk(ast.parse(source)):
        names = (getattr(node, field, None) for field in ("id", "attr", "arg", "name"))
        assert not any(isinstance(name, str) and MARK in name for name in names)
    shows_no_control(source)


def terminal_is_ours(text: str, like: str) -> None:
    """Check that what was written to a terminal has no control character, and the lines of what was written else."""
    shows_no_control(text)
    for line, other in zip(text.split("\n"), like.split("\n"), strict=True):
        assert line.startswith(MARK) <= other.startswith(BENIGN), line
