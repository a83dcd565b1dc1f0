"""The runner acts and records: a refusal or a crash of the engine is part of the history, never an exception."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.histories import SideBySide, Tampered, ask, burst, contents, play, put

from coldproof.adapters.protocol.engine import EngineDied, EngineError, EngineSilent, RequestRefused
from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.harness.execution.models.lora import digest_of
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import History, Identity, Outcome
from coldproof.harness.session.selftest.scripted_engine import InjectedBug, ScriptedEngine
from coldproof.harness.workload.steps import Burst, Meanwhile, Route, Segment, Unload, Workload
from coldproof.harness.workload.tokens import nonce_tokens, segment_tokens


class Logged(ScriptedEngine):
    """An engine that records every adapter change, with the digest of the files at that time."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, str]] = []
        self.digests: list[str] = []
        self.paths: list[str] = []

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Record the load and do it."""
        self.said.append(("replace" if in_place else "load", name))
        self.digests.append(digest_of(Path(path)))
        self.paths.append(path)
        super().load_adapter(name, path, in_place=in_place)

    def unload_adapter(self, name: str) -> None:
        """Record the unload and do it."""
        self.said.append(("unload", name))
        super().unload_adapter(name)


class PausesForLoad(SideBySide):
    """An engine that pauses a request at its third token until an adapter is loaded, so that the change overlaps it."""

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__()
        self.refuses, self.changed, self.waits = refuses, threading.Event(), False

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load the adapter, or refuse a replacement."""
        try:
            if in_place and self.refuses:
                raise RequestRefused(400, "no in-place reload today")
            super().load_adapter(name, path, in_place=in_place)
        finally:
            if self.waits:
                self.changed.set()

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Answer, and wait for the change after the third token of `tenant`."""

        def reported(count: int) -> None:
            self.waits = True
            on_token(count)
            assert count < 3 or self.changed.wait()

        return super().send(request, reported if request.model == "tenant-n" else on_token)


def tampered_with(problem: EngineError, at: int) -> Tampered:
    """Return an engine that raises a problem instead of its answer number `at`."""
    count = iter(range(1000))

    def tamper(_: CompletionRequest, honest: Completion) -> Completion:
        if next(count) == at:
            raise problem
        return honest

    return Tampered(tamper)


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of the contents that `play` wrote."""
    return {name: digest_of(folder / f"content-{name}") for name in "ABC"}


def test_prompts_are_the_nonce_and_the_segments_tokens(tmp_path: Path) -> None:
    """Prompt and salt follow from workload and nonce alone."""
    (one,) = play(ScriptedEngine(), tmp_path, burst(ask(("a", 9), ("b", 4), salt="red"))).outcomes
    parts = [segment_tokens("n", Segment("a", 9)), segment_tokens("n", Segment("b", 4))]
    assert one.prompt == nonce_tokens("n") + parts[0] + parts[1]
    assert one.partition.salt == "red-n"
    assert one.model == "base"


def test_identity_is_the_content_behind_the_name_when_it_was_sent(tmp_path: Path) -> None:
    """The name stays the same while its content changes."""
    steps = (put("A"), burst(ask(adapter="tenant")), put("B", route=Route.IN_PLACE), burst(ask(adapter="tenant")))
    first, second = play(ScriptedEngine(), tmp_path, *steps).outcomes
    made = digests(tmp_path)
    assert [first.identities, second.identities] == [(Identity(made["A"], None),), (Identity(made["B"], None),)]
    assert first.model == second.model == "tenant-n"
    assert first.partition.load < second.partition.load


@pytest.mark.parametrize(
    ("route", "said"),
    [
        (Route.IN_PLACE, ["load", "replace", "unload"]),
        (Route.UNLOAD_LOAD, ["load", "unload", "load", "unload"]),
    ],
)
def test_a_route_determines_the_calls(route: Route, said: list[str], tmp_path: Path) -> None:
    """The last unload is the cleanup of the runner."""
    engine = Logged()
    play(engine, tmp_path, put("A"), put("B", route=route))
    assert [what for what, _ in engine.said] == said


