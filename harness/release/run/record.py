"""The record that a qualification writes before any engine starts."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Needed
from packaging.utils import canonicalize_name

from coldproof.adapters.common.redact import redacted
from coldproof.adapters.registry import ENGINES
from coldproof.harness.options import Options
from coldproof.harness.release.requirements.frozen import current_list
from coldproof.harness.release.run.rules import check_folder
from coldproof.harness.release.run.sources import source_commit, sources_digest
from coldproof.reports.files.own_folder import claim

KNOWN_ISSUES = "known_issues.toml"  # the copy in a bundle


class Package(msgspec.Struct, frozen=True):
    """An installed package. `record` is the SHA-256 of its RECORD file, which lists the digests of its files; "" if
    it has none.
    """

    name: str
    version: str
    record: str


class Qualification(msgspec.Struct, frozen=True, kw_only=True):
    """What was qualified: the requirements, Coldproof's sources, the engine and its options.

    Only `build` must be trusted. Everything else can be checked on another machine.
    """

    requirements: str
    requirements_sha256: str
    sources_sha256: str
    commit: str | None
    engine: str
    worker: str
    attached: bool  # to a server that Coldproof does not manage
    oracle: str
    seconds: float
    arguments: tuple[str, ...]
    model: str  # the digest of its config.json or file, or the name and digest of a trained model; "": generated
    known_issues_sha256: str
    build: tuple[Package, ...]


def qualification(options: Options, *, trained: str | None = None) -> Qualification:
    """Return the record of a run with these options. Raises UsageError if it cannot be a qualification.

    `trained`: the name and the digest of the model, if `--model` names a trained one.
    """
    check_folder(options.report_dir)
    frozen, digest = current_list()
    return Qualification(
        requirements=frozen.version,
        requirements_sha256=digest,
        sources_sha256=sources_digest(),
        commit=source_commit(),
        engine=options.engine,
        worker=options.worker,
        attached=options.attached,
        oracle=options.oracle,
        seconds=options.seconds,
        arguments=tuple(redacted(word) for word in options.engine_args),
        model=trained or model_digest(options.model),
        known_issues_sha256=digest_of(options.known_issues) if options.known_issues is not None else "",
        build=build(None if options.attached else options.engine, options.other_engine),
    )


def environment_facts(made: Qualification) -> dict[str, str]:
    """Return the rows that a qualification adds to the report's environment table."""
    return {
        "requirements": f"version {made.requirements}, SHA-256 {made.requirements_sha256}",
        "coldproof sources": f"SHA-256 {made.sources_sha256}",
    }


def keep_known_issues(options: Options) -> None:
    """Copy the known issues into the bundle, so that a reader can look up each waiver. Raises OSError."""
    if options.known_issues is not None:
        shutil.copyfile(options.known_issues, claim(options.report_dir / KNOWN_ISSUES))


def model_digest(model: str | None) -> str:
    """Return the digest of a model's config.json or, of a file such as a GGUF file, its own; "" without a model."""
    if model is None:
        return ""
    return digest_of(Path(model)) or digest_of(Path(model) / "config.json")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; "" where it does not exist."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def build(*engines: str | None) -> tuple[Package, ...]:
    """Return the installed packages of these engines and all their dependencies, sorted by name."""
    names = [name for engine in engines if engine is not None for name in packages(engine)]
    found: dict[str, Package] = {}
    while names:
        name = canonicalize_name(names.pop())
        if name in found:
            continue
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        record = installed.read_text("RECORD")
        digest = hashlib.sha256(record.encode()).hexdigest() if record else ""
        found[name] = Package(name, installed.version, digest)
        names += dependencies(installed.requires or [])
    return tuple(found[name] for name in sorted(found))


def packages(engine: str) -> tuple[str, ...]:
    """Return the names of an engine's packages; none for an attached server."""
    return ENGINES[engine].packages if engine in ENGINES else ()


def dependencies(lines: list[str]) -> list[str]:
    """Return the package names in requirement lines that apply to this machine, without extras."""
    names = []
    for line in lines:
        try:
            wanted = Needed(line)
        except InvalidRequirement:
            continue
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            names.append(wanted.name)
    return names
