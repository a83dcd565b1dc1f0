"""Checks the SSH signature of a bundle's manifest with OpenSSH's `ssh-keygen`.

A signature that is not checked proves nothing: its file may hold anything.
"""

from __future__ import annotations

import enum
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from coldproof.harness.options import UsageError
from coldproof.harness.release.run.manifest import NAME, SIGNATURES
from coldproof.harness.schema.stored_files import MEGABYTE, UnreadableFile, read_bytes
from coldproof.reports.format.text import one_line

NAMESPACE = "coldproof"
MOST_SIGNATURE = MEGABYTE
SECONDS = 60


class SignatureState(enum.StrEnum):
    """What is known of a bundle's signature."""

    SIGNED = "signed by"
    NOT_CHECKED = "signature not checked"
    NOT_SIGNED = "not signed"
    INVALID = "signature invalid"


class Signature(msgspec.Struct, frozen=True):
    """The signature of a bundle. `by`: who signed it; `why`: what is wrong with it."""

    state: SignatureState
    by: str = ""
    why: str = ""

    def __str__(self) -> str:
        if self.state is SignatureState.SIGNED:
            return f"{self.state} {self.by}"
        return f"{self.state}: {self.why}" if self.why else str(self.state)


def check_signature(bundle: Path, allowed_signers: Path | None) -> Signature:
    """Return what is known of a bundle's signature.

    `allowed_signers`: a file as of ssh-keygen(1), with the keys that may sign; None: the signature is not checked.
    Raises UsageError if it cannot be checked.
    """
    there = [name for name in SIGNATURES if (bundle / name).is_file()]
    if not there:
        return Signature(SignatureState.NOT_SIGNED, why=f"the bundle does not prove who made it (no {SIGNATURES[0]})")
    if not any((bundle / name).stat().st_size for name in there):
        return Signature(SignatureState.NOT_SIGNED, why=f"{there[0]} is empty")
    if allowed_signers is None:
        return Signature(SignatureState.NOT_CHECKED, why="give the keys that you trust with --allowed-signers")
    if SIGNATURES[0] not in there:
        return Signature(SignatureState.NOT_CHECKED, why=f"{there[0]} is not an SSH signature; check it yourself")
    return checked(bundle, allowed_signers)


def checked(bundle: Path, allowed_signers: Path) -> Signature:
    """Return the signature of a bundle after `ssh-keygen` has checked it. Raises UsageError."""
    file = ["-s", str((bundle / SIGNATURES[0]).absolute())]
    try:
        manifest = read_bytes(bundle / NAME)
        read_bytes(bundle / SIGNATURES[0], most=MOST_SIGNATURE)
    except (UnreadableFile, OSError) as problem:
        return Signature(SignatureState.INVALID, why=str(problem))
    if not allowed_signers.is_file():
        raise UsageError(f"--allowed-signers {allowed_signers}: no such file; see ALLOWED SIGNERS in ssh-keygen(1)")
    keys = ["-f", str(allowed_signers.absolute())]
    found = ssh_keygen(["-Y", "find-principals", *file, *keys], b"")
    principals = found.stdout.decode(errors="replace").splitlines()
    if found.returncode or not principals:
        return Signature(SignatureState.INVALID, why=f"no allowed signer made {SIGNATURES[0]}{said(found)}")
    for principal in principals:
        done = ssh_keygen(["-Y", "verify", *file, *keys, "-n", NAMESPACE, "-I", principal], manifest)
        if done.returncode == 0:
            return Signature(SignatureState.SIGNED, by=one_line(principal, 200))
    return Signature(SignatureState.INVALID, why=f"{SIGNATURES[0]} does not sign this {NAME}{said(done)}")


def ssh_keygen(words: Sequence[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run ssh-keygen with this content as its standard input. Raises UsageError if it cannot be run."""
    try:
        return subprocess.run(["ssh-keygen", *words], input=content, capture_output=True, timeout=SECONDS, check=False)
    except FileNotFoundError as problem:
        raise UsageError("--allowed-signers needs ssh-keygen of OpenSSH 8.2 or later") from problem
    except (OSError, subprocess.SubprocessError) as problem:
        raise UsageError(f"ssh-keygen cannot be run: {problem}") from problem


def said(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return what ssh-keygen said, behind a colon; empty if it said nothing."""
    words = one_line((done.stderr or done.stdout).decode(errors="replace"), 200)
    return f": {words}" if words else ""