@pytest.mark.parametrize("route", [Route.IN_PLACE, Route.UNLOAD_LOAD])
def test_a_change_of_nothing_is_a_plain_load(route: Route, tmp_path: Path) -> None:
    """A minimised workload may have lost the first load."""
    engine = Logged()
    assert play(engine, tmp_path, put("A", route=route)).steps[0].error is None
    assert engine.said[0] == ("load", "tenant-n")


def test_a_path_used_again_holds_the_new_files(tmp_path: Path) -> None:
    """The same path with other bytes is the subject of LORA-3."""
    engine = Logged()
    play(engine, tmp_path, put("A", path="p"), put("B", path="p", route=Route.IN_PLACE))
    assert engine.digests == [digests(tmp_path)["A"], digests(tmp_path)["B"]]
    assert len(set(engine.paths)) == 1


def test_a_turn_replays_the_engines_own_answer(tmp_path: Path) -> None:
    """The prompt is the earlier prompt, the engine's answer and the new segments, without a second nonce."""
    first, second = play(ScriptedEngine(), tmp_path, burst(ask()), burst(ask(("turn", 5), continues=0))).outcomes
    assert second.prompt == first.prompt + first.token_ids + segment_tokens("n", Segment("turn", 5))


def overlapping(engine: ScriptedEngine, folder: Path) -> History:
    """Run a request to `tenant` beside one to `other` while `tenant` changes from A to B, then another to `tenant`."""
    change = Meanwhile(change=put("B", route=Route.IN_PLACE), after_tokens=2)
    busy = Burst(requests=(ask(adapter="tenant"), ask(adapter="other")), meanwhile=change)
    return play(engine, folder, put("A"), put("C", name="other"), busy, burst(ask(adapter="tenant")))


def test_a_change_during_a_request_widens_its_identities(tmp_path: Path) -> None:
    """The overlapped request may have either version, the one of another name has only its own, later ones the new."""
    during, beside, after = overlapping(PausesForLoad(), tmp_path).outcomes
    made = {name: Identity(digest, None) for name, digest in digests(tmp_path).items()}
    assert during.identities == (made["A"], made["B"])
    assert during.overlapped
    assert beside.identities == (made["C"],)
    assert after.identities == (made["B"],)


def test_a_refused_change_is_an_error_of_its_step(tmp_path: Path) -> None:
    """The run continues, and later requests have the old content."""
    history = overlapping(PausesForLoad(refuses=True), tmp_path)
    assert [bool(step.error) for step in history.steps] == [False, False, True, False]
    assert history.outcomes[-1].identities == (Identity(digests(tmp_path)["A"], None),)
    assert history.engine_lost is None


def test_a_refused_change_leaves_the_old_identity_allowed(tmp_path: Path) -> None:
    """The content is unknown, so a request that is sent after it in the same burst may have either version."""
    change = Meanwhile(change=put("B", route=Route.IN_PLACE), after_tokens=2)
    late = ask(("late", 9), adapter="tenant", offset_ms=300)
    busy = Burst(requests=(ask(adapter="tenant"), late), meanwhile=change)
    history = play(PausesForLoad(refuses=True), tmp_path, put("A"), busy)
    made = digests(tmp_path)
    assert history.outcomes[1].sent > history.outcomes[0].finished
    assert history.outcomes[1].identities == (Identity(made["A"], None), Identity(made["B"], None))
    assert history.outcomes[1].partition == history.outcomes[0].partition


@pytest.mark.parametrize("requests", [1, 3])
def test_a_crash_is_part_of_the_history(requests: int, tmp_path: Path) -> None:
    """Nothing is raised, later steps do not run, and the reason is kept."""
    again = burst(*[ask()] * requests)
    history = play(ScriptedEngine(InjectedBug.DIES), tmp_path, put("A"), burst(ask()), again, burst(ask()))
    assert history.engine_lost == "the scripted engine has terminated"
    assert [o.error for o in history.outcomes] == [None, *["the scripted engine has terminated"] * requests]
    assert len(history.steps) == 3
    assert history.steps[-1].after.hit_tokens is None


