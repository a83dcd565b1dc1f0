"""Adapters that change behind a name: the KV of the old content must never answer for the new one.

The order is by cost, not by number: what engines often break stands apart, so that the fresh engine on which one
counterexample is confirmed starts while the next requirement runs.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.adapters import Life, churn, lives, neighbours, reloads
from harness.generators.pieces import rearranged
from harness.generators.switches import switches
from harness.lab import Lab
from harness.requirement import requirement
from harness.workload import Route

CHOSEN = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.ADAPTER_CHOICE)
ADAPTERS = (*CHOSEN, Capability.STREAMING, Capability.CACHED_TOKENS)
RELOADS = (*ADAPTERS, Capability.RUNTIME_LORA)
IN_PLACE = (*RELOADS, Capability.LORA_IN_PLACE)
IN_PLACE_TOO = {Capability.LORA_IN_PLACE: Evidence.IN_PLACE_RELOADS}
RISK = (Evidence.WARM_HITS, Evidence.STALE_CHANCES, Evidence.TELLING)


@requirement(
    "LORA-1",
    "in-place reload, other path",
    needs=IN_PLACE,
    shows=(Evidence.IN_PLACE_RELOADS, *RISK),
    upstream=("vllm#42125", "vllm#30931"),
)
@given(data=st.data())
def test_in_place_reload_from_another_path(lab: Lab, data: st.DataObject) -> None:
    """After an in-place reload under the same name from another path, a conforming engine answers as the new adapter
    cold.

    Why it can break: the block hash holds the adapter's name and not what is behind it (vllm#42125). Oracle: cold
    start. Vacuous when the warm-up never hit, no block of the old content lay ready for a later prompt, or the two
    contents answer alike.
    """
    lab.check(data.draw(lives(lab.grounds, Life(routes=(Route.IN_PLACE,))), label="workload"))


@requirement(
    "LORA-3",
    "in-place reload, same path, changed files",
    needs=IN_PLACE,
    shows=(Evidence.IN_PLACE_RELOADS, Evidence.SAME_PATH_RELOADS, *RISK),
    upstream=("vllm#42125", "vllm#48352"),
)
@given(data=st.data())
def test_in_place_reload_of_changed_files(lab: Lab, data: st.DataObject) -> None:
    """After an in-place reload from the same path whose files changed, a conforming engine answers as the new adapter
    cold.

    Why it can break: a key of name and path looks like a version and is none; trainers write every checkpoint to the
    same folder. Oracle: cold start. Vacuous as LORA-1 is, or when no path was used again with other files.
    """
    lab.check(data.draw(lives(lab.grounds, Life(routes=(Route.IN_PLACE,), same_path=True)), label="workload"))


@requirement(
    "LORA-2",
    "unload + load, other path",
    needs=RELOADS,
    shows=(Evidence.UNLOAD_LOADS, *RISK),
    upstream=("vllm#42125", "vllm#30931"),
)
@given(data=st.data())
def test_unload_and_load_from_another_path(lab: Lab, data: st.DataObject) -> None:
    """After unload + load under the same name, a conforming engine answers as the new adapter cold.

    Why it can break: unloading forgets the name in the front end and leaves the blocks in the pool (vllm#42125).
    Oracle: cold start. Vacuous as LORA-1 is.
    """
    lab.check(data.draw(lives(lab.grounds, Life(routes=(Route.UNLOAD_LOAD,))), label="workload"))


@requirement(
    "LORA-3",
    "unload + load, same path, changed files",
    needs=RELOADS,
    shows=(Evidence.UNLOAD_LOADS, Evidence.SAME_PATH_RELOADS, *RISK),
)
@given(data=st.data())
def test_unload_and_load_of_changed_files(lab: Lab, data: st.DataObject) -> None:
    """After unload + load from the same path whose files changed, a conforming engine answers as the new adapter
    cold."""
    lab.check(data.draw(lives(lab.grounds, Life(routes=(Route.UNLOAD_LOAD,), same_path=True)), label="workload"))


@requirement(
    "LORA-4",
    "adapters and base model apart",
    needs=CHOSEN,
    shows=(Evidence.STALE_CHANCES, Evidence.TELLING),
    upstream=("vllm#3263", "vllm#8240", "vllm#30931", "llama.cpp#26207"),
)
@given(data=st.data())
def test_no_sharing_between_adapters_or_with_the_base_model(lab: Lab, data: st.DataObject) -> None:
    """A conforming engine never shares KV between two adapters, or between an adapter and the base model, whatever
    their names, ranks and load order.

    Why it can break: the adapter has been lost from the cache key again and again (vllm PR#3263, PR#8240, #30931).
    Oracle: cold start. Vacuous when no block of another identity lay ready for a prompt, or the identities answer
    alike.
    """
    lab.check(data.draw(neighbours(lab.grounds), label="workload"))


@requirement(
    "LORA-4",
    "pieces at other places",
    needs=(*CHOSEN, Capability.MOVED_PIECES),
    shows=(Evidence.MOVED, Evidence.TELLING),
    upstream=("llama.cpp#26207",),
)
@given(data=st.data())
def test_moved_pieces_stay_with_their_adapter(lab: Lab, data: st.DataObject) -> None:
    """Nor does it where pieces of prompts are reused at other places.

    Why it can break: a piece is found by its tokens, in a sequence that another adapter computed (llama.cpp#26207).
    Oracle: the tokens of a prompt that stand in pieces of what was computed for its identity; and the answers that
    other identities would have given, for such a mode may give one that equals no cold answer. Vacuous when no piece
    was reused at another place, or the identities answer alike.
    """
    lab.check(data.draw(rearranged(lab.grounds, adapters=True), label="workload"))


@requirement(
    "LORA-5",
    "going back: A, B, A",
    needs=RELOADS,
    shows=(Evidence.RETURNS, Evidence.UNLOAD_LOADS, *RISK),
    shows_where=IN_PLACE_TOO,
    overlapped_too=False,
    upstream=("vllm#42125",),
)
@given(data=st.data())
def test_going_back(lab: Lab, data: st.DataObject) -> None:
    """Going back (A, B, A), a conforming engine answers as A cold, hits or not.

    Why it can break: blocks of A and of B live side by side under keys that must tell them apart for good. Oracle: cold
    start. Vacuous when no content ever came back.
    """
    life = Life(routes=reloads(lab.grounds), goes_back=True, most_names=1)
    lab.check(data.draw(lives(lab.grounds, life), label="workload"))


@requirement(
    "LORA-5",
    "going back after a change under traffic",
    needs=RELOADS,
    shows=(Evidence.RETURNS, Evidence.OVERLAPPED, Evidence.AFTER_OVERLAP),
    overlapped_too=False,
)
@given(data=st.data())
def test_going_back_after_a_change_under_traffic(lab: Lab, data: st.DataObject) -> None:
    """It does so when requests were running while B replaced A.

    Why it can break: those requests go on writing blocks under A's key, with B's weights; the blocks lie in wait until
    A is back. Oracle: cold start; requests that the change itself overlapped are LORA-6's matter and not judged here.
    Vacuous when, with A back, no prompt reached into an answer that the change overlapped.
    """
    life = Life(routes=reloads(lab.grounds)[:1], goes_back=True, under_traffic=True, most_names=1, base_traffic=False)
    lab.check(data.draw(lives(lab.grounds, life), label="workload"))


@requirement(
    "LORA-7",
    "more adapters than slots",
    needs=RELOADS,
    shows=(Evidence.BEYOND_SLOTS, Evidence.HITS, Evidence.STALE_CHANCES, Evidence.TELLING),
    upstream=("vllm#38606",),
)
@given(data=st.data())
def test_churn_beyond_the_adapter_slots(lab: Lab, data: st.DataObject) -> None:
    """With adapters churning beyond the engine's adapter slots, a conforming engine keeps all of the above.

    Why it can break: an adapter that was thrown out of its slot is loaded again by a path of its own, and its blocks
    outlive it. Oracle: cold start. Vacuous when all names fitted into the slots.
    """
    lab.check(data.draw(churn(lab.grounds), label="workload"))


@requirement(
    "LORA-6",
    "reload under traffic",
    needs=RELOADS,
    shows=(Evidence.OVERLAPPED,),
    shows_where=IN_PLACE_TOO,
    upstream=("vllm#48352",),
)
@given(data=st.data())
def test_reload_while_requests_run(lab: Lab, data: st.DataObject) -> None:
    """At a reload while requests run, each answer of a conforming engine is wholly one version's, never a mixture; and
    every request after the reload returned is the new one's.

    Why it can break: the reload swaps weights between two steps of a running request. Oracle: cold start under the old
    or the new content for the requests that the reload overlapped, under the new one for those after it. Vacuous when
    no reload overlapped a request.
    """
    life = Life(routes=reloads(lab.grounds)[:1], under_traffic=True, most_names=1, base_traffic=False)
    lab.check(data.draw(lives(lab.grounds, life), label="workload"))


@requirement(
    "LORA-8",
    "switched on for every request",
    needs=(*ADAPTERS, Capability.ADAPTER_SWITCH),
    shows=(Evidence.SWITCHES, Evidence.HITS, Evidence.STALE_CHANCES, Evidence.TELLING),
    upstream=("llama.cpp#26207",),
)
@given(data=st.data())
def test_an_adapter_switched_on_for_every_request(lab: Lab, data: st.DataObject) -> None:
    """Where an adapter is switched on for every request, off, or over to another, a conforming engine answers as what
    is on now cold, and requests that choose their own adapter as that one.

    Why it can break: what is cached was keyed by what requests say, and these say nothing (llama.cpp#26207). Oracle:
    cold start. Vacuous when nothing was switched, nothing hit, or no prefix of another identity lay ready.
    """
    lab.check(data.draw(switches(lab.grounds), label="workload"))
