"""A server that treats a salt or a priority differently at one of its routes is detected, and a correct one is not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.fake_reply import MODEL, ServerBehaviour, answer
from support.fake_server import serving
from support.histories import ask, burst, history, outcome

from coldproof.adapters.endpoint.spec import attach
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.endpoints import IMPOSSIBLE_PRIORITY, Endpoint
from coldproof.adapters.protocol.requests import Token
from coldproof.harness.case.signature import signature
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.endpoints.checks import check_endpoints
from coldproof.harness.features.endpoints.evidence import CHANCES
from coldproof.harness.features.endpoints.workloads import at_every_endpoint, impossible_priorities
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


class FakeServerOracle(Oracle):
    """The oracle of the fake server."""

    name = "fake server"

    def ask(self, question: Question) -> Answer:
        """Return the cold answer, in which every token has a large margin."""
        ids = answer(MODEL, question.prompt, question.max_tokens)
        return Answer(tuple(Token(id=token, at=0.0, gap=5.0) for token in ids))


def judged(workload: Workload, behaviour: ServerBehaviour, folder: Path) -> Judgement:
    """Return the judgement of a workload on a fake server with this behaviour, attached by its URL."""
    with serving(behaviour) as fake:
        engine = attach(fake.url, adapter_for=lambda _: None)
        run = WorkloadRun(engine, workload, "n", {}, folder, settle_seconds=0.0)
        return judge(run.history(), FakeServerOracle(), Rule(exact=True), exclusive=False)


def chat(endpoint: Endpoint, salt: str | None, **more: object) -> Request:
    """Return the same chat for a route."""
    return msgspec.structs.replace(ask(*STEM, chat=True, endpoint=endpoint, salt=salt), **more)


def one_by_one(*requests: Request) -> Workload:
    """Return a workload of these requests one after the other."""
    return Workload(tuple(burst(request) for request in requests))


@given(data=st.data())
@FEW
def test_a_correct_server_has_no_finding(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """This holds for any workload at all five routes, also with impossible priorities."""
    family = data.draw(st.sampled_from([at_every_endpoint(LIMITS, with_adapter=False), impossible_priorities(LIMITS)]))
    one = judged(data.draw(family), ServerBehaviour(), tmp_path_factory.mktemp("run"))
    assert one.findings == ()


@pytest.mark.parametrize(
    "endpoint", [endpoint for endpoint in Endpoint if endpoint not in (Endpoint.COMPLETIONS, Endpoint.CHAT)]
)
def test_a_salt_that_one_route_drops_is_detected(endpoint: Endpoint, tmp_path: Path) -> None:
    """A request with a salt at that route hits what another route computed without a salt."""
    dropping = ServerBehaviour(drops=((endpoint.value, "cache_salt"),))
    one = judged(one_by_one(chat(Endpoint.CHAT, None), chat(endpoint, "red")), dropping, tmp_path)
    (found,) = one.findings
    assert (found.failure_class, found.request) == (FailureClass.STALE_STATE, 1)
    assert one.evidence[CHANCES[endpoint]] == 1
    assert found.sentence.startswith(f"Request 1 at {endpoint.value} hit ")
    assert "; request 0 at /v1/chat/completions wrote them for base model" in found.sentence
    words = signature(one.history, found.failure_class, found.request)
    assert words.endswith(f"; chat; beside /v1/chat/completions; at {endpoint.value} under a salt")


def test_a_hit_on_what_one_route_computed_under_a_salt_names_the_salt(tmp_path: Path) -> None:
    """The failing request has none: without these words it would be a failure without any salt."""
    dropping = ServerBehaviour(drops=(("/v1/messages", "cache_salt"),))
    one = judged(one_by_one(chat(Endpoint.MESSAGES, "red"), chat(Endpoint.MESSAGES, None)), dropping, tmp_path)
    (found,) = one.findings
    assert (found.failure_class, found.request) == (FailureClass.STALE_STATE, 1)
    words = signature(one.history, found.failure_class, found.request)
    assert words == "stale state; no reload; chat; beside /v1/messages under a salt; at /v1/messages"


def test_salts_that_two_routes_read_differently_are_detected(tmp_path: Path) -> None:
    """The route that drops the salt misses what the other route computed with it."""
    dropping = ServerBehaviour(drops=(("/v1/responses", "cache_salt"),))
    one = judged(one_by_one(chat(Endpoint.COMPLETIONS, "red"), chat(Endpoint.RESPONSES, "red")), dropping, tmp_path)
    (found,) = one.findings
    assert (found.failure_class, found.request) == (FailureClass.LOST_REUSE, 1)


def test_a_priority_that_one_route_ignores_is_detected(tmp_path: Path) -> None:
    """This route answers what the others refuse, and their refusals are right."""
    dropping = ServerBehaviour(drops=(("/v1/messages", "priority"),))
    odd = {"priority": IMPOSSIBLE_PRIORITY}
    one = judged(one_by_one(*(chat(endpoint, None, **odd) for endpoint in Endpoint)), dropping, tmp_path)
    (found,) = one.findings
    assert (found.checker, found.failure_class, found.request) == ("endpoints", FailureClass.API, 4)
    assert "/v1/messages was answered" in found.sentence
    assert "which /v1/completions refuses" in found.sentence
    words = "api; no reload; chat; impossible priority; several endpoints; at /v1/messages"
    assert signature(one.history, FailureClass.API, 4) == words


def history_with_refusals(*refused: bool, priority: int = IMPOSSIBLE_PRIORITY) -> History:
    """Return a history of a request with a priority at each route, answered or refused."""
    endpoints = list(Endpoint)[: len(refused)]
    workload = one_by_one(*(chat(endpoint, None, priority=priority) for endpoint in endpoints))
    answers = ({"error": "HTTP 400", "refused": True, "answer": ()} if no else {} for no in refused)
    return history(*(outcome(i, range(40), **facts) for i, facts in enumerate(answers)), workload=workload)


@pytest.mark.parametrize(
    ("one", "ignoring"),
    [
        (history_with_refusals(True, False, True, False), [1, 3]),
        (history_with_refusals(True, True), []),
        (history_with_refusals(False, False), []),  # an engine without priorities, or without a limit
        (history_with_refusals(True, False, priority=5), []),  # a priority that a route may have reasons to refuse
    ],
)
def test_only_a_route_that_differs_from_others_is_reported(one: History, ignoring: list[int]) -> None:
    """Each such route is reported once."""
    assert [found.request for found in check_endpoints(one)] == ignoring


def test_only_a_refusal_of_an_impossible_priority_is_excused() -> None:
    """A refused request with another priority is a request without an answer."""
    assert check_liveness(history_with_refusals(True, True)) == []
    assert len(check_liveness(history_with_refusals(True, False, priority=5))) == 1
