"""A server that treats a salt or a priority differently at one of its doors is found, and an honest one is not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.fake_reply import MODEL, ServerBehaviour, answer
from support.fake_server import serving
from support.histories import ask, burst, history, outcome

from coldproof.adapters.openai.spec import attach
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.doors import IMPOSSIBLE_PRIORITY, Door
from coldproof.adapters.protocol.requests import Token
from coldproof.harness.case.signature import signature
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.doors.checks import check_doors
from coldproof.harness.features.doors.evidence import Doors
from coldproof.harness.features.doors.workloads import at_two_doors, impossible_priorities
from coldproof.harness.history.records import History
from coldproof.harness.judgement.checkers.liveness import check_liveness
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import Judgement, judge
from coldproof.harness.judgement.oracle import Answer, Oracle, Question
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Request, Workload

LIMITS = WorkloadLimits(block=16, slots=4, contents=("A", "B"), mixtures=frozenset(), can=frozenset(Capability))
FEW = settings(max_examples=8, deadline=None, database=None, phases=[Phase.generate])
STEM = (("stem", 90), ("question", 5))


class Cold(Oracle):
    """The cold answers of the stand-in."""

    name = "stand-in"

    def ask(self, question: Question) -> Answer:
        """Every token is far from the runner-up."""
        ids = answer(MODEL, question.prompt, question.max_tokens)
        return Answer(tuple(Token(id=token, at=0.0, gap=5.0) for token in ids))


def judged(workload: Workload, behaviour: ServerBehaviour, folder: Path) -> Judgement:
    """A workload on a stand-in with these manners, attached by its URL."""
    with serving(behaviour) as fake:
        engine = attach(fake.url, adapter_for=lambda _: None)
        run = WorkloadRun(engine, workload, "n", {}, folder, settle_seconds=0.0)
        return judge(run.history(), Cold(), Rule(exact=True), exclusive=False)


def chat(door: Door, salt: str | None, **more: object) -> Request:
    """The same chat at a door."""
    return msgspec.structs.replace(ask(*STEM, chat=True, door=door, salt=salt), **more)


def at(*requests: Request) -> Workload:
    """Requests one after the other."""
    return Workload(tuple(burst(request) for request in requests))


@given(data=st.data())
@FEW
def test_an_honest_server_has_no_finding(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever is drawn, at all five doors, also with impossible priorities."""
    family = data.draw(st.sampled_from([at_two_doors(LIMITS, with_adapter=False), impossible_priorities(LIMITS)]))
    one = judged(data.draw(family), ServerBehaviour(), tmp_path_factory.mktemp("run"))
    assert one.findings == ()


@pytest.mark.parametrize("door", [door for door in Door if door not in (Door.COMPLETIONS, Door.CHAT)])
def test_a_salt_that_gets_lost_at_one_door_is_found(door: Door, tmp_path: Path) -> None:
    """With a salt, that door hits what another one computed without a salt."""
    lossy = ServerBehaviour(drops=((door.value, "cache_salt"),))
    one = judged(at(chat(Door.CHAT, None), chat(door, "red")), lossy, tmp_path)
    (found,) = one.findings
    assert (found.failure_class, found.request) == (FailureClass.STALE_STATE, 1)
    assert one.evidence[Doors.CHANCES] == 1
    said = signature(one.history, found.failure_class, found.request)
    assert said.endswith(f"; chat; beside /v1/chat/completions; at {door.value} under a salt")


def test_salts_that_two_doors_read_differently_are_found(tmp_path: Path) -> None:
    """The door that drops the salt finds nothing of what the other computed under it."""
    lossy = ServerBehaviour(drops=(("/v1/responses", "cache_salt"),))
    one = judged(at(chat(Door.COMPLETIONS, "red"), chat(Door.RESPONSES, "red")), lossy, tmp_path)
    (found,) = one.findings
    assert (found.failure_class, found.request) == (FailureClass.LOST_REUSE, 1)


def test_a_priority_that_one_door_ignores_is_found(tmp_path: Path) -> None:
    """It answers what the others refuse; their refusals are right."""
    lossy = ServerBehaviour(drops=(("/v1/messages", "priority"),))
    odd = {"priority": IMPOSSIBLE_PRIORITY}
    one = judged(at(*(chat(door, None, **odd) for door in Door)), lossy, tmp_path)
    (found,) = one.findings
    assert (found.checker, found.failure_class, found.request) == ("doors", FailureClass.API, 4)
    assert "/v1/messages was answered" in found.sentence
    assert "which /v1/completions refuses" in found.sentence
    said = "api; no reload; chat; impossible priority; several doors; at /v1/messages"
    assert signature(one.history, FailureClass.API, 4) == said


def odd_history(*refused: bool, priority: int = IMPOSSIBLE_PRIORITY) -> History:
    """One request with a priority at each door, answered or refused."""
    doors = list(Door)[: len(refused)]
    workload = at(*(chat(door, None, priority=priority) for door in doors))
    said = ({"error": "HTTP 400", "refused": True, "answer": ()} if no else {} for no in refused)
    return history(*(outcome(i, range(40), **facts) for i, facts in enumerate(said)), workload=workload)


@pytest.mark.parametrize(
    ("one", "ignoring"),
    [
        (odd_history(True, False, True, False), [1, 3]),
        (odd_history(True, True), []),
        (odd_history(False, False), []),  # an engine without priorities, or without a limit
        (odd_history(True, False, priority=5), []),  # a priority that a door may have its reasons to refuse
    ],
)
def test_only_a_door_that_differs_from_others_is_reported(one: History, ignoring: list[int]) -> None:
    """Each once."""
    assert [found.request for found in check_doors(one)] == ignoring


def test_only_a_refusal_of_an_impossible_priority_is_excused() -> None:
    """A refusal of another one is a request without an answer."""
    assert check_liveness(odd_history(True, True)) == []
    assert len(check_liveness(odd_history(True, False, priority=5))) == 1
