"""Small bundles as a qualification writes them: answers of a scripted engine, judged, recorded and sealed.

The list of requirements is small too, so that a bundle takes a second and every part of it can be checked.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.histories import ask, burst, contents, put
from support.run_events import UNREMARKABLE

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.case.known_issues import Waivers, read_known_issues
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.events.evidence import Events
from coldproof.harness.history.records import History
from coldproof.harness.judgement.counters import Evidence
from coldproof.harness.judgement.criteria import failing_checks
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.judgement.requirement import Requirement, statement_parts
from coldproof.harness.judgement.weight_pairs import pair_counts
from coldproof.harness.release.bundle.merge import bundle_results
from coldproof.harness.release.bundle.run_folder import EVENTS, SHARDS
from coldproof.harness.release.bundle.verify import verify
from coldproof.harness.release.requirements import frozen, suites
from coldproof.harness.release.requirements.frozen import FrozenList, FrozenTest, Place, encode
from coldproof.harness.release.run.attestation import write_attestation
from coldproof.harness.release.run.manifest import seal
from coldproof.harness.release.run.record import KNOWN_ISSUES, Package, Qualification, digest_of
from coldproof.harness.release.run.sources import sources_digest
from coldproof.harness.schema.case import TRACE, Case
from coldproof.harness.schema.results import SelfTestRow
from coldproof.harness.schema.results import encode as encode_case
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.selftest.scripted_engine import ClosedFormOracle, InjectedBug, ScriptedEngine
from coldproof.harness.session.selftest.selftest import self_test
from coldproof.harness.workload.steps import Route, Workload
from coldproof.reports.assemble.assemble import read_events
from coldproof.reports.exports.case_trace import trace_json
from coldproof.reports.exports.write import write_all

VERSION = "9.9"
EXAMPLES = 15  # in each of two cells
RULE = Rule(exact=True)
KNOWN = """[[issue]]
requirement = "LORA-9"
signature = "stale state; *"
versions = ">=0"
reason = "upstream knows"
link = "https://example.org/issues/9"
"""

Event = dict[str, Any]
Change = Callable[[list[Event]], list[Event]]


def frozen_test(requirement: str, needs: Capability, shows: Evidence, **changes: Any) -> FrozenTest:
    """Return one test of a requirement, for cells with a trait that is the start of its id."""
    test = FrozenTest(
        declared=Requirement(requirement, f"title of {requirement}", (needs,), (shows,), suits=(requirement[:-2],)),
        test=f"test_{requirement[:-2].lower()}",
        suite="test_it.py",
        statement=f"A conforming engine does {requirement}.",
        source="0" * 64,
    )
    return msgspec.structs.replace(test, **changes)


def cell(name: str, *traits: str) -> Cell:
    """Return a cell of an engine that Coldproof starts."""
    return Cell(name=name, about=name, traits=traits, engine="llamacpp")


FROZEN = FrozenList(
    version=VERSION,
    tests=(
        frozen_test("CHAT-9", Capability.TOKEN_PROMPTS, Requests.HITS),
        frozen_test("EVENT-9", Capability.KV_EVENTS, Events.STORED),
        frozen_test("LORA-9", Capability.TOKEN_PROMPTS, Requests.HITS),
    ),
    cells=(cell("one", "CHAT", "EVENT"), cell("two", "CHAT", "LORA")),
)
PLACES = FROZEN.places(FROZEN.cells_of("llamacpp", "model"))


def freeze(folder: Path, listed: FrozenList = FROZEN) -> None:
    """Write the small list to the folder that frozen lists are read from."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{VERSION}.json").write_bytes(encode(listed))


@functools.cache
def judged(where: str = "") -> tuple[Judgement, ...]:
    """Return judged examples in which a prompt is sent twice and the second answer comes from the cache.

    `where`: a suffix of the nonces, so that cells have different examples.
    """
    return tuple(judge(history, ClosedFormOracle(), RULE, exclusive=True) for history in histories(where))


