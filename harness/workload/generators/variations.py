"""Variations of a workload: steps inserted, repeated and swapped, bursts split and joined, lengths moved to edges,
clients that disconnect at any moment, more sharers, salts and priorities.

They widen what every generator draws. Each is a function that edits a draft with a random source, or does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import PLAIN, Abort, Stage
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.workload.editing import Draft, EditedRequest, EditedStep
from coldproof.harness.workload.generators.prompts import (
    ADAPTERS_TOGETHER,
    BASE_WITH_ADAPTER,
    WorkloadLimits,
    computed_tokens,
)
from coldproof.harness.workload.steps import (
    Burst,
    Change,
    Idle,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    Route,
    Segment,
    SetAdapter,
    Step,
    Workload,
    adapter_changes,
    all_changes,
)
from coldproof.harness.workload.tokens import NONCE_TOKENS, new_prompt_length
from coldproof.harness.workload.validity import is_valid

TIMES = (1, 1, 1, 2, 2, 3, 15, 16, 63)  # further times: the 2nd, 3rd, 4th, 16th, 17th and 64th
SALTS = (1, 2, 3, 15, 16)  # further salts
MOST_REQUESTS, MOST_STEPS = 140, 90
TRIES = 6  # variations are tried until so many could not be applied
LONG_SALT = "tenant-" + "0123456789" * 10  # salts differ only behind so many characters; servers refuse longer ones
OFFSETS = (0, 10, 20, 30, 50, 100, 200)
PRIORITIES = (-1000, -5, -1, 0, 0, 1, 5, 1000)
Variation = Callable[[Draft, WorkloadLimits, Random], None]


def varied_workload(workload: Workload, limits: WorkloadLimits, random: Random) -> Workload:
    """Return a workload with one to four variations; the same one if none of those tried is possible."""
    if not may_vary(workload):
        return workload
    wanted, found = random.choice((1, 1, 2, 3, 4)), workload
    for _ in range(TRIES):
        draft = Draft(found)
        random.choice(VARIATIONS)(draft, limits, random)
        changed = draft.workload()
        if changed is not None and changed != found and fits(changed, limits):
            found, wanted = changed, wanted - 1
        if not wanted:
            break
    return found


def may_vary(workload: Workload) -> bool:
    """Return whether the meaning of a workload does not depend on its exact steps.

    It does after updates and restarts, where a path gets other files (which LORA-3 tests), and where a client cuts its
    history at a position of the earlier prompt.
    """
    files: dict[str, set[str]] = {}
    for load in adapter_changes(workload):
        files.setdefault(load.path, set()).add(load.content)
    return (
        all(change.varies for change in all_changes(workload))
        and all(len(contents) == 1 for contents in files.values())
        and not any(request.prompt.cuts_history for _, _, request in workload.requests())
    )


def fits(workload: Workload, limits: WorkloadLimits) -> bool:
    """Return whether a workload is valid, can be afforded, and mixes only what GROUND-1 allows. Each request fits into
    the pool on its own: what never fits is PRESS-3's.
    """
    requests = [request for _, _, request in workload.requests()]
    if not is_valid(workload) or len(requests) > MOST_REQUESTS or len(workload.steps) > MOST_STEPS:
        return False
    lengths: list[int] = []
    for request in requests:
        before = 0 if request.prompt.continues is None else lengths[request.prompt.continues]
        lengths.append(before + new_prompt_length(request.prompt) + request.max_tokens)
    affordable = computed_tokens(requests) <= limits.most_tokens
    most = limits.longest if limits.pool is None else min(limits.longest, limits.pool)
    return max(lengths) <= most and affordable and mixes_well(workload, limits)


def mixes_well(workload: Workload, limits: WorkloadLimits) -> bool:
    """Return whether no burst has a mixture of models for which GROUND-1 does not hold."""
    for step in workload.steps:
        models = {request.adapter for request in step.requests}
        if len(models - {None}) > 1 and not limits.may_mix(ADAPTERS_TOGETHER):
            return False
        if len(models) > 1 and None in models and not limits.may_mix(BASE_WITH_ADAPTER):
            return False
    return True


def repeat_steps(draft: Draft, _limits: WorkloadLimits, random: Random) -> None:
    """Repeat one to three successive steps, up to 63 times."""
    start = random.randrange(len(draft.steps))
    chosen = draft.steps[start : start + random.choice((1, 1, 2, 3))]
    if any(isinstance(one.step, SetAdapter) and one.step.route is Route.LOAD for one in chosen):
        return
    again = [copied for _ in range(random.choice(TIMES)) for copied in draft.copy_steps(chosen)]
    draft.steps[start + len(chosen) : start + len(chosen)] = again


def send_again(draft: Draft, _limits: WorkloadLimits, random: Random) -> None:
    """Send an earlier burst again, at a later place."""
    bursts = [place for place, edited in enumerate(draft.steps) if isinstance(edited.step, Burst)]
    chosen = random.choice(bursts)
    place = random.randint(chosen + 1, len(draft.steps))
    draft.steps[place:place] = draft.copy_steps([draft.steps[chosen]])


def swap_steps(draft: Draft, _limits: WorkloadLimits, random: Random) -> None:
    """Swap two steps."""
    left, right = (random.randrange(len(draft.steps)) for _ in range(2))
    draft.steps[left], draft.steps[right] = draft.steps[right], draft.steps[left]


def insert_step(draft: Draft, limits: WorkloadLimits, random: Random) -> None:
    """Insert a reset, an idle gap, or a prompt that takes as much of the pool as it can."""
    steps: list[Step] = [Idle(20)]
    if Capability.CACHE_RESET in limits.can:
        steps.append(Reset())
    if may_reset_running(limits):
        steps.append(Reset((ResetScope.RUNNING,)))
    place, chosen = random.randint(0, len(draft.steps)), random.choice(steps)
    if limits.small_pool is not None and random.random() < 0.4:
        tokens = min(limits.small_pool, limits.longest) - NONCE_TOKENS - 4
        flood = Request(prompt=Prompt((Segment(f"flood {random.randrange(3)}", tokens),)), max_tokens=4)
        chosen = Burst(requests=(flood,))
        draft.steps.insert(place, EditedStep(chosen, [EditedRequest(next(draft.keys), flood, None)]))
    else:
        draft.steps.insert(place, EditedStep(chosen))


def may_reset_running(limits: WorkloadLimits) -> bool:
    """Return whether to reset running requests. With a second tier, that is left to CTRL-3: some engines end of it."""
    return Capability.RESET_RUNNING in limits.can and Capability.SECOND_TIER not in limits.can


def split_burst(draft: Draft, _limits: WorkloadLimits, random: Random) -> None:
    """Send the requests of a burst in two bursts."""
    places = [place for place, edited in enumerate(draft.steps) if len(edited.requests) > 1]
    if places:
        place = random.choice(places)
        edited = draft.steps[place]
        cut = random.randrange(1, len(edited.requests))
        rest = EditedStep(Burst(requests=()), edited.requests[cut:])
        edited.requests = edited.requests[:cut]
        draft.steps.insert(place + 1, rest)


def join_bursts(draft: Draft, _limits: WorkloadLimits, random: Random) -> None:
    """Send the requests of two bursts at once; those of the second one perhaps later."""
    places = [place for place, edited in enumerate(draft.steps) if isinstance(edited.step, Burst)]
    if len(places) < 2:
        return
    first, second = sorted(random.sample(places, 2))
    late = random.choice(OFFSETS)
    own = {one.key for one in draft.steps[first].requests}
    later = draft.steps[second].requests
    if isinstance(draft.steps[second].step, Burst) and not any(one.after in own for one in later):
        for one in later:
            one.request = msgspec.structs.replace(one.request, offset_ms=one.request.offset_ms + late)
        draft.steps[first].requests = [*draft.steps[first].requests, *later]
        del draft.steps[second]


def more_sharers(draft: Draft, limits: WorkloadLimits, random: Random) -> None:
    """Send a request several times, perhaps each with its own salt or tail, at once or one after another."""
    edited = random.choice(draft.bursts())
    one = random.choice(edited.requests)
    step_ms, tails = random.choice((0, 0, 10, 30)), random.random() < 0.5
    salts = random.random() < 0.3 and Capability.CACHE_SALT in limits.can
    for number in range(random.choice((1, 2, 3, 15, 16))):
        (copy,) = draft.copy_requests([one])
        changed = msgspec.structs.replace(one.request, offset_ms=one.request.offset_ms + step_ms * (number + 1))
        if salts:
            changed = msgspec.structs.replace(changed, salt=f"{LONG_SALT}-{number}")
        if tails and not one.request.chat:
            tail = Segment(f"tail {number}", random.choice((1, 5, limits.unit)))
            prompt = msgspec.structs.replace(changed.prompt, segments=(*changed.prompt.segments, tail))
            changed = msgspec.structs.replace(changed, prompt=prompt)
        copy.request = changed
        edited.requests.append(copy)


def more_salts(draft: Draft, limits: WorkloadLimits, random: Random) -> None:
    """Send a burst again under further salts, which are long and differ in their last characters."""
    if Capability.CACHE_SALT not in limits.can:
        return
    place = random.choice([place for place, edited in enumerate(draft.steps) if isinstance(edited.step, Burst)])
    base = random.choice((LONG_SALT, "s", ""))
    more: list[EditedStep] = []
    for number in range(random.choice(SALTS)):
        (copied,) = draft.copy_steps([draft.steps[place]])
        for one in copied.requests:
            one.request = msgspec.structs.replace(one.request, salt=f"{base}{number}")
        more.append(copied)
    draft.steps[place + 1 : place + 1] = more


def move_length(draft: Draft, limits: WorkloadLimits, random: Random) -> None:
    """Change the length of a segment in all prompts, so that one of them ends at an edge of a block, or is longest."""
    one = random.choice([one for one in draft.requests() if not one.request.chat] or draft.requests())
    segments = one.request.prompt.segments
    if one.request.chat or not segments or one.request.options != PLAIN:
        return
    chosen = random.choice(segments)
    others = sum(s.length for s in segments) - chosen.length + NONCE_TOKENS
    room = limits.longest - one.request.max_tokens
    blocks = random.choice((1, 2, 3, 5, 8, 16, 33, room // limits.unit))
    length = blocks * limits.unit + random.choice((-1, 0, 1, limits.unit // 2)) - others
    for other in draft.requests():
        changed = tuple(
            msgspec.structs.replace(s, length=length) if s.name == chosen.name and s.length == chosen.length else s
            for s in other.request.prompt.segments
        )
        prompt = msgspec.structs.replace(other.request.prompt, segments=changed)
        other.request = msgspec.structs.replace(other.request, prompt=prompt)


def change_token(draft: Draft, limits: WorkloadLimits, random: Random) -> None:
    """Change one token of a prompt: at its start, at an edge of a block, in the middle, or at its end."""
    one = random.choice(draft.requests())
    segments = list(one.request.prompt.segments)
    if segments:
        place = random.randrange(len(segments))
        length = segments[place].length
        edges = (0, length - 1, length // 2, max(0, (length // limits.unit) * limits.unit - NONCE_TOKENS - 1))
        segments[place] = msgspec.structs.replace(segments[place], changed=random.choice(edges))
        prompt = msgspec.structs.replace(one.request.prompt, segments=tuple(segments))
        one.request = msgspec.structs.replace(one.request, prompt=prompt)


def move_answer(draft: Draft, limits: WorkloadLimits, random: Random) -> None:
    """Change the length of an answer: 1, 2, or so that it ends at an edge of a block, up to several blocks later."""
    one = random.choice(draft.requests())
    if one.request.options != PLAIN:
        return
    rest = -new_prompt_length(one.request.prompt) % limits.unit
    at_edge = rest + random.choice((0, 1, 2, 4)) * limits.unit + random.choice((-1, 0, 1, 2))
    one.request = msgspec.structs.replace(one.request, max_tokens=max(1, random.choice((1, 2, at_edge, at_edge))))


def disconnect(draft: Draft, limits: WorkloadLimits, random: Random) -> None:
    """Let a client disconnect: in the queue, in prefill, while preempted, at the first token, in between, one token
    before the end.
    """
    if Capability.ABORT not in limits.can:
        return
    continued = draft.continued()
    free = [one for one in draft.requests() if one.key not in continued and one.request.options == PLAIN]
    if free:
        one = random.choice(free)
        most = one.request.max_tokens
        tokens = [count for count in (1, 2, most // 2, most - 2, most - 1) if 0 < count < most]
        early = [Abort(after_ms=ms, at=stage) for ms in (10, 20, 40) for stage in (Stage.PREFILL, Stage.QUEUED)]
        if limits.small_pool is not None and Capability.PREEMPTION_COUNTS in limits.can:
            early += [Abort(at=Stage.PREEMPTED)] * 3
        chosen = random.choice([*early, *(Abort(after_tokens=count) for count in tokens for _ in range(2))])
        one.request = msgspec.structs.replace(one.request, abort=chosen)


def set_priorities(draft: Draft, limits: WorkloadLimits, random: Random) -> None:
    """Give the requests of a burst priorities of both signs."""
    if Capability.PRIORITY in limits.can:
        for one in random.choice(draft.bursts()).requests:
            one.request = msgspec.structs.replace(one.request, priority=random.choice(PRIORITIES))


def move_arrival(draft: Draft, _limits: WorkloadLimits, random: Random) -> None:
    """Let a request of a burst arrive at another time."""
    one = random.choice(draft.requests())
    one.request = msgspec.structs.replace(one.request, offset_ms=random.choice(OFFSETS))


def reset_meanwhile(draft: Draft, limits: WorkloadLimits, random: Random) -> None:
    """Reset the cache during a burst: at once, at the first token, in the middle, or near the end of an answer."""
    scopes: list[tuple[ResetScope, ...]] = [()]
    if may_reset_running(limits):
        scopes += [(ResetScope.RUNNING,)] * 2
    bursts = [edited for edited in draft.bursts() if edited.step.meanwhile is None]
    if Capability.CACHE_RESET in limits.can and bursts:
        edited = random.choice(bursts)
        most = edited.requests[0].request.max_tokens
        moment = random.choice([0, 1, most // 2, max(1, most - 1)])
        change: Change = Reset(random.choice(scopes))
        then = tuple(Reset(random.choice(scopes)) for _ in range(random.choice((0, 0, 1, 3))))
        gap = random.choice((10, 50)) if then else 0
        meanwhile = Meanwhile(change=change, after_tokens=moment, then=then, gap_ms=gap)
        edited.step = Burst(requests=(), meanwhile=meanwhile)


def reload_meanwhile(draft: Draft, _limits: WorkloadLimits, random: Random) -> None:
    """Let a reload happen during the burst that follows it, if that has requests of other models only."""
    places = [
        place
        for place, (load, burst) in enumerate(pairwise(draft.steps))
        if isinstance(load.step, SetAdapter)
        and load.step.route is not Route.LOAD
        and isinstance(burst.step, Burst)
        and burst.step.meanwhile is None
        and load.step.name not in {one.request.adapter for one in burst.requests}
    ]
    if places:
        place = random.choice(places)
        change = draft.steps[place].step
        assert isinstance(change, SetAdapter)
        most = draft.steps[place + 1].requests[0].request.max_tokens
        meanwhile = Meanwhile(change=change, after_tokens=random.choice((0, 1, most // 2)))
        draft.steps[place : place + 2] = [
            EditedStep(Burst(requests=(), meanwhile=meanwhile), draft.steps[place + 1].requests)
        ]


VARIATIONS: tuple[Variation, ...] = (
    repeat_steps,
    send_again,
    swap_steps,
    insert_step,
    split_burst,
    join_bursts,
    more_sharers,
    more_salts,
    move_length,
    change_token,
    move_answer,
    disconnect,
    disconnect,
    set_priorities,
    move_arrival,
    reset_meanwhile,
    reload_meanwhile,
)
