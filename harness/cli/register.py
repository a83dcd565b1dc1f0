"""`coldproof register`: makes a static site of the qualifications that `coldproof verify` accepts.

Exit code: 0 all bundles are in the register; 1 one was refused, with its reasons, and is not in it; 3 a file cannot be
written; 4 wrong usage.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from coldproof.harness.cli.bundles import ALLOWED_SIGNERS, NEW_FOLDER, check_bundle, check_new
from coldproof.harness.cli.io import Subcommand, argument, indented, loaded, say, writing
from coldproof.harness.release.bundle.verify import Verification, verify
from coldproof.harness.release.run.manifest import NAME, SIGNATURES, digest_of_file
from coldproof.harness.schema.exit_codes import EXIT_FAILED, EXIT_OK
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.stored_files import copy_folder
from coldproof.harness.session.environment import coldproof_version
from coldproof.reports.exports.badge import badge_svg
from coldproof.reports.exports.write import write_text
from coldproof.reports.files.own_folder import mark
from coldproof.reports.format.text import many, slug, unique
from coldproof.reports.side_by_side import kinds
from coldproof.reports.side_by_side.columns import Source
from coldproof.reports.side_by_side.matrix import Made, side_by_side
from coldproof.reports.side_by_side.page import render_side_by_side
from coldproof.reports.views.overview import engine_name, headline

BUNDLES = "bundles"  # the folder of the copies
ATTACHED = "attached server"


def make_register(options: argparse.Namespace) -> int:
    """Verify the bundles, write the site with the accepted ones, and return the exit code. Raises Refusal."""
    out: Path = options.out
    check_new(out)
    bundles: dict[str, list[Source]] = {}  # by the folder of their page
    taken: set[str] = set()
    refused = 0
    for target, bundle in map(split_target, options.bundles):
        found = verify(bundle, allowed_signers=options.allowed_signers)
        if not found.accepted:
            refused += 1
            say(indented([f"REFUSED: {bundle}", *map(str, found.reasons)]).rstrip())
            continue
        one = bundle_source(bundle, target, found, taken)
        bundles.setdefault(slug(one.label).lower(), []).append(one)
        with writing(out):
            copy_folder(bundle, out / one.name)
    with writing(out):
        write_site(bundles, out)
    count = many(len(options.bundles) - refused, "bundle")
    say(f"{count} of {len(options.bundles)} in {out / 'index.html'}")
    return EXIT_FAILED if refused else EXIT_OK


def split_target(word: str) -> tuple[str, Path]:
    """Return the target and the folder of TARGET=BUNDLE; with the folder alone, the target is "". Raises Refusal."""
    target, mark, path = word.rpartition("=")
    bundle = Path(word) if Path(word).is_dir() or not mark else Path(path)
    check_bundle(bundle)
    return ("" if bundle == Path(word) else target), bundle


def bundle_source(bundle: Path, target: str, verified: Verification, taken: set[str]) -> Source:
    """Return an accepted bundle as a column of the index. `taken`: names of copies so far. Raises Refusal.

    Its label is the engine, its version and the target; bundles that share it share a page.
    """
    results = loaded(bundle)
    target = target or target_of(results)
    engine = results.engine.name if results.engine is not None else "engine"
    version = results.engine.version if results.engine is not None else ""
    folder = f"{BUNDLES}/{unique(slug(f'{engine}-{version}-{target}-{results.started[:10]}').lower(), taken)}"
    signed = [name for name in SIGNATURES if (bundle / name).is_file() and (bundle / name).stat().st_size]
    return Source(
        results=results,
        link=f"{folder}/index.html",
        name=folder,
        label=f"{engine_name(results)} on {target}",
        cases=f"{folder}/cases",
        said=(
            headline(results),
            f"Verified by coldproof verify: accepted. SHA-256 of its manifest: {digest_of_file(bundle / NAME)}.",
            *(f"{words[:1].upper()}{words[1:]}" for words in verified.summary),
        ),
        files=tuple((name, f"{folder}/{name}") for name in ("results.json", NAME, *signed)),
        command=f"coldproof verify {folder}",
    )


def target_of(results: Results) -> str:
    """Return what the engine ran on, as far as the run knows it."""
    if results.engine is not None and "url" in results.engine.config:
        return ATTACHED
    worker = f", {results.engine.worker} worker" if results.engine is not None else ""
    return f"{results.environment.get('machine', 'unknown machine')}{worker}"


def write_site(bundles: Mapping[str, list[Source]], out: Path) -> None:
    """Write the index, and the page and the badge of each engine version and target. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    mark(out)
    index = []
    for page, sources in sorted(bundles.items()):
        newest, *older = sorted(sources, key=lambda one: (one.results.started, one.name), reverse=True)
        words = f"{many(len(sources), 'bundle')} and how to verify them"
        index.append(dataclasses.replace(newest, files=((words, f"{page}/index.html"),), command=""))
        (out / page).mkdir()
        own = [on_its_page(one) for one in (newest, *older)]
        write_page(own, f"{newest.label}: {headline(newest.results)}", out / page)
        write_text(out / page / "badge.svg", badge_svg(newest.results))
    write_page(index, f"Engine versions and targets: {len(bundles)}", out)


def on_its_page(one: Source) -> Source:
    """Return a bundle as a column of its page, which is in a folder of the site."""
    files = [(name, f"../{link}") for name, link in one.files]
    return dataclasses.replace(
        one,
        link=f"../{one.link}",
        cases=f"../{one.cases}",
        label=f"Bundle of {one.results.started[:10]}",
        files=(*files, ("badge", "badge.svg"), ("all engines", "../index.html")),
    )


def write_page(sources: Sequence[Source], words: str, folder: Path) -> None:
    """Write a page of bundles side by side. `words`: its headline. Raises OSError."""
    shown = side_by_side(sources, kinds.REGISTER, Made(headline=words, version=coldproof_version()))
    write_text(folder / "index.html", render_side_by_side(shown))


REGISTER = Subcommand(
    "make a static site of the qualifications that verify accepts",
    make_register,
    argument("bundles", nargs="+", metavar="[TARGET=]BUNDLE", help="a bundle, and what its engine ran on"),
    NEW_FOLDER,
    ALLOWED_SIGNERS,
)