def histories(where: str) -> Iterator[History]:
    """Yield histories of the same workload under several nonces."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(EXAMPLES):
            here = Path(folder) / str(number)
            twice = (burst(ask(("stem", 40))), burst(ask(("stem", 40))))
            nonce = f"n{number}{where}"
            yield WorkloadRun(ScriptedEngine(), Workload(twice), nonce, contents(here), here / "run").history()


@functools.cache
def failed() -> tuple[Judgement, ...]:
    """Return an example in which a reload leaves the older adapter's answers in the cache."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        steps = (put("A"), burst(ask(adapter="tenant")), put("B", route=Route.IN_PLACE), burst(ask(adapter="tenant")))
        engine = ScriptedEngine(InjectedBug.STALE_WEIGHTS)
        history = WorkloadRun(engine, Workload(steps), "n", contents(here), here / "run").history()
    return (judge(history, ClosedFormOracle(), RULE, exclusive=True),)


def case() -> Case:
    """Return the waived case of LORA-9 in the cell `two`."""
    return report_samples.case(
        "LORA-9-7c21a0f3",
        requirement="LORA-9",
        cell="two",
        engine_version="1",
        signature="stale state; in-place reload; other path; between requests",
        known_issue="upstream knows (https://example.org/issues/9)",
    )


@functools.cache
def caught() -> list[SelfTestRow]:
    """Return the rows of a self-test, which are the same in each run."""
    return self_test()


def write(folder: Path, *, shard: str = "", places: Sequence[Place] = tuple(PLACES), examples: int = EXAMPLES) -> Path:
    """Write the sealed folder of a run that tested these places, and return it."""
    (folder / "cases").mkdir(parents=True)
    (folder / KNOWN_ISSUES).write_text(KNOWN)
    (folder / "engine-01-tested.log").write_text("INFO ready\n")
    log = EventLog(folder / EVENTS)
    begin(log, folder, shard)
    for place in places:
        test = FROZEN.test(place)
        assert test is not None
        log.emit(
            "requirement",
            id=place.requirement,
            title=test.declared.title,
            statement=test.statement,
            parts=statement_parts(test.statement),
            shows=test.declared.shows,
            upstream=test.declared.upstream,
            fails_on=failing_checks(test.declared),
            cell=place.cell,
            test=place.test,
        )
    for name in dict.fromkeys(place.cell for place in places):
        one = judged()[0].history
        log.emit("engine", engine=engine(), cell=name, contents=3, versions=0, digests=one.contents, shape=one.shape)
        log.emit("calibration", calibration=report_samples.results().calibration, seconds=1.0, own_rule=RULE)
    for place in places:
        conclude(log, folder, place, examples)
    end(log, folder)
    return folder


def begin(log: EventLog, folder: Path, shard: str) -> None:
    """Write the events that a run writes before it tests anything."""
    log.emit(
        "run_started",
        version=VERSION,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command="pytest suites --profile qualify",
        profile="qualify",
        seed=f"4{shard[:1]}",
        shard=shard,
        fault=None,
        environment={"coldproof commit": "abc"},
        allowed=[],
    )
    record = Qualification(
        requirements=VERSION,
        requirements_sha256=digest_of_list(),
        sources_sha256=sources_digest(),
        commit="abc",
        engine="llamacpp",
        worker="model",
        attached=False,
        oracle="cold-engine",
        seconds=60.0,
        arguments=(),
        model="",
        known_issues_sha256=digest_of(folder / KNOWN_ISSUES),
        build=(Package("xllamacpp", "1", "0" * 64),),
    )
    log.emit("qualification", qualification=record)
    log.emit("selftest", rows=caught())


def digest_of_list(listed: FrozenList = FROZEN) -> str:
    """Return the digest of the small list's file."""
    return hashlib.sha256(encode(listed)).hexdigest()


def engine() -> Event:
    """Return the scripted engine's description of itself, as an event has it."""
    scripted = ScriptedEngine()
    capabilities = {**scripted.capabilities, Capability.VERSION: Support(True, "package version 1")}
    return {
        "name": "scripted",
        "version": "1",
        "adapter": "scripted",
        "worker": "model",
        "config": {},
        "capabilities": {c.value: {"present": s.present, "evidence": s.evidence} for c, s in capabilities.items()},
    }


