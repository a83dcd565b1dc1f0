"""What goes wrong around an engine: a side or a tier's server ends, or the decoder gets a request late."""

from __future__ import annotations

from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.sides import ENGINES, Side
from coldproof.harness.features.pressure.workloads import pool_tokens
from coldproof.harness.workload.generators.prompts import WorkloadLimits, stems
from coldproof.harness.workload.steps import (
    Burst,
    Idle,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    RestartSide,
    Segment,
    Step,
    Workload,
)
from coldproof.harness.workload.tokens import NONCE_TOKENS

# The cell for this keeps KV that nobody has fetched for three seconds, as an engine by default does for half a minute.
LATE_MS, SOON_MS = 7000, 1500
AFTER_MS = 100
FOUND_MS = 3000  # in which an engine notices that its tier answers again, in the cells for this
OTHERS_MS, APART_MS = 4500, 400  # from when others take the blocks that were given back


@st.composite
def late_hand_overs(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts that the decoder gets late, while others fill the prefiller's pool, and these prompts again.

    Late is after the prefiller has given their blocks back, or before.
    """
    late = draw(st.sampled_from((LATE_MS, LATE_MS, SOON_MS)))
    names = ("stem", "second")[: draw(st.sampled_from((1, 2)))]
    prompts = [Prompt((draw(stems(limits, (name,))),)) for name in names]
    first = [Request(prompt=prompt, hand_over_ms=late) for prompt in prompts]
    length = min(limits.longest, pool_tokens(limits)) // 2 - NONCE_TOKENS - limits.unit
    count = 2 * pool_tokens(limits) // length
    others = [
        Request(prompt=Prompt((Segment(f"other {n}", length),)), max_tokens=2, offset_ms=OTHERS_MS + n * APART_MS)
        for n in range(count)
    ]
    again = [Burst(requests=(Request(prompt=prompt),)) for prompt in prompts]
    return Workload((Burst(requests=(*first, *others)), *again))


@st.composite
def failing_sides(draw: st.DrawFn, limits: WorkloadLimits, sides: tuple[Side, ...] = ENGINES) -> Workload:
    """Draw prompts, a side that ends while they are computed, handed over or answered, or afterwards, and the prompts
    again, on their own and continued."""
    change = RestartSide(draw(st.sampled_from(sides)))
    prompts = [Prompt((draw(stems(limits, (name,))),)) for name in ("stem", "second", "third")]
    steps: list[Step] = [Burst(requests=(Request(prompt=prompts[0]),))]
    when = draw(st.sampled_from((1, 4, 0, None)))
    if when is None:
        steps.append(change)
    else:
        waits = draw(st.sampled_from((SOON_MS, SOON_MS, 0))) if Capability.PREFILL_APART in limits.can else 0
        # Its first tokens come after the prefiller has computed the others, and while these wait between both sides.
        running = [Request(prompt=prompts[0], max_tokens=24, offset_ms=AFTER_MS)]
        running += [Request(prompt=prompt, max_tokens=24, hand_over_ms=waits) for prompt in prompts[1:]]
        steps.append(Burst(requests=tuple(running), meanwhile=Meanwhile(change=change, after_tokens=when)))
    steps += [Burst(requests=(Request(prompt=prompt),)) for prompt in prompts]
    longer = draw(st.sampled_from(prompts))
    steps.append(Burst(requests=(Request(prompt=Prompt((*longer.segments, Segment("tail", limits.unit + 1)))),)))
    return Workload((*steps, Idle(500)))


@st.composite
def failing_tiers(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts, a tier whose server ends while they are loaded, computed or answered, or afterwards, the prompts
    again, and a new prompt that is loaded once the engine has found the server again."""
    first, *failing = draw(failing_sides(limits, sides=(Side.TIER,))).steps
    new = Burst(requests=(Request(prompt=Prompt((draw(stems(limits, ("new",))),))),))
    emptied = () if Capability.PREFILL_APART in limits.can else (Reset(),)  # a decoder has it from the prefiller only
    return Workload((first, *emptied, *failing, Idle(FOUND_MS), new, *emptied, new))
