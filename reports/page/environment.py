"""Renders pages: shared templates, escaping and the Content-Security-Policy.

Invariants: the same results give the same bytes. A page loads no other file. Every value passes through `visible` and
is escaped, because prompts, answers, names, sentences and logs come from the engine. Only our own style sheets and
scripts pass unchanged, and the page's policy allows only these, by hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from coldproof.harness.schema.verdict import VERDICT_MEANING, Verdict
from coldproof.reports.format import text
from coldproof.reports.format.shell import command_line
from coldproof.reports.views import overview
from coldproof.reports.views.requirements import areas, verdict_class

SHARED = Path(__file__).parent / "templates"


_NUMBERS: tuple[Callable[..., object], ...] = (text.number, text.duration, text.moment, text.day_and_time)
_TEXTS = (text.token_text, text.tail, text.one_line, text.web_link, text.slug, text.report_name, text.many, areas)
FILTERS: Mapping[str, Callable[..., object]] = {
    **{function.__name__: function for function in (*_NUMBERS, *_TEXTS)},
    "kind": verdict_class,
    "command_line": command_line,
}
VALUES: Mapping[str, object] = {
    "glyph": overview.GLYPH,
    "worst_first": overview.WORST_FIRST,
    "verdict_meaning": VERDICT_MEANING,
    "exit_meaning": overview.EXIT_MEANING,
    "overview": overview,
    "verdict_of": Verdict,
}


@dataclass(frozen=True, kw_only=True)
class PageTemplates:
    """The templates, style sheets and scripts of one page: its own folders, then the shared one.

    `filters` and `values` are additional names for this page's templates.
    """

    folders: tuple[Path, ...]
    filters: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)

    def page(self, template: str, *, styles: tuple[str, ...], scripts: tuple[str, ...] = (), **shown: object) -> str:
        """Return one self-contained document. Its policy allows only these styles and scripts."""
        style, script = self.files(styles), self.files(scripts)
        policy = content_policy(style=style, script=script)
        return self.environment.get_template(template).render(style=style, script=script, policy=policy, **shown)

    def files(self, names: tuple[str, ...]) -> Markup:
        """Return the contents of our own files without escaping. Must not be called for data."""
        return Markup("").join(Markup(self.path(name).read_text(encoding="utf-8")) for name in names)

    def path(self, name: str) -> Path:
        """Return the path of a style sheet or script. Raises StopIteration if no folder has it."""
        return next(path for folder in (*self.folders, SHARED) if (path := folder / name).is_file())

    @functools.cached_property
    def environment(self) -> jinja2.Environment:
        """The jinja2 environment. It escapes every value and raises for undefined names."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader([*self.folders, SHARED]),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=_finalize,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        environment.filters.update({**FILTERS, **self.filters})
        environment.globals.update({**VALUES, **self.values})
        return environment


def content_policy(*, style: str, script: str) -> str:
    """Return a Content-Security-Policy that allows this style and this script, and no other resource."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _finalize(value: Any) -> Any:
    """Make invisible characters visible. Jinja2 applies this to every expression; Markup passes unchanged."""
    return text.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
