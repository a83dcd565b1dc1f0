"""Workloads of every feature that an engine has, for configurations with several of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.drafts.workloads import hits_with_drafts
from coldproof.harness.features.images.cache_workloads import image_cache_resets
from coldproof.harness.features.images.workloads import (
    images_of_resumed_requests,
    images_partly_evicted,
    images_under_pressure,
    near_images,
)
from coldproof.harness.features.mixed.workloads import mixed
from coldproof.harness.features.preemption.workloads import outgrowing_requests
from coldproof.harness.features.pressure.workloads import working_sets
from coldproof.harness.features.resets.scoped_workloads import resets_of_running_requests, resets_of_the_second_tier
from coldproof.harness.features.resets.workloads import aborts, resets
from coldproof.harness.features.rows.workloads import conversations_with_rows, near_embeddings
from coldproof.harness.features.sessions.workloads import sessions
from coldproof.harness.features.tiers.load_workloads import (
    aborted_loads,
    loaded_behind_hits,
    loaded_together,
    loads_by_share,
    preempted_after_loads,
    returning_crowd,
)
from coldproof.harness.features.tiers.workloads import (
    answers_that_fill_blocks,
    evicted_and_sent_again,
    partitions,
    read_from_behind,
    sent_again_after_gaps,
)
from coldproof.harness.features.transfer_limits.workloads import limited
from coldproof.harness.features.weights.workloads import paused
from coldproof.harness.workload.generators.chats import conversations
from coldproof.harness.workload.generators.leads import led
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.generators.reuse import boundaries, returns
from coldproof.harness.workload.steps import Workload

Workloads = st.SearchStrategy[Workload]
Kind = Capability | str | None
TIER, POOL = Capability.SECOND_TIER, Capability.POOL_SIZE
SALT, RESET, IMAGES = Capability.CACHE_SALT, Capability.CACHE_RESET, Capability.IMAGES
ROWS = Capability.EMBEDDING_ROWS
SLOW = Capability.SLOW_TIER
LIMITS = Capability.TRANSFER_LIMITS
LOADS = "loads"  # most workloads of a second tier: a kind of its own, so that each is drawn often enough
OF_THEIR_OWN = (TIER, SLOW, LIMITS, Capability.DRAFT_COUNTS, IMAGES, ROWS)
OF_TIERS = (
    evicted_and_sent_again,
    loaded_behind_hits,
    loaded_together,
    loads_by_share,
    preempted_after_loads,
    returning_crowd,
    returning_crowd,  # twice: what a load lacks shows only where all loads together fill the pool
    answers_that_fill_blocks,
)
SIDES = (Capability.RESET_ENCODER, Capability.RESET_PROCESSOR)


def of_every_feature(limits: WorkloadLimits, shown_by: Mapping[Capability, str]) -> Workloads:
    """Return workloads for all features that this engine has. An example is of one kind.

    `shown_by`: by a feature, the evidence that it has acted. Nothing but its own workloads shows a second tier, limits
    on it, drafts, images or embedding rows: these come first. Then each has three times as many examples as what meets
    a feature that acts by itself, such as a window or a priority: prompts sent again, a full pool, resets, or sessions.
    Every cell has these, and few have a pair of the others.
    """
    plain = (returns(limits), boundaries(limits), conversations(limits, chat=False), mixed(limits))
    found: dict[Kind, list[Workloads]] = {None: list(plain)}
    for feature, needs, workloads in by_feature(limits):
        if needs <= limits.can:
            found.setdefault(feature, []).append(workloads)
    kinds = {feature: st.one_of(workloads) for feature, workloads in found.items()}
    own = [kind for feature, kind in kinds.items() if feature in (*OF_THEIR_OWN, LOADS)]
    every = st.sampled_from([*kinds.values(), *own, *own]).flatmap(lambda kind: kind)
    return led(limits, every, {shown_by[feature]: kinds[feature] for feature in OF_THEIR_OWN if feature in kinds})


def by_feature(limits: WorkloadLimits) -> Iterable[tuple[Kind, set[Capability], Workloads]]:
    """Return workloads with their kind, such as the capability that they are about, and those that they need."""
    adapters = Capability.ADAPTER_CHOICE in limits.can
    yield POOL, {POOL}, working_sets(limits)
    yield POOL, {POOL}, outgrowing_requests(limits, afterwards=True)
    yield RESET, {RESET}, resets(limits)
    yield RESET, {Capability.ABORT}, aborts(limits)
    yield RESET, {RESET, Capability.RESET_RUNNING}, resets_of_running_requests(limits)
    # A second tier may be none that can be cleared, so that an engine refuses to.
    yield RESET, {Capability.PAUSE_KEEP}, paused(limits, updates=False, clears=TIER not in limits.can)
    yield Capability.SESSIONS, {Capability.SESSIONS, SALT}, sessions(limits, with_adapter=adapters)
    yield Capability.DRAFT_COUNTS, {Capability.DRAFT_COUNTS}, hits_with_drafts(limits, with_adapter=adapters)
    for of_tier in OF_TIERS:
        yield LOADS, {TIER, POOL}, of_tier(limits)
    yield TIER, {TIER, POOL, Capability.ABORT}, aborted_loads(limits)
    yield TIER, {TIER}, sent_again_after_gaps(limits)
    yield TIER, {TIER, SALT}, partitions(limits)
    yield LIMITS, {TIER, LIMITS}, limited(limits)
    yield TIER, {TIER, Capability.RESET_SECOND_TIER}, resets_of_the_second_tier(limits)
    yield SLOW, {SLOW}, read_from_behind(limits)
    yield ROWS, {ROWS}, conversations_with_rows(limits)
    yield ROWS, {ROWS, SALT}, near_embeddings(limits, with_adapter=adapters)
    yield IMAGES, {IMAGES}, near_images(limits, with_adapter=adapters)
    for of_images in (images_under_pressure, images_of_resumed_requests):
        yield IMAGES, {IMAGES, POOL}, of_images(limits)
    yield IMAGES, {IMAGES, Capability.IMAGE_PARTS}, images_partly_evicted(limits)
    yield IMAGES, {IMAGES, RESET, SALT, *SIDES}, image_cache_resets(limits)
