"""The bundle of an attached server is accepted as written, and refused after each forgery, for its own reason.

The forger knows all files: what follows from changed events is written, numbered and sealed again.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.bundles import EVENTS, Change, Event, change, copy_of, draw, reasons
from support.fake_reply import ServerBehaviour
from support.fake_server import serving
from support.qualified_tree import make_tree, python

from coldproof.harness.release.bundle import verify
from coldproof.harness.release.requirements import frozen
from coldproof.harness.release.run.sources import sources_digest

Forge = Callable[[Path], None]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project with few suites."""
    return make_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def honest(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle of a run on an attached server. No test changes it."""
    bundle = tmp_path_factory.mktemp("honest") / "bundle"
    with serving(ServerBehaviour(lora=(404, "Not Found"))) as server:
        words = ("--engine-url", server.url, "--profile", "qualify", "--budget", "1s", "--hypothesis-seed", "7")
        run = python(tree, "-m", "pytest", "suites", *words, "--report-dir", str(bundle))
    assert (bundle / "manifest.json").is_file(), run.stdout + run.stderr
    return bundle


@pytest.fixture(autouse=True)
def _list_of_the_tree(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify in this process as a checkout of the tree would."""
    digest = sources_digest(tree)
    monkeypatch.setattr(frozen, "LISTS", tree / "harness" / "release" / "requirements" / "lists")
    monkeypatch.setattr(verify, "sources_digest", lambda: digest)


def examples(events: list[Event], requirement: str = "SALT-1") -> list[Event]:
    """Return the examples of a requirement."""
    return [e for e in events if e["event"] == "example" and e["requirement"] == requirement]


def counted(events: list[Event]) -> list[Event]:
    """Return the events with the numbers and counts that a run would have written."""
    numbers: Counter[str] = Counter()
    for event in events:
        event["number"] = numbers[event["process"]]
        numbers[event["process"]] += 1
        if event["event"] == "verdict":
            own = [e for e in examples(events, event["requirement"]) if e["test"] == event["test"]]
            total: Counter[str] = Counter()
            for one in own:
                total.update(one["evidence"])
            event.update(
                examples=len(own), requests=sum(len(e["history"]["outcomes"]) for e in own), evidence=dict(total)
            )
    return events


def repeated(times: int, *, renamed: bool = False) -> Change:
    """Return a change that repeats an example, under other nonces if `renamed`."""

    def changed(events: list[Event]) -> list[Event]:
        first = examples(events)[0]
        at = events.index(first)
        for _ in range(times):
            text = json.dumps(first)
            nonce = secrets.token_hex(8)
            events.insert(at, json.loads(text.replace(first["history"]["nonce"], nonce) if renamed else text))
        return counted(events)

    return changed


def one_less(events: list[Event]) -> list[Event]:
    """Remove an example, and do not count it in its verdict."""
    numbers = {id(event): event["number"] for event in events}
    events.remove(examples(events)[0])
    for event in counted(events):
        event["number"] = numbers[id(event)]
    return events


def of_each(kind: str, **fields: object) -> Change:
    """Return a change that sets fields of each event of a kind."""

    def changed(events: list[Event]) -> list[Event]:
        for event in events:
            event.update(fields if event["event"] == kind else {})
        return events

    return changed


def another_version(events: list[Event]) -> list[Event]:
    """Change the engine's version to a later release."""
    for event in events:
        if event["event"] == "engine":
            event["engine"]["version"] = "99.0"
    return events


def at_one_time(events: list[Event]) -> list[Event]:
    """Give all events the same time, so that nothing took any time."""
    return [{**event, "at": 5.0} for event in events]


def clock_back(events: list[Event]) -> list[Event]:
    """Set the clock back one hour for the second half of the run."""
    return [{**event, "at": event["at"] - 3600.0 * (2 * n > len(events))} for n, event in enumerate(events)]


def long_trials(events: list[Event]) -> list[Event]:
    """Make each trial take an hour."""
    return of_each("verdict", seconds=3600.0)(events)


def another_answer(events: list[Event]) -> list[Event]:
    """Change a token of an answer and nothing else."""
    token = examples(events)[0]["history"]["outcomes"][-1]["tokens"][0]
    token["id"] = 33 if token["id"] != 33 else 34
    return events


def outside(events: list[Event]) -> list[Event]:
    """Move the examples behind the end of their trial."""
    own = examples(events)
    return counted([e for e in events if e not in own] + own)


def other_engine(events: list[Event]) -> list[Event]:
    """Replace the engine of an example by another one."""
    examples(events)[0]["history"]["shape"]["max_model_tokens"] = 4096
    return events


def other_adapters(events: list[Event]) -> list[Event]:
    """Replace the adapter files of an example by others."""
    examples(events)[0]["history"]["contents"]["A"] = "0" * 16
    return events


def unsupported(events: list[Event]) -> list[Event]:
    """Mark SALT-1 as unsupported and remove its examples."""
    gone = examples(events)
    left = counted([event for event in events if event not in gone])
    for event in left:
        if event["event"] == "verdict" and event["requirement"] == "SALT-1":
            event.update(verdict="UNSUPPORTED", absent=["cache salt"], case=None)
    return left


def shown_without_need(events: list[Event]) -> list[Event]:
    """Mark the group requirements as conforming on a server that does not report groups."""
    for event in events:
        if event["event"] == "verdict" and event["requirement"].startswith("GROUP"):
            event.update(verdict="CONFORMS", absent=[])
    return events


def confirmed(events: list[Event]) -> list[Event]:
    """Add the confirmation of a counterexample that has no case."""
    at = next(n for n, e in enumerate(events) if e["event"] == "verdict" and e["requirement"] == "SALT-1")
    phase = {name: events[at][name] for name in ("at", "process")}
    return counted([*events[:at], {"event": "phase", **phase, "stage": "confirming", "words": "on it"}, *events[at:]])


def two_runs(events: list[Event]) -> list[Event]:
    """Add a second start of the run."""
    return counted([events[0], *events])


def of_events(how: Change) -> Forge:
    """Return a forgery that changes the events and rewrites everything that follows from them."""

    def forge(bundle: Path) -> None:
        change(bundle, how)
        draw(bundle)

    return forge


def a_better_statement(bundle: Path) -> None:
    """Replace the statement for policy tools by one without failures."""
    path = bundle / "verdicts.intoto.json"
    envelope = json.loads(path.read_text())
    path.write_text(json.dumps({**envelope, "payload": "eyJ2ZXJkaWN0cyI6IHt9fQ=="}))


def a_link(bundle: Path) -> None:
    """Replace a file by a symbolic link."""
    (bundle / "junit.xml").rename(bundle.parent / "elsewhere")
    (bundle / "junit.xml").symlink_to(bundle.parent / "elsewhere")


def unsealed(bundle: Path) -> None:
    """Change the headline after the seal."""
    path = bundle / "summary.md"
    path.write_text(path.read_text() + "all is well\n")


FORGERIES: dict[str, tuple[Forge, str]] = {
    "an example deleted": (of_events(one_less), r"left out: the run: 1 events of a process are missing"),
    "an example copied thirty times": (
        of_events(repeated(30)),
        r"altered: SALT-1 \(\w+\) in attached: 30 examples have the nonce of another example",
    ),
    "copies under other nonces": (
        of_events(repeated(1, renamed=True)),
        r"altered: SALT-1 .*: 1 examples contradict themselves: the prompt of request 0 does not follow from its",
    ),
    "another version of the engine": (
        of_events(another_version),
        r"altered: the run: the engine's version is recorded as 99\.0, but it reported '/version: ",
    ),
    "all events in 1970": (of_events(at_one_time), r"its first event is from 1970-01-01T00:00:05\+00:00"),
    "times that go back": (
        of_events(clock_back),
        r"not accepted: the run: the times of its events go back by 3\d\d\d",
    ),
    "trials longer than the run": (
        of_events(long_trials),
        r"not accepted: the run: its trials took \d+ s, but its",
    ),
    "another answer": (of_events(another_answer), r"altered: SALT-1 .* have other results when re-evaluated"),
    "examples outside their trial": (
        of_events(outside),
        r"altered: SALT-1 in attached: \d+ examples were not written during its trial",
    ),
    "an example of another engine": (
        of_events(other_engine),
        r"ran on an engine with other sizes than that of",
    ),
    "an example with other adapters": (
        of_events(other_adapters),
        r"ran with other adapter contents than the engine of the cell",
    ),
    "unsupported, it says": (of_events(unsupported), r"altered: SALT-1 .* is UNSUPPORTED, but the engine has all that"),
    "shown without what it takes": (
        of_events(shown_without_need),
        r"altered: GROUP-\d .* CONFORMS, but the engine lacks what it needs",
    ),
    "a counterexample without a case": (
        of_events(confirmed),
        r"altered: SALT-1 .*: a counterexample was being confirmed, but its verdict names no case",
    ),
    "two starts": (of_events(two_runs), r"altered: the run: the event 'run_started' is there 2 times"),
    "another statement for policy tools": (a_better_statement, r"altered: verdicts.intoto.json: its statement is not"),
    "a link": (a_link, r"not accepted: junit.xml is a symbolic link"),
    "a page changed": (unsealed, r"altered: summary.md was changed after the run"),
}


def test_the_bundle_of_a_url_is_accepted_as_it_is(honest: Path) -> None:
    """WEIGHT, LORA and GROUP requirements are unsupported, because the options and the server lack what they need."""
    assert reasons(honest) == ""
    verdicts = [json.loads(line) for line in (honest / EVENTS).read_text().splitlines() if '"event":"verdict"' in line]
    assert {"CONFORMS", "UNSUPPORTED"} == {verdict["verdict"] for verdict in verdicts}


@pytest.mark.parametrize(("forge", "why"), FORGERIES.values(), ids=FORGERIES)
def test_a_forgery_is_refused_by_a_reason_of_its_own(honest: Path, tmp_path: Path, forge: Forge, why: str) -> None:
    """Each forgery is refused by the check that is meant for it."""
    bundle = copy_of(honest, tmp_path / "bundle")
    forge(bundle)
    said = reasons(bundle)
    assert re.search(why, said), said


def test_each_forgery_has_its_own_reason() -> None:
    """No two forgeries share a reason, so each one tests a check of its own."""
    assert len({why for _, why in FORGERIES.values()}) == len(FORGERIES) >= 10


def test_drawing_a_bundle_again_changes_nothing(honest: Path, tmp_path: Path) -> None:
    """The steps by which a forger hides changes are accepted by themselves, so only the change is refused."""
    bundle = copy_of(honest, tmp_path / "bundle")
    of_events(counted)(bundle)
    assert reasons(bundle) == ""
