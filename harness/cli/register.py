"""`coldproof register`: makes a static site of the qualifications that `coldproof verify` accepts.

Exit code: 0 all bundles are in the register; 1 one was refused, with its reasons, and is not in it; 3 a file cannot be
written; 4 wrong usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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
from coldproof.reports.register.entries import RegisterEntry, by_page
from coldproof.reports.register.page import render_entries, render_index
from coldproof.reports.schema.exit_codes import EXIT_FAILED, EXIT_OK
from coldproof.reports.schema.results import Results
from coldproof.reports.schema.stored_files import copy_folder

BUNDLES = "bundles"  # the folder of the copies
ATTACHED = "attached server"


def make_register(options: argparse.Namespace) -> int:
    """Verify the bundles, write the site with the accepted ones, and return the exit code. Raises Refusal."""
    out: Path = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refusal(USAGE, f"--out {out} exists and will not be overwritten; choose a new folder")
    entries: list[RegisterEntry] = []
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


def entry(bundle: Path, target: str, verified: Verification, taken: set[str]) -> RegisterEntry:
    """Return the entry of an accepted bundle. `taken`: names of copies so far. Raises Refusal."""
    results = loaded(bundle)
    target = target or target_of(results)
    engine = results.engine.name if results.engine is not None else "engine"
    version = results.engine.version if results.engine is not None else ""
    name = unique(slug(f"{engine}-{version}-{target}-{results.started[:10]}").lower(), taken)
    return RegisterEntry(
        results=results,
        target=target,
        folder=f"{BUNDLES}/{name}",
        verified=tuple(verified.summary),
        signature=str(verified.signature),
        signatures=tuple(name for name in SIGNATURES if (bundle / name).is_file() and (bundle / name).stat().st_size),
        manifest=digest_of_file(bundle / NAME),
    )


def target_of(results: Results) -> str:
    """Return what the engine ran on, as far as the run knows it."""
    if results.engine is not None and "url" in results.engine.config:
        return ATTACHED
    worker = f", {results.engine.worker} worker" if results.engine is not None else ""
    return f"{results.environment.get('machine', 'unknown machine')}{worker}"


def write_site(entries: Sequence[RegisterEntry], out: Path) -> None:
    """Write the index, and the page and the badge of each engine version and target. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    mark(out)
    version = coldproof_version()
    write_text(out / "index.html", render_index(entries, version=version))
    for page, own in by_page(entries).items():
        (out / page).mkdir()
        write_text(out / page / "index.html", render_entries(own, version=version))
        write_text(out / page / "badge.svg", badge_svg(own[0].results))


REGISTER = Subcommand(
    "make a static site of the qualifications that verify accepts",
    make_register,
    argument("bundles", nargs="+", metavar="[TARGET=]BUNDLE", help="a bundle, and what its engine ran on"),
    argument("--out", type=Path, required=True, metavar="DIR", help="a new or empty folder"),
    ALLOWED_SIGNERS,
)
