"""What running requests hold is in use and is hit, however full the pool is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import BLOCK, ask, burst, history, outcome, shape, tokens

from coldproof.adapters.protocol.engine_steps import Admission, EngineStep
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.features.preemption.held_checks import check_held_blocks, check_hits_of_held_blocks
from coldproof.harness.history.records import History, Identity, Outcome, ResetRecord
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload

POOL = 20  # blocks
STEM = tuple(range(4 * BLOCK))
LATER = 0.5  # when the second request is admitted
SHARED = 4 * BLOCK


def holder(number: int = 0, prompt: tuple[int, ...] = STEM, **more: Any) -> Outcome:
    """Return a request that has its first token after 0.1 s, and its last one after a second."""
    answer = tuple(msgspec.structs.replace(one, at=at) for one, at in zip(tokens(7, 8), (0.1, 1.0), strict=True))
    return outcome(number, prompt, (7, 8), **{"step": 0, "sent": 0.0, "finished": 1.0, "tokens": answer, **more})


def visitor(prompt: tuple[int, ...] = (*STEM, 900), **more: Any) -> Outcome:
    """Return a request that is sent while the holder runs."""
    answer = (msgspec.structs.replace(tokens(7)[0], at=0.4),)
    return outcome(1, prompt, (7,), **{"step": 0, "sent": LATER, "finished": 0.9, "tokens": answer, **more})


def made(*outcomes: Outcome, free: int = 0, hit: int = 0, resumed: bool = False, **facts: Any) -> History:
    """Return a history in which the last request is admitted later than all others."""
    first = tuple(Admission(str(one.request), 0) for one in outcomes[:-1])
    steps = (
        EngineStep(at=0.0, admitted=first, free=POOL - 4),
        EngineStep(at=LATER, admitted=(Admission(str(outcomes[-1].request), hit, resumed),), free=free),
    )
    sent = burst(*(ask() for _ in outcomes))
    known: dict[str, Any] = {"shape": shape(pool_blocks=POOL), "engine_steps": steps, **facts}
    return history(*outcomes, workload=Workload((sent,)), **known)


def lost(*outcomes: Outcome, exclusive: bool = True, **facts: Any) -> list[str]:
    """Return what is said of hits, which are lost reuse."""
    found = check_hits_of_held_blocks(made(*outcomes, **facts), exclusive=exclusive)
    assert all(one.failure_class is FailureClass.LOST_REUSE and one.request == outcomes[-1].request for one in found)
    return [one.sentence for one in found]


def test_what_a_running_request_holds_is_hit_in_a_full_pool() -> None:
    """Nothing is free, and the holder's four blocks are still there."""
    [sentence] = lost(holder(), visitor(), hit=0)
    assert sentence == (
        "Request 1 hit 0 cached tokens, but request 0 was running then and held 64 of its prompt's tokens."
    )
    assert lost(holder(), visitor(), hit=SHARED - BLOCK)
    assert lost(holder(), visitor(), hit=SHARED) == []


def test_the_last_token_and_a_part_of_a_block_are_not_owed() -> None:
    """Of an equal prompt, the last block is computed. Of another one, whole blocks are owed."""
    assert lost(holder(), visitor(STEM), hit=3 * BLOCK) == []
    assert lost(holder(), visitor((*STEM[: 2 * BLOCK + 5], 900, 901)), hit=2 * BLOCK) == []
    assert lost(holder(), visitor((*STEM[: 2 * BLOCK + 5], 900, 901)), hit=BLOCK)


@pytest.mark.parametrize(
    "changes",
    [
        {"preemptions": 1},
        {"preempted_at": (0.2,)},
        {"error": "refused"},
        {"tokens": ()},
        {"tokens": tuple(msgspec.structs.replace(one, at=0.6) for one in tokens(7, 8))},
        {"finished": 0.4},
        {"salt": "other"},
        {"identities": (Identity("A", None), Identity("B", None))},
    ],
)
def test_only_a_request_that_certainly_holds_its_prompt_owes_a_hit(changes: dict[str, Any]) -> None:
    """One that was preempted, failed, is in prefill or has ended may not hold it, and another salt's is not shared."""
    assert lost(holder(), visitor(), hit=0)
    assert lost(holder(**changes), visitor(), hit=0) == []


@pytest.mark.parametrize(
    "facts",
    [
        {"exclusive": False},
        {"resumed": True},
        {"engine_steps": None},
        {"shape": shape(pool_blocks=POOL, uniform=False)},
        {"shape": shape(pool_blocks=POOL, second_tier=True)},
        {"shape": shape(pool_blocks=POOL, prefix_caching=False)},
        {"resets": (ResetRecord(began=0.3, ended=0.3, success=True),)},
    ],
)
def test_where_another_reason_is_possible_nothing_is_owed(facts: dict[str, Any]) -> None:
    """Each of these may take the blocks out of the index, or out of the pool."""
    assert lost(holder(), visitor(), hit=0)
    assert lost(holder(), visitor(), hit=0, **facts) == []


def test_an_engine_that_leaves_a_block_out_of_each_hit_owes_one_less() -> None:
    """vLLM does so with a draft model that has KV of its own."""
    drops = shape(pool_blocks=POOL, drops_block=True)
    assert lost(holder(), visitor(), hit=SHARED - BLOCK, shape=drops) == []
    assert lost(holder(), visitor(), hit=SHARED - 2 * BLOCK, shape=drops)


def test_the_blocks_of_running_prompts_are_in_use() -> None:
    """Two requests hold four blocks together, or eight if their prompts differ."""
    other = holder(1, tuple(range(500, 500 + SHARED)))
    third = msgspec.structs.replace(visitor(tuple(range(900, 950))), request=2)
    for second, least in ((holder(1), 4), (other, 8)):
        assert check_held_blocks(made(holder(), second, third, free=POOL - least), exclusive=True) == []
        [found] = check_held_blocks(made(holder(), second, third, free=POOL - least + 1), exclusive=True)
        assert (found.checker, found.failure_class) == ("conservation", FailureClass.ACCOUNTING)
        assert f"the prompts of 2 running requests fill at least {least} blocks" in found.sentence


def test_a_reset_of_running_requests_may_free_what_they_hold() -> None:
    """A reset of everything else may not."""
    scopes = ((), (ResetScope.RUNNING,))
    pool, both = ((ResetRecord(began=0.3, ended=0.3, success=True, scope=scope),) for scope in scopes)
    assert check_held_blocks(made(holder(), visitor(), free=POOL, resets=pool), exclusive=True)
    assert check_held_blocks(made(holder(), visitor(), free=POOL, resets=both), exclusive=True) == []
