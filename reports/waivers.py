"""The words for what became of a waiver in a run, alike in every report and on the terminal."""

from __future__ import annotations

from reports.schema import Waiver


def state_in_words(waiver: Waiver) -> str:
    """The state, and what it asks of a person where it asks for something."""
    if waiver.state == "expired" and waiver.expires:
        return f"expired on {waiver.expires}: it waives nothing any more"
    if waiver.state == "stale":
        return "stale: an unexpected pass, what it is for did not fail here; it fails no run"
    return waiver.state


def scope(waiver: Waiver) -> str:
    """Which failures it means."""
    return f"{waiver.signature}, fingerprint {waiver.fingerprint}" if waiver.fingerprint else waiver.signature
