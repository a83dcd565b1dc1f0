"""What is registered for scripts of cases: flags, checks, and classes of attempts."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.scripts import case_of

from coldproof.harness import feature_files
from coldproof.harness.case.reproducer import features as features_module
from coldproof.harness.case.reproducer import registry
from coldproof.harness.case.reproducer.features import GIVEN, features
from coldproof.harness.case.reproducer.kit.checks import is_out_of_bounds, is_wrong
from coldproof.harness.case.reproducer.kit.story import Story
from coldproof.harness.case.reproducer.modules import Conflict, offers
from coldproof.harness.case.reproducer.registry import Call, Check, ScriptCase, first_call, script_check
from coldproof.harness.case.reproducer.script import played, reproducer, script_case
from coldproof.harness.features.pressure.script import OrderedStory
from coldproof.harness.features.sessions.script import SessionStory
from coldproof.harness.schema.case import Case

CLIENTS = "coldproof.adapters.vllm.script:InProcess", "coldproof.adapters.vllm.script_server:Server"


def in_a_session(case: Case) -> Case:
    """Return a case whose first request is a turn of a session."""
    workload = msgspec.json.decode(msgspec.json.encode(case.workload))
    burst = next(step for step in workload["steps"] if step["type"] == "burst")
    burst["requests"][0]["session"] = "s"
    return msgspec.structs.replace(case, workload=workload)


def test_what_no_feature_registers_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the folder of a feature, its branches are left out of scripts."""
    about = script_case(in_a_session(case_of("vllm")))
    assert features(about)["SESSIONS"]
    monkeypatch.setattr(registry, "FLAGS", [])
    found = features(about)
    assert not any(found[name] for name in ("SESSIONS", "POOLED", "IMAGES", "EVENTS", "FAILS"))
    assert found["GENERATED"]


def test_every_flag_has_a_use() -> None:
    """It is in branches of clients and of the kit, or decides about a check or an attempt."""
    used = {*GIVEN, *registry.ATTEMPTS, *(check.flag for check in registry.CHECKS.load())}
    assert {one.name for one in registry.registered_flags()} <= used


def test_every_flag_of_a_client_is_that_of_some_case() -> None:
    """Nothing else would turn it on. Five follow from the way in which a script sends its requests."""
    of_room = re.findall(r'"([A-Z_]+)"', Path(features_module.__file__).read_text())
    registered = registry.flags_with(lambda _: True)
    assert GIVEN.keys() - registered - {*of_room} == {"AT_ONCE", "STEPPED", "ONE_BY_ONE", "COUNTS", "TOKENS_ONLY"}


def test_an_attempt_is_of_the_class_of_a_feature() -> None:
    """Only cases of the feature have its class."""
    case = case_of("vllm")
    assert "SessionStory" not in reproducer(case)
    assert "scenario(SessionStory(story.client))" in reproducer(in_a_session(case))


def test_an_attempt_may_be_of_several_classes() -> None:
    """It then has what each of them adds."""
    names = {"SessionStory": SessionStory, "OrderedStory": OrderedStory, "scenario": lambda story: story}
    client: Any = SimpleNamespace(hit_count=lambda: 0)
    story = eval(played([SessionStory, OrderedStory]), names)(Story(client))  # as the last line of a script calls it
    assert isinstance(story, SessionStory)
    assert isinstance(story, OrderedStory)
    assert story.order == []
    assert played([]) == "scenario"


def test_the_first_check_that_knows_a_case_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose flag is off is left out."""
    about = script_case(case_of("vllm"))

    def knows(_: ScriptCase) -> Call:
        """Know each case."""
        return Call(is_out_of_bounds, (1, 0, "x"))

    monkeypatch.setitem(registry.CHECKS.entries, 1, Check(call=lambda _: None))
    monkeypatch.setitem(registry.CHECKS.entries, 2, Check(call=knows, flag="ENDPOINTS"))
    assert str(first_call(about, {**features(about), "ENDPOINTS": True})) == "is_out_of_bounds(story, 1, 0, 'x')"
    assert first_call(about, {**features(about), "ENDPOINTS": False}).function is is_wrong


def test_two_checks_cannot_have_the_same_place() -> None:
    """Which one decides would depend on the order of imports."""
    feature_files.load("script")
    with pytest.raises(ValueError, match="have the same place in the order: 100"):
        script_check(100)(lambda _: None)


def test_a_client_lacks_what_its_class_has_not() -> None:
    """A method, or an attribute that it sets itself; also one of a class above it."""
    assert [offers(client, "events") for client in CLIENTS] == [True, False]
    assert [offers(client, "hit_count") for client in CLIENTS] == [False, True]
    assert offers(f"{SessionStory.__module__}:SessionStory", "during")
    with pytest.raises(Conflict, match="defines no class Nothing"):
        offers("coldproof.adapters.vllm.script:Nothing", "events")
