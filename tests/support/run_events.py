"""Events of a run that ended."""

from __future__ import annotations

from typing import Any

from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.assemble import Event

STARTED = {
    "event": "run_started",
    "version": "0.1.0",
    "started": "2026-03-01T00:00:00+00:00",
    "command": "pytest suites",
    "profile": "smoke",
    "seed": "1",
    "environment": {},
    "allowed": [],
}

FINISHED = {"event": "run_finished", "complete": True}

SOUND = {"event": "selftest", "rows": [{"planted": "none", "caught": True, "said": "no alarm"}]}


# The other fields of a verdict, where there is nothing to report.
UNREMARKABLE = {
    "case": None,
    "cold": {},
    "drawn": 0.0,
    "share": 0.0,
    "exhausted": False,
    "absent": [],
    "missing": [],
    "narrowed": [],
    "remarks": [],
    "looked_behind": 0,
    "not_behind": "",
    "known": [],
    "further": [],
    "ended": None,
}


def announced(name: str, *, cell: str = "default", test: str = "test_it", **more: Any) -> Event:
    """Return the event that announces a requirement's test."""
    said = {"title": name, "statement": "s", "parts": {}, "cell": cell, "test": test}
    return {"event": "requirement", "id": name, **said, "shows": [], "upstream": [], "fails_on": [], **more}


def concluded(name: str, verdict: Verdict, *, cell: str = "default", test: str = "test_it", **more: Any) -> Event:
    """Return the event of a verdict, after 40 examples of 30 requests with 64 hit tokens."""
    facts = {"reason": f"{name} {verdict.value}", "examples": 40, "requests": 30, "seconds": 1.5}
    seen = {"event": "verdict", "requirement": name, "verdict": verdict.value, "cell": cell, "test": test}
    return {**seen, **facts, **UNREMARKABLE, "evidence": {"hit tokens": 64}, **more}


HOSTILE = "[red]not red[/red] [/nope] [link=file:///etc]\x00\x07\x08\r\n\x9b31m ‮ {braces} %s"


def verdict(verdict: Verdict = Verdict.CONFORMS, **changes: Any) -> dict[str, Any]:
    """Return the fields of a verdict's event, after 8 examples of 120 requests."""
    fields = {"requirement": "LORA-1", "title": "reload", "verdict": verdict, "cell": "default", "test": "test_it"}
    facts = {"reason": "because", "examples": 8, "requests": 120, "seconds": 3.2, "evidence": {}}
    return {**UNREMARKABLE, **fields, **facts, "of": 4, **changes}
