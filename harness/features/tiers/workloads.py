"""Workloads in which the pool loses KV that comes back: from a second tier, or from a save under a name."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.lora.workloads import (
    AdapterLifecycle,
    WorkloadBuilder,
    adapter_lifecycles,
    coexisting_adapters,
    reload_routes,
)
from coldproof.harness.features.pressure.workloads import pool_tokens
from coldproof.harness.features.salts.crossed_workloads import crossed
from coldproof.harness.features.salts.workloads import salted
from coldproof.harness.workload.generators.chats import conversations, trees
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.prompts import DrawnRequests, WorkloadLimits, nearly_equal, stems
from coldproof.harness.workload.generators.reuse import repeats, returns
from coldproof.harness.workload.steps import (
    Burst,
    Idle,
    Prompt,
    Request,
    Reset,
    RestoreState,
    SaveState,
    Segment,
    SetAdapter,
    Step,
    Workload,
    renumbered,
)
from coldproof.harness.workload.tokens import NONCE_TOKENS

GAPS = (("reset",), (), ("flood",), ("flood", "reset"))
GAPS_BY_FLOOD = (("flood",), ())
PUSHERS = ("flood", "other flood")  # each fills the pool, both fill what is between it and the slowest tier
NAMES = ("kept", "other")
ADAPTERS = ("tenant", "Tenant")


class SaveRestoreBuilder(WorkloadBuilder):
    """Builds a workload whose requests are sent one by one, with saves and restores."""

    def __init__(self, draw: st.DrawFn, limits: WorkloadLimits) -> None:
        super().__init__(draw, limits, AdapterLifecycle())
        self.saved: list[str] = []
        self.tail = Segment("tail", draw(st.sampled_from((limits.unit + 1, 1, 5))))
        self.drawn = DrawnRequests(limit=limits.longest // 2)

    def save(self, name: str) -> None:
        """Add a save under a name."""
        self.steps.append(SaveState(name))
        self.saved.append(name)

    def send_related(self, model: str | None) -> None:
        """Send the first request's prompt again, or one that is related to it."""
        match self.draw(st.sampled_from(("again", "turn", "more", "part", "near"))):
            case "turn":
                self.send(Prompt((Segment("turn", 5),), continues=0), model)
            case "more":
                self.send(Prompt((self.stem, self.tail)), model)
            case "part":
                self.send(Prompt((Segment(self.stem.name, self.stem.length - self.limits.unit), self.tail)), model)
            case "near":
                self.send(Prompt((self.draw(nearly_equal(self.limits, self.stem)), self.tail)), model)
            case _:
                self.send(Prompt((self.stem,)), model)

    def interrupt(self, model: str | None) -> None:
        """Add requests that replace the cached KV: unrelated to what was saved, or with a part of it."""
        for _ in range(self.draw(st.sampled_from((1, 1, 2)))):
            kind = self.draw(st.sampled_from(("strange", "strange", "part")))
            strange = Segment("strange", self.draw(st.sampled_from((2, 4))) * self.limits.unit)
            part = Segment(self.stem.name, self.stem.length // 2)
            self.send(Prompt((strange,) if kind == "strange" else (part, strange)), model)


@st.composite
def saved_and_restored(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt, a save, other prompts, a restore, the prompt again; more with two names, all of one identity."""
    builder = SaveRestoreBuilder(draw, limits)
    model = None
    if Capability.ADAPTER_CHOICE in limits.can and draw(st.booleans()):
        model = ADAPTERS[0]
        builder.load(model)
    builder.send(Prompt((builder.stem,)), model)
    builder.save(NAMES[0])
    builder.interrupt(model)
    if draw(st.booleans()):
        builder.save(draw(st.sampled_from((NAMES[1], NAMES[0]))))
    for _ in range(draw(st.integers(1, 3))):
        builder.steps.append(RestoreState(draw(st.sampled_from(builder.saved))))
        builder.send_related(model)
        if draw(st.booleans()):
            builder.interrupt(model)
    return Workload(tuple(builder.steps))


@st.composite
def restored_for_others(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a save for one adapter or the base model, another adapter's request, a restore, and the prompt for either.

    A base-model request follows an adapter's request only after a restore. An engine that continues from the adapter's
    KV fails there even without a save, which LORA-4 tests.
    """
    builder = SaveRestoreBuilder(draw, limits)
    for name, content in zip(ADAPTERS, draw(st.permutations(limits.contents)), strict=False):
        builder.steps.append(SetAdapter(name=name, content=content, path=f"files-{content}"))
    saver = draw(st.sampled_from((ADAPTERS[0], None)))
    builder.send(Prompt((builder.stem,)), saver)
    builder.save(NAMES[0])
    for _ in range(draw(st.integers(1, 3))):
        other = draw(st.sampled_from([name for name in reversed(ADAPTERS) if name != saver]))
        builder.send(Prompt((Segment("strange", 2 * limits.unit),)), other)
        builder.steps.append(RestoreState(NAMES[0]))
        builder.send_related(draw(st.sampled_from((other, other, saver))))
    return Workload(tuple(builder.steps))


@guided
@st.composite
def sent_again_after_gaps(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw repeats, returns, trees and conversations, with gaps."""
    alone = (repeats(limits), returns(limits), first_block_changed(limits))
    chats = (conversations(limits, chat=False), trees(limits, chat=False))
    return with_gaps(draw, limits, draw(st.one_of(*alone, *chats)))


@guided
@st.composite
def first_block_changed(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt, the same with one token of its first block changed, and that one again.

    From the second block on, two prompts have equal tokens after different ones.
    """
    stem = draw(stems(limits))
    tail = Segment("tail", draw(st.sampled_from((limits.unit, 5))))
    near = msgspec.structs.replace(stem, changed=draw(st.sampled_from((0, limits.unit // 2))))
    prompts = [Prompt((stem, tail)), Prompt((near, tail)), Prompt((near, tail))]
    return Workload(tuple(Burst(requests=(Request(prompt=prompt),)) for prompt in prompts))


@guided
@st.composite
def evicted_and_sent_again(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw A, a prompt that takes the whole pool, and A again, perhaps once more with more tokens after A; or A with
    these tokens first. The prompt before the last one may leave A, or a part of it.

    What is left of A is what the pool gives away next, to the load of the rest. With an answer of one token, as a
    prefiller is asked for it, A ends in the step that computes its last blocks.
    """
    stem = draw(stems(limits))
    longer = (stem, Segment("tail", draw(st.sampled_from((limits.unit + 1, 3 * limits.unit)))))
    plans = (((stem,), (stem,)), ((stem,), (stem,), longer), ((stem,), longer, longer), (longer, (stem,), longer))
    first, *others = draw(st.sampled_from(plans))
    answer = draw(st.sampled_from((8, 1)))
    own = (NONCE_TOKENS + stem.length) // limits.unit
    left = draw(st.sampled_from((0, 2 * own, own // 2, own)))  # of several groups of layers, each has its own blocks
    steps: list[Step] = [Burst(requests=(Request(prompt=Prompt(first), max_tokens=answer),))]
    for number, segments in enumerate(others, start=1):
        filler = pool_filler(limits, "flood", left=left if number == len(others) else 0)
        steps += [filler, Burst(requests=(Request(prompt=Prompt(segments)),))]
    return Workload(tuple(steps))


@guided
@st.composite
def answers_that_fill_blocks(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt whose answer fills its last block with the last step, or a token before or after it, what takes the
    whole pool, and the next turn.
    """
    answer = draw(st.sampled_from((5, 2, 1, limits.unit)))
    blocks, beside = draw(st.sampled_from((2, 3, 4))), draw(st.sampled_from((0, 0, 1, -1)))
    # The last token of an answer is computed with the next turn only.
    asked = Segment("asked", blocks * limits.unit + 1 - answer + beside - NONCE_TOKENS)
    steps: list[Step] = [Burst(requests=(Request(prompt=Prompt((asked,)), max_tokens=answer),))]
    for _ in range(draw(st.sampled_from((1, 2)))):
        turn = Request(prompt=Prompt((Segment("turn", 5),), continues=0), max_tokens=4)
        steps += [pool_filler(limits, "flood"), Burst(requests=(turn,))]
    return Workload(tuple(steps))


def emptied(draw: st.DrawFn, limits: WorkloadLimits) -> Step:
    """Draw what empties the pool. No prompt empties one that is too large."""
    can_reset = Capability.CACHE_RESET in limits.can
    resets = can_reset and (draw(st.booleans()) or limits.pool_is_too_large)
    return Reset() if resets else pool_filler(limits, "flood")


def pushed_out(draw: st.DrawFn, limits: WorkloadLimits) -> list[Step]:
    """Draw what leaves earlier prompts in the slowest tier alone."""
    return [*(pool_filler(limits, name) for name in PUSHERS), emptied(draw, limits)]


@guided
@st.composite
def read_from_behind(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt that is left in the slowest tier alone and is sent again, with more tokens or beside another one.

    Unlike in a flood of the pool, nothing of it is left in the tier between.
    """
    most = min(pool_tokens(limits), limits.longest) // limits.unit - 2  # host memory may have room for fewer
    blocks, tail = draw(st.sampled_from((4, max(4, most), 2, 8))), draw(st.sampled_from((5, 1, limits.unit)))
    stem, end, other = (Segment(*of) for of in (("stem", blocks * limits.unit), ("tail", tail), ("other", limits.unit)))
    ask, longer, beside = (Request(prompt=Prompt(parts), max_tokens=4) for parts in ((stem,), (stem, end), (other,)))
    steps: list[Step] = [Burst(requests=(ask,))]
    for _ in range(draw(st.sampled_from(limits.sizes((1, 2))))):
        together = draw(st.sampled_from(((ask,), (longer,), (ask, beside), (longer, ask))))
        steps += [*pushed_out(draw, limits), Burst(requests=together), Burst(requests=(longer,))]
    return Workload((*steps, Idle(20)))


@guided
@st.composite
def partitions(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw equal prompts with different salts and adapters, with gaps."""
    workloads = [salted(limits, with_adapter=Capability.ADAPTER_CHOICE in limits.can)]
    if Capability.RUNTIME_LORA in limits.can:
        workloads.append(coexisting_adapters(limits))
    if Capability.RUNTIME_LORA in limits.can and len(limits.contents) > 1:
        workloads.append(adapter_lifecycles(limits, AdapterLifecycle(routes=reload_routes(limits)[::-1])))
    if limits.rare:
        workloads += [crossed(limits, adapters=adapters) for adapters in (False, Capability.RUNTIME_LORA in limits.can)]
    return with_gaps(draw, limits, draw(st.one_of(workloads)))


def with_gaps(draw: st.DrawFn, limits: WorkloadLimits, workload: Workload) -> Workload:
    """Return the workload with a reset, a request that fills the pool, or both before some bursts."""
    can_reset = Capability.CACHE_RESET in limits.can
    steps: list[Step] = []
    numbers: dict[int, int] = {}  # of a request in the given workload -> in the new one
    number = new_number = 0
    for step in workload.steps:
        if isinstance(step, Burst):
            for gap in draw(st.sampled_from(GAPS if number and can_reset else GAPS_BY_FLOOD if number else ((),))):
                if gap == "reset":
                    steps.append(Reset())
                else:
                    steps.append(pool_filler(limits, draw(st.sampled_from(("flood", "other flood")))))
                    new_number += 1
            requests = []
            for request in step.requests:
                numbers[number] = new_number
                requests.append(renumbered(request, numbers))
                number, new_number = number + 1, new_number + 1
            step = msgspec.structs.replace(step, requests=tuple(requests))
        steps.append(step)
    return Workload(tuple(steps))


def pool_filler(limits: WorkloadLimits, name: str, *, left: int = 0) -> Burst:
    """Return a burst of one request that takes as much of the pool as it can, so that nothing else stays, or all but
    `left` blocks.
    """
    tokens = max(limits.unit, min(pool_tokens(limits), limits.longest) - left * limits.unit) - NONCE_TOKENS - 4
    return Burst(requests=(Request(prompt=Prompt((Segment(name, tokens),)), max_tokens=4),))
