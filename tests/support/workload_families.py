"""The families of workloads: each generator with the arguments that the suites give it."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from coldproof.harness.features.doors.workloads import at_two_doors, impossible_priorities
from coldproof.harness.features.drafts.workloads import hits_left_beside_a_full_context, hits_with_drafts
from coldproof.harness.features.images.cache_workloads import (
    image_cache_resets,
    images_of_several_towers,
    images_over_reloads,
    images_over_updates,
)
from coldproof.harness.features.images.workloads import (
    images_at_the_end,
    images_of_resumed_requests,
    images_partly_evicted,
    images_sent_otherwise,
    images_under_pressure,
    images_with_arguments,
    near_images,
)
from coldproof.harness.features.lora.workloads import (
    AdapterLifecycle,
    adapter_churn,
    adapter_lifecycles,
    adapter_switches,
    coexisting_adapters,
    mixed_bursts,
)
from coldproof.harness.features.mixed.workloads import mixed
from coldproof.harness.features.options.workloads import (
    PROMPT_LOGPROBS,
    SEVERAL_ANSWERS,
    STOP_STRINGS,
    STRUCTURED,
    with_response_options,
)
from coldproof.harness.features.pooling.workloads import pooled_neighbours, pooled_traffic
from coldproof.harness.features.preemption.workloads import outgrowing_requests
from coldproof.harness.features.pressure.shared_workloads import pressed
from coldproof.harness.features.pressure.workloads import (
    aborts_then_full_pool,
    identical_prompts,
    never_fitting,
    partly_evicted,
    prefix_sharers,
    queued_for_blocks,
    working_sets,
)
from coldproof.harness.features.resets.scoped_workloads import (
    RUNNING,
    resets_during_stores,
    resets_of_running_requests,
    resets_of_the_second_tier,
)
from coldproof.harness.features.resets.workloads import (
    aborts,
    aborts_beside_sharers,
    changes_and_resets,
    resets,
    resets_before_idle_gaps,
)
from coldproof.harness.features.rows.workloads import conversations_with_rows, near_embeddings
from coldproof.harness.features.salts.crossed_workloads import answers_then_turns, crossed
from coldproof.harness.features.salts.workloads import salted
from coldproof.harness.features.sessions.workloads import (
    sessions,
    sessions_beyond_the_context,
    sessions_that_switch,
)
from coldproof.harness.features.tiers.restart_workloads import (
    restarts_after_changes,
    restarts_between_prompts,
    restarts_without_changes,
)
from coldproof.harness.features.tiers.workloads import (
    aborted_loads,
    evicted_and_sent_again,
    first_block_changed,
    loaded_together,
    loads_by_share,
)
from coldproof.harness.features.weights.workloads import (
    paused,
    quiet_updates,
    updates_in_flight,
    updates_with_adapters,
)
from coldproof.harness.workload.generators.ageing import (
    loads_beside_others,
    loads_without_requests,
    many_loads,
    many_names,
    many_resets,
)
from coldproof.harness.workload.generators.chats import conversations, trees
from coldproof.harness.workload.generators.edges import any_length, chunks_at_edges, crowds, long_neighbours
from coldproof.harness.workload.generators.prompts import WorkloadLimits, computed_tokens
from coldproof.harness.workload.generators.reuse import repeats, returns, traffic
from coldproof.harness.workload.steps import Route, Workload

Family = Callable[[WorkloadLimits], st.SearchStrategy[Workload]]


USUAL: dict[str, Family] = {
    "lives": lambda on: adapter_lifecycles(on, AdapterLifecycle()),
    "lives under traffic": lambda on: adapter_lifecycles(
        on, AdapterLifecycle(under_traffic=True, goes_back=True, most_names=1)
    ),
    "neighbours": coexisting_adapters,
    "switches": adapter_switches,
    "churn": adapter_churn,
    "ground": lambda on: mixed_bursts(on, unique_salts=False),
    "salts": lambda on: salted(on, with_adapter=True),
    "trees": lambda on: trees(on, chat=False),
    "trees of chats": lambda on: trees(on, chat=True),
    "conversations": lambda on: conversations(on, chat=False),
    "conversations of chats": lambda on: conversations(on, chat=True),
    "repeats": repeats,
    "returns": returns,
    "traffic": traffic,
    "working sets": working_sets,
    "sharers": prefix_sharers,
    "who waits for room": queued_for_blocks,
    "partly evicted": partly_evicted,
    "identical crowds": identical_prompts,
    "never fitting": never_fitting,
    "storms": aborts_then_full_pool,
    "crowds": lambda on: outgrowing_requests(on, afterwards=False),
    "crowds and after": lambda on: outgrowing_requests(on, afterwards=True),
    "resets": resets,
    "resets before gaps": resets_before_idle_gaps,
    "changes and resets": changes_and_resets,
    "resets of running requests": resets_of_running_requests,
    "resets of a second tier": resets_of_the_second_tier,
    "aborts": aborts,
    "restarts after changes": restarts_after_changes,
    "restarts without changes": restarts_without_changes,
    "restarts between prompts": restarts_between_prompts,
    "edited": first_block_changed,
    "loads by share": loads_by_share,
    "evicted": evicted_and_sent_again,
    "aborted loads": aborted_loads,
    "prompt logprobs": lambda on: with_response_options(on, PROMPT_LOGPROBS),
    "several answers": lambda on: with_response_options(on, SEVERAL_ANSWERS),
    "stop strings": lambda on: with_response_options(on, STOP_STRINGS),
    "structured": lambda on: with_response_options(on, STRUCTURED),
    "embedding rows": lambda on: near_embeddings(on, with_adapter=True),
    "embedding rows beside zeros": lambda on: near_embeddings(on, with_adapter=True, zeros=True),
    "conversations with rows": conversations_with_rows,
    "doors": lambda on: at_two_doors(on, with_adapter=True),
    "impossible priorities": impossible_priorities,
    "drafts": lambda on: hits_with_drafts(on, with_adapter=True),
    "drafts beside a full context": hits_left_beside_a_full_context,
    "images": lambda on: near_images(on, with_adapter=True),
    "images under one name": lambda on: near_images(on, with_adapter=False, named=True),
    "images in other files": images_sent_otherwise,
    "images at the end": images_at_the_end,
    "images with arguments": images_with_arguments,
    "images under pressure": images_under_pressure,
    "images of resumed requests": images_of_resumed_requests,
    "images partly evicted": images_partly_evicted,
    "resets of one cache of images": image_cache_resets,
    "images over new weights": images_over_updates,
    "images of several towers": images_of_several_towers,
    "images over reloads": images_over_reloads,
    "quiet updates": quiet_updates,
    "updates with adapters": updates_with_adapters,
    "pauses": lambda on: paused(on, updates=False),
    "updates during pauses": lambda on: paused(on, updates=True),
    "updates in flight": updates_in_flight,
    "vectors": lambda on: pooled_neighbours(on, with_adapter=True),
    "vectors of each token": lambda on: pooled_neighbours(on, with_adapter=True, each_token=True),
    "traffic for vectors": lambda on: pooled_traffic(on, with_adapter=True),
    "traffic for vectors of each token": lambda on: pooled_traffic(on, with_adapter=True, each_token=True),
    "sessions": lambda on: sessions(on, with_adapter=True),
    "streaming sessions": lambda on: sessions(on, with_adapter=True, streaming=True),
    "sessions that switch": sessions_that_switch,
    "sessions beyond the context": sessions_beyond_the_context,
    "mixed": mixed,
}
# Rare states, which are drawn only where an example is cheap: a slow model never gets these.
RARE: dict[str, Family] = {
    "pressure": pressed,
    "pressure with disconnects": lambda on: pressed(on, disconnects=True),
    "aborts beside sharers": aborts_beside_sharers,
    "pressure with resets": lambda on: pressed(on, disconnects=True, scopes=((), RUNNING)),
    "many loads": lambda on: many_loads(on, (Route.IN_PLACE, Route.UNLOAD_LOAD)),
    "loads without requests": lambda on: loads_without_requests(on, (Route.IN_PLACE,)),
    "loads beside others": lambda on: loads_beside_others(on, (Route.IN_PLACE, Route.UNLOAD_LOAD)),
    "many names": many_names,
    "many resets": many_resets,
    "chunks at edges": lambda on: chunks_at_edges(on, disconnects=True),
    "side by side": crowds,
    "long neighbours": long_neighbours,
    "any length": any_length,
    "crossed salts": lambda on: crossed(on, adapters=False),
    "crossed adapters": lambda on: crossed(on, adapters=True),
    "answers and turns": answers_then_turns,
    "loaded together": loaded_together,
    "resets during stores": resets_during_stores,
}
FAMILIES = USUAL | RARE


def computed(workload: Workload) -> int:
    """Return the tokens that an engine with enough room would compute: each prompt once, and all answers."""
    return computed_tokens(request for _, _, request in workload.requests())
