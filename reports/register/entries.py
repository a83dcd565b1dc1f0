"""What the register shows: verified bundles, by engine version and target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from coldproof.reports.format.text import slug
from coldproof.reports.schema.results import Results
from coldproof.reports.views.overview import engine_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterEntry:
    """One accepted bundle. `folder`: of its copy, from the root of the site. `verified`: what `verify` said.

    `signature`: what is known of its signature, as `verify` said it. `signatures`: the names of its signature files;
    `manifest`: the SHA-256 of its manifest, which they sign.
    """

    results: Results
    target: str
    folder: str
    verified: tuple[str, ...]
    signature: str
    signatures: tuple[str, ...]
    manifest: str

    @property
    def engine(self) -> str:
        """Return the engine and its version."""
        return engine_name(self.results)

    @property
    def page(self) -> str:
        """Return the folder of its page, which it shares with other bundles of this engine version and target."""
        return slug(f"{self.engine}-{self.target}").lower()

    @property
    def day(self) -> str:
        """Return the day on which the run began."""
        return self.results.started[:10]


def by_page(entries: Sequence[RegisterEntry]) -> dict[str, list[RegisterEntry]]:
    """Return the entries of each page, the newest first, and pages in the order of engines and targets."""
    pages: dict[str, list[RegisterEntry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda one: (one.results.started, one.folder), reverse=True):
        pages[entry.page].append(entry)
    return dict(sorted(pages.items()))
