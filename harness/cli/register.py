"""`coldproof register`: makes a static site of the qualifications that `coldproof verify` accepts.

Exit code: 0 all bundles are in the register; 1 one was refused, with its reasons, and is not in it; 3 a file cannot be
written; 4 wrong usage.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coldproof.harness.cli.bundles import ALLOWED_SIGNERS
from coldproof.harness.cli.io import USAGE, Refusal, Subcommand, argument, indented, loaded, say, writing
from coldproof.harness.release.bundle.verify import Verification, verify
from coldproof.harness.release.run.manifest import NAME, SIGNATURES, digest_of_file
from coldproof.harness.session.environment import coldproof_version
from coldproof.reports.exports.badge import badge_svg
from coldproof.reports.exports.write import write_text
from coldproof.reports.files.own_folder import mark
from coldproof.reports.format.text import many, slug, unique
from coldproof.reports.schema.exit_codes import EXIT_FAILED, EXIT_OK
from coldproof.reports.schema.results import Results
from coldproof.reports.schema.stored_files import copy_folder
from coldproof.reports.side_by_side import kinds
from coldproof.reports.side_by_side.columns import Source
from coldproof.reports.side_by_side.matrix import Made, side_by_side
from coldproof.reports.side_by_side.page import render_side_by_side
from coldproof.reports.views.overview import engine_name, headline

BUNDLES = "bundles"  # the folder of the copies
ATTACHED = "attached server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One accepted bundle. `folder`: of its copy, from the root of the site.

    `signatures`: the names of its signature files; `manifest`: the SHA-256 of its manifest, which they sign.
    """

    results: Results
    target: str
    folder: str
    verified: Verification
    signatures: tuple[str, ...]
    manifest: str

    @property
    def label(self) -> str:
        """Return the engine, its version and the target."""
        return f"{engine_name(self.results)} on {self.target}"

    @property
    def page(self) -> str:
        """Return the folder of its page, which it shares with other bundles of this engine version and target."""
        return slug(f"{engine_name(self.results)}-{self.target}").lower()


def make_register(options: argparse.Namespace) -> int:
    """Verify the bundles, write the site with the accepted ones, and return the exit code. Raises Refusal."""
    out: Path = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refusal(USAGE, f"--out {out} exists and will not be overwritten; choose a new folder")
    entries: list[Entry] = []
    taken: set[str] = set()
    refused = 0
    for target, bundle in map(split_target, options.bundles):
        found = verify(bundle, allowed_signers=options.allowed_signers)
        if not found.accepted:
            refused += 1
            say(indented([f"REFUSED: {bundle}", *map(str, found.reasons)]).rstrip())
            continue
        entries.append(entry(bundle, target, found, taken))
        with writing(out):
            copy_folder(bundle, out / entries[-1].folder)
    with writing(out):
        write_site(entries, out)
    say(f"{many(len(entries), 'bundle')} of {len(options.bundles)} in {out / 'index.html'}")
    return EXIT_FAILED if refused else EXIT_OK


def split_target(word: str) -> tuple[str, Path]:
    """Return the target and the folder of TARGET=BUNDLE; with the folder alone, the target is "". Raises Refusal."""
    target, mark, path = word.rpartition("=")
    bundle = Path(word) if Path(word).is_dir() or not mark else Path(path)
    if not bundle.is_dir():
        raise Refusal(USAGE, f"{bundle} is not a folder; give the --report-dir of a run with --profile qualify")
    return ("" if bundle == Path(word) else target), bundle


def entry(bundle: Path, target: str, verified: Verification, taken: set[str]) -> Entry:
    """Return the entry of an accepted bundle. `taken`: names of copies so far. Raises Refusal."""
    results = loaded(bundle)
    target = target or target_of(results)
    engine = results.engine.name if results.engine is not None else "engine"
    version = results.engine.version if results.engine is not None else ""
    name = unique(slug(f"{engine}-{version}-{target}-{results.started[:10]}").lower(), taken)
    return Entry(
        results=results,
        target=target,
        folder=f"{BUNDLES}/{name}",
        verified=verified,
        signatures=tuple(name for name in SIGNATURES if (bundle / name).is_file() and (bundle / name).stat().st_size),
        manifest=digest_of_file(bundle / NAME),
    )


def target_of(results: Results) -> str:
    """Return what the engine ran on, as far as the run knows it."""
    if results.engine is not None and "url" in results.engine.config:
        return ATTACHED
    worker = f", {results.engine.worker} worker" if results.engine is not None else ""
    return f"{results.environment.get('machine', 'unknown machine')}{worker}"


def by_page(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Return the entries of each page, the newest first, and pages in the order of engines and targets."""
    pages: dict[str, list[Entry]] = defaultdict(list)
    for one in sorted(entries, key=lambda one: (one.results.started, one.folder), reverse=True):
        pages[one.page].append(one)
    return dict(sorted(pages.items()))


def write_site(entries: Sequence[Entry], out: Path) -> None:
    """Write the index, and the page and the badge of each engine version and target. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    mark(out)
    version, pages = coldproof_version(), by_page(entries)
    made = Made(headline=f"Engine versions and targets: {len(pages)}", version=version)
    newest = [of_target(page, own) for page, own in pages.items()]
    write_text(out / "index.html", render_side_by_side(side_by_side(newest, kinds.REGISTER, made)))
    for page, own in pages.items():
        (out / page).mkdir()
        made = Made(headline=f"{own[0].label}: {headline(own[0].results)}", version=version)
        write_text(
            out / page / "index.html", render_side_by_side(side_by_side([*map(of_bundle, own)], kinds.REGISTER, made))
        )
        write_text(out / page / "badge.svg", badge_svg(own[0].results))


def of_target(page: str, own: Sequence[Entry]) -> Source:
    """Return the newest bundle of an engine version and target, for the index."""
    files = ((f"{many(len(own), 'bundle')} and how to verify them", f"{page}/index.html"),)
    signature = str(own[0].verified.signature)
    return source(own[0], "", own[0].label, files=files, said=(headline(own[0].results), signature))


def of_bundle(one: Entry) -> Source:
    """Return a bundle for the page of its engine version and target."""
    names = ("results.json", NAME, *one.signatures)
    files = [(name, f"../{one.folder}/{name}") for name in names]
    accepted = f"verified by coldproof verify: accepted. SHA-256 of its manifest: {one.manifest}."
    return source(
        one,
        "../",
        f"Bundle of {one.results.started[:10]}",
        files=(*files, ("badge", "badge.svg"), ("all engines", "../index.html")),
        said=(accepted, *one.verified.summary),
        command=f"coldproof verify {one.folder}",
    )


def source(
    one: Entry,
    root: str,
    label: str,
    *,
    files: tuple[tuple[str, str], ...],
    said: tuple[str, ...],
    command: str = "",
) -> Source:
    """Return a bundle as a column of a page. `root`: from the page to the root of the site."""
    return Source(
        results=one.results,
        link=f"{root}{one.folder}/index.html",
        name=one.folder,
        label=label,
        cases=f"{root}{one.folder}/cases",
        said=tuple(f"{words[:1].upper()}{words[1:]}" for words in said),
        files=files,
        command=command,
    )


REGISTER = Subcommand(
    "make a static site of the qualifications that verify accepts",
    make_register,
    argument("bundles", nargs="+", metavar="[TARGET=]BUNDLE", help="a bundle, and what its engine ran on"),
    argument("--out", type=Path, required=True, metavar="DIR", help="a new or empty folder"),
    ALLOWED_SIGNERS,
)