def test_silence_crash_and_refusal_are_distinguished(tmp_path: Path) -> None:
    """A silent or crashed engine is abandoned; one that refuses gets further requests."""
    seen: dict[type[EngineError], tuple[bool, bool, int]] = {}
    for problem in (EngineSilent("no byte"), EngineDied("gone"), RequestRefused(400, "too long")):
        folder = tmp_path / type(problem).__name__
        history = play(tampered_with(problem, 0), folder, burst(ask()), burst(ask()))
        assert history.outcomes[0].error == str(problem)
        seen[type(problem)] = (history.outcomes[0].silent, history.engine_lost is not None, len(history.outcomes))
    assert seen == {EngineSilent: (True, True, 1), EngineDied: (False, True, 1), RequestRefused: (False, False, 2)}


@pytest.mark.parametrize(("problem", "silent"), [(EngineSilent("no byte"), True), (EngineDied("gone"), False)])
@pytest.mark.parametrize("midst", [False, True])
def test_a_silent_adapter_change_is_recorded_as_silent(
    problem: EngineError, silent: bool, midst: bool, tmp_path: Path
) -> None:
    """This holds alone and during a burst, and the run ends there."""

    class SilentLoad(ScriptedEngine):
        def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
            if in_place:
                raise problem
            super().load_adapter(name, path, in_place=in_place)

    change = put("B", route=Route.IN_PLACE)
    busy = Burst(requests=(ask(),), meanwhile=Meanwhile(change=change, after_tokens=0))
    history = play(SilentLoad(), tmp_path, put("A"), busy if midst else change, burst(ask()))
    assert [(step.error, step.silent) for step in history.steps] == [(None, False), (str(problem), silent)]
    assert history.engine_lost == str(problem)


def test_a_refused_load_is_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    """A second plain load of the name is refused, and the first content stays."""
    history = play(ScriptedEngine(), tmp_path, put("A"), put("B"), burst(ask(adapter="tenant")))
    assert history.steps[1].error is not None
    assert "HTTP 400" in history.steps[1].error
    assert history.outcomes[0].identities == (Identity(digests(tmp_path)["A"], None),)


def test_no_adapter_name_is_left_behind(tmp_path: Path) -> None:
    """What the workload itself unloaded is not unloaded twice."""
    engine = Logged()
    play(engine, tmp_path, put("A"), put("B", name="other"), put("C", name="third"), Unload("other"))
    assert engine.contents == {}
    assert sorted(name for what, name in engine.said if what == "unload") == ["other-n", "tenant-n", "third-n"]


def test_a_nonce_separates_two_runs(tmp_path: Path) -> None:
    """The same workload hits nothing of its first run on the same engine."""
    engine, made = ScriptedEngine(), contents(tmp_path)
    workload = Workload((put("A"), burst(ask(adapter="tenant", salt="red"))))
    runs = [WorkloadRun(engine, workload, nonce, made, tmp_path / nonce).history() for nonce in ("one", "two")]
    assert [run.outcomes[0].cached_tokens for run in runs] == [0, 0]
    assert len({run.outcomes[0].model for run in runs} | {run.outcomes[0].partition.salt for run in runs}) == 4


def test_every_request_is_reported_before_it_is_sent(tmp_path: Path) -> None:
    """So the oracle can answer a request while the engine does. The prompts are those of the history."""
    reported: list[Outcome] = []
    sent: list[int] = []

    class Counting(ScriptedEngine):
        def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
            sent.append(len(reported))
            return super().send(request, on_token)

    workload = Workload((burst(ask(), ask()), burst(ask())))
    run = WorkloadRun(Counting(), workload, "n", contents(tmp_path), tmp_path / "run", on_request=reported.append)
    outcomes = run.history().outcomes
    assert [(one.request, one.prompt) for one in reported] == [(one.request, one.prompt) for one in outcomes]
    assert sent == [2, 2, 3]


def test_a_history_survives_json(tmp_path: Path) -> None:
    """A later judge has only the file."""
    history = overlapping(PausesForLoad(), tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(history), type=History) == history
