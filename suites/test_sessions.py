"""Sessions: requests that stay open after an answer and take further input."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.sessions.evidence import Sessions
from coldproof.harness.features.sessions.workloads import (
    sessions,
    sessions_beyond_the_context,
    sessions_that_switch,
)
from coldproof.harness.judgement.evidence.cache import Pressure
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest

AREA = "sessions"
SESSION_CELLS = ("sessions",)


@requirement(
    "SESS-1",
    "sessions answer as cold and leave the right blocks",
    needs=(
        Capability.SESSIONS,
        Capability.TOKEN_PROMPTS,
        Capability.TOKEN_OUTPUTS,
        Capability.CACHED_TOKENS,
        Capability.CACHE_SALT,
        Capability.POOL_USAGE,
    ),
    suits=SESSION_CELLS,
    shows=(Sessions.TURNS, Sessions.HITS, Sessions.DROPS, Pressure.IDLE_COMPARED),
    upstream=("vllm#49449", "vllm#49377", "sglang#27024"),
)
@given(data=st.data())
def test_sessions_answer_as_cold(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers each turn of a session as cold over the whole session, shares its blocks with other
    requests like those of any request, and frees them when the session is closed.

    Why it can break: a session goes on from what is computed, so that its last token is dropped or computed later, and
    other input takes its place. A hash that was made with the dropped token names a block with other KV (vllm#49449).
    Blocks of a session that waits for input are in use and belong to no running request (sglang#27024). Oracle: cold
    start over the concatenation, the reference cache, and the gauge of the pool. Vacuous when no session went on, no
    other request hit what a later turn computed, none began with a block that has a dropped token, or the engine was
    never idle after the sessions had been closed.
    """
    workload = sessions(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE))
    sut.check(data.draw(workload, label="workload"))


STREAMING = (
    Capability.STREAMING_SESSIONS,
    Capability.TOKEN_PROMPTS,
    Capability.TOKEN_OUTPUTS,
    Capability.CACHED_TOKENS,
    Capability.CACHE_SALT,
    Capability.POOL_USAGE,
)


@requirement(
    "SESS-1",
    "streaming sessions",
    needs=STREAMING,
    suits=SESSION_CELLS,
    shows=(Sessions.TURNS, Sessions.HELD, Pressure.IDLE_COMPARED),
    upstream=("sglang#27024",),
)
@given(data=st.data())
def test_streaming_sessions_answer_as_cold(sut: SystemUnderTest, data: st.DataObject) -> None:
    """The same holds for sessions that keep whole answers, each turn of which is appended to all before it.

    Why it can break: such a session may keep its KV outside of the prefix cache, where no key says what it belongs to,
    and must free it at the end (sglang#27024). Oracle: cold start over the concatenation, and the gauge of the pool.
    Vacuous when no turn hit what its session held, or the engine was never idle after the sessions had been closed.
    """
    workload = sessions(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE), streaming=True)
    sut.check(data.draw(workload, label="workload"))


@requirement(
    "SESS-1",
    "streaming sessions that change the adapter",
    needs=(*STREAMING, Capability.ADAPTER_CHOICE),
    suits=SESSION_CELLS,
    shows=(Sessions.SWITCHES, Sessions.HELD),
)
@given(data=st.data())
def test_sessions_that_change_the_adapter(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A turn of such a session may have another adapter than the turn before. A conforming engine then answers it as
    cold with the turn's adapter over all that the session has seen, or refuses it.

    Vacuous when no turn had another adapter than the turn before it.
    """
    sut.check(data.draw(sessions_that_switch(sut.limits), label="workload"))


@requirement(
    "SESS-2",
    "sessions beyond the context",
    needs=(Capability.SESSIONS, Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.POOL_USAGE),
    suits=("sessions up to the context",),
    shows=(Pressure.REFUSED, Pressure.BESIDE_REFUSED, Pressure.IDLE_COMPARED),
)
@given(data=st.data())
def test_sessions_beyond_the_context(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine refuses input with which a session would exceed the context, and goes on serving others.

    Why it can break: the length of an input is checked when it arrives, but what counts is the length with all that the
    session holds. Oracle: cold start for the requests beside it. Vacuous when no input was refused.
    """
    sut.check(data.draw(sessions_beyond_the_context(sut.limits), label="workload"))
