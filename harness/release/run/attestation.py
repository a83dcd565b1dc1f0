"""verdicts.intoto.json: the verdicts of a bundle as an in-toto statement in a DSSE envelope, for policy tools.

The envelope has no signature: Coldproof has no key. Its `signatures` is an empty list, which the format allows; a tool
that demands a signature refuses it until its owner has added one. The statement is recomputed by `coldproof verify`.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec

from coldproof.harness.release.run.manifest import ATTESTATION, NAME, digest_of_file, read_manifest
from coldproof.harness.release.run.record import Qualification
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.stored_files import MEGABYTE, read_json
from coldproof.reports.exports.write import write_text

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
# Its domain is reserved: nobody can register it. docs/qualifying.md describes the predicate.
PREDICATE_TYPE = "https://coldproof.example/verdicts/v1"
MOST_ENVELOPE = 64 * MEGABYTE


class Envelope(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A DSSE envelope, as far as `verify` reads it: who signed it is for the tools that know the keys."""

    payload: str
    payload_type: str
    signatures: list[dict[str, Any]]


def write_attestation(folder: Path, results: Results, made: Qualification) -> None:
    """Write the envelope beside the manifest, which must be there. Raises OSError."""
    payload = base64.b64encode(statement(folder, results, made)).decode()
    envelope = Envelope(payload=payload, payload_type=PAYLOAD_TYPE, signatures=[])
    write_text(folder / ATTESTATION, msgspec.json.encode(envelope).decode() + "\n")


def statement(folder: Path, results: Results, made: Qualification) -> bytes:
    """Return the statement about a sealed folder. Equal bundles give equal bytes. Raises OSError or DecodeError."""
    files = {name: entry.sha256 for name, entry in read_manifest(folder).files.items()}
    engine = results.engine
    predicate = {
        "headline": results.headline,
        "started": results.started,
        "coldproof": {
            "version": results.coldproof_version,
            "requirements": made.requirements,
            "requirementsSha256": made.requirements_sha256,
            "sourcesSha256": made.sources_sha256,
            "commit": made.commit,
        },
        "engine": None
        if engine is None
        else {"name": engine.name, "version": engine.version, "adapter": engine.adapter},
        "attached": made.attached,
        "verdicts": {one.id: {"verdict": one.verdict, "reason": one.reason} for one in results.requirements},
    }
    return msgspec.json.encode(
        {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": name, "digest": {"sha256": digest}}
                for name, digest in sorted({NAME: digest_of_file(folder / NAME), **files}.items())
            ],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        },
        order="deterministic",
    )


def attestation_problem(folder: Path, results: Results, made: Qualification) -> str:
    """Return what is wrong with the envelope of a folder; empty if nothing is. Raises OSError or ValueError."""
    envelope = read_json(folder / ATTESTATION, Envelope, most=MOST_ENVELOPE)
    if envelope.payload_type != PAYLOAD_TYPE:
        return f"its payload type is {envelope.payload_type}"
    standard = envelope.payload.translate(str.maketrans("-_", "+/"))  # DSSE allows both alphabets
    if base64.b64decode(standard, validate=True) != statement(folder, results, made):
        return "its statement is not what the bundle gives"
    return ""
