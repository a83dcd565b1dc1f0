"""Describes the state of a waiver, in the same words in every report and on the terminal."""

from __future__ import annotations

from coldproof.reports.schema.results import Waiver


def waiver_state(waiver: Waiver) -> str:
    """Return the state of a waiver as text, with a hint if it needs action."""
    if waiver.state == "expired" and waiver.expires:
        return f"expired on {waiver.expires}: it no longer waives anything"
    if waiver.state == "stale":
        return "stale: the known issue did not occur in this run; this does not fail the run"
    return waiver.state


def scope(waiver: Waiver) -> str:
    """Return which failures the waiver matches."""
    return f"{waiver.signature}, fingerprint {waiver.fingerprint}" if waiver.fingerprint else waiver.signature