def conclude(log: EventLog, folder: Path, place: Place, examples: int) -> None:
    """Write the events of a place: its examples and its verdict."""
    drawn = {"CHAT-9": judged(place.cell)[:examples], "LORA-9": failed(), "EVENT-9": ()}[place.requirement]
    log.emit("trial", requirement=place.requirement, title="t", cell=place.cell, of=len(PLACES))
    evidence: Counter[str] = Counter()
    for one in drawn:
        evidence.update(one.evidence)
        log.emit(
            "example",
            requirement=place.requirement,
            cell=place.cell,
            test=place.test,
            finding="",
            rule=one.rule,
            exclusive=one.exclusive,
            history=one.history,
            answers=[[question, answer] for question, answer in one.answers.items()],
            evidence=one.evidence,
            weight_pairs=pair_counts(one.history, one.findings),
            findings=one.findings,
            noise=one.noise,
            permitted=one.permitted,
            reach={},
            seen=(),
        )
    verdict = {"CHAT-9": Verdict.CONFORMS, "EVENT-9": Verdict.UNSUPPORTED, "LORA-9": Verdict.KNOWN_ISSUE}
    found = case() if place.requirement == "LORA-9" else None
    if found is not None:
        (folder / "cases" / f"{found.id}.json").write_bytes(encode_case(found))
        (folder / "cases" / f"{found.id}{TRACE}").write_text(trace_json(found))
        log.emit("case", case=found)
    log.emit(
        "verdict",
        **{
            **UNREMARKABLE,
            "cold": drawn[-1].rule.cold if drawn else {},
            "case": found.id if found is not None else None,
            "absent": [Capability.KV_EVENTS] if place.requirement == "EVENT-9" else [],
        },
        requirement=place.requirement,
        title="t",
        cell=place.cell,
        test=place.test,
        verdict=verdict[place.requirement],
        reason="r",
        examples=len(drawn),
        requests=sum(len(one.history.outcomes) for one in drawn),
        evidence=dict(evidence),
        seconds=0.0,
    )


def end(log: EventLog, folder: Path) -> None:
    """Write the events of a run's end, then its results, pages and seal."""
    results = bundle_results([folder])
    today = datetime.datetime.now(datetime.UTC).date()
    waivers = Waivers(read_known_issues(folder / KNOWN_ISSUES), version="1", today=today)
    log.emit("waivers", waivers=waivers.report(results.cases, results.requirements))
    log.emit("run_finished", complete=True)
    log.close()
    draw(folder)


def draw(folder: Path) -> None:
    """Write results, pages and seal of a folder from its events.

    A run does this at its end. So does somebody who changed the events and wants to hide it.
    """
    shards = folder / SHARDS
    parts = [folder] if not shards.is_dir() else sorted(shards.iterdir())
    made = next(e for e in read_events(parts[0] / EVENTS) if e["event"] == "qualification")["qualification"]
    whole = [] if parts == [folder] else [(folder, parts)]
    for place, runs in (*((part, [part]) for part in parts), *whole):
        results = bundle_results(runs)
        write_all(results, place)
        seal(place)
        write_attestation(place, results, msgspec.convert(made, Qualification))


def change(folder: Path, how: Change) -> None:
    """Rewrite a folder's events."""
    path = folder / EVENTS
    events = how([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))


def copy_of(bundle: Path, to: Path) -> Path:
    """Return a copy of a bundle, which a test may damage."""
    return Path(shutil.copytree(bundle, to))


def small_list(folder: Path, monkeypatch: pytest.MonkeyPatch, listed: FrozenList = FROZEN) -> None:
    """Replace the frozen list, and that of the suites, by the small one for the duration of a test."""
    freeze(folder / "lists", listed)
    monkeypatch.setattr(frozen, "LISTS", folder / "lists")
    monkeypatch.setattr(suites, "list_of_suites", lambda: listed)


def reasons(bundle: Path) -> str:
    """Return the reasons for which a bundle is refused, one per line. The text is empty if it is accepted."""
    return "\n".join(map(str, verify(bundle).reasons))


def without(kind: str, **fields: object) -> Change:
    """Return a change that removes the first event of a kind with these fields."""

    def less(events: list[Event]) -> list[Event]:
        gone = next(e for e in events if e["event"] == kind and fields.items() <= e.items())
        return [event for event in events if event is not gone]

    return less


def with_fields(kind: str, where: dict[str, object], **fields: object) -> Change:
    """Return a change that sets fields of the first event of a kind that matches `where`."""

    def changed(events: list[Event]) -> list[Event]:
        next(e for e in events if e["event"] == kind and where.items() <= e.items()).update(fields)
        return events

    return changed


def recorded(**fields: object) -> Change:
    """Return a change that sets fields of the qualification's record."""

    def changed(events: list[Event]) -> list[Event]:
        next(e for e in events if e["event"] == "qualification")["qualification"].update(fields)
        return events

    return changed
