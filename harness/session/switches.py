"""What an attached server lets Coldproof test, and what each switch that it lacks would add.

Invariant: every number follows from the needs of the run's requirements and from the probed capabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import Engine
from coldproof.adapters.registry import served_engine
from coldproof.adapters.spec.switch import Switch
from coldproof.harness.judgement.collect import with_trait
from coldproof.harness.judgement.counters import Trait
from coldproof.harness.judgement.requirement import Requirement, missing
from coldproof.harness.schema.switches import MissingSwitch, ServerSwitches
from coldproof.harness.workload.generators.prompts import DEFAULT_BLOCK

ADAPTERS = (
    Capability.ADAPTER_CHOICE,
    Capability.MIXED_ADAPTERS,
    Capability.RUNTIME_LORA,
    Capability.LORA_IN_PLACE,
)
OWN_ADAPTERS = Switch(
    name="--model PATH --shared-dir DIR",
    adds="adapters that Coldproof generates for the served model",
    gives=ADAPTERS,
    how="coldproof run --engine-url URL --model PATH --shared-dir DIR (PATH has the model's config.json; the server "
    "can read DIR)",
    safe=True,
    because="it is an option of Coldproof: it changes nothing on the server by itself",
)
OWN_WEIGHTS = Switch(
    name="--model PATH --weights PATH",
    adds="another checkpoint of the served model",
    gives=(),
    how="coldproof run --engine-url URL --model PATH --weights PATH (folders that the server can read, too)",
    safe=True,
    because="it is an option of Coldproof: it changes nothing on the server by itself",
)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which requirements can be tested: capabilities, and the numbers of adapters and of other weights.

    `pool`: the tokens of the KV pool, None if unknown. `fits`: the tokens of the largest pool that a workload fills.
    """

    capabilities: Mapping[Capability, Support]
    contents: int
    versions: int
    pool: int | None
    fits: int
    block: int

    @classmethod
    def of(cls, engine: Engine, *, contents: int, versions: int, workload: int) -> Server:
        """Return what decides about an engine. `workload`: the most tokens of a workload of this run."""
        block, blocks = engine.shape.block_size or DEFAULT_BLOCK, engine.shape.pool_blocks
        return cls(
            capabilities=engine.capabilities,
            contents=contents,
            versions=versions,
            pool=blocks * block if blocks is not None else None,
            fits=workload // 2,
            block=block,
        )

    @property
    def small_pool(self) -> bool:
        """Return whether workloads fill the pool."""
        return self.pool is not None and self.pool <= self.fits

    def can_test(self, requirement: Requirement) -> bool:
        """Return whether nothing that a requirement needs is missing, nor the counts in which its evidence is."""
        if missing(self.capabilities, requirement.needs, contents=self.contents, versions=self.versions):
            return False
        shown = requirement.on([one for one, support in self.capabilities.items() if support.present is True]).shows
        if with_trait(Trait.HIT_COUNTS, shown) and self.capabilities[Capability.CACHED_TOKENS].present is not True:
            return False
        return self.small_pool or not with_trait(Trait.SMALL_POOL, shown)

    def testable(self, requirements: Iterable[Requirement]) -> set[str]:
        """Return the ids of the requirements of which at least one test can run."""
        return {one.id for one in requirements if self.can_test(one)}


def table_of(
    engine: str, config: Mapping[str, str], server: Server, requirements: Sequence[Requirement]
) -> ServerSwitches:
    """Return what a server lets Coldproof test, and its missing switches, those that add most first."""
    spec = served_engine(engine, config)
    absent = absent_switches(spec.switches, server)
    now, most = server.testable(requirements), with_switches(server, absent, absent).testable(requirements)
    rows = [row_of(switch, absent, server, requirements, now=now, most=most) for switch in absent]
    return ServerSwitches(
        engine=spec.title or spec.name,
        known=bool(spec.switches),
        requirements=len({one.id for one in requirements}),
        now=sorted(now),
        with_all=len(most),
        missing=sorted((row for row in rows if row.adds_requirements), key=lambda row: -len(row.adds_requirements)),
    )


def absent_switches(switches: Iterable[Switch], server: Server) -> list[Switch]:
    """Return the switches that give a capability which the server is not known to have, and Coldproof's own."""
    absent = [one for one in switches if lacks(server, one)]
    if server.capabilities[Capability.RUNTIME_LORA].present is None:  # there was no adapter to probe it with
        absent.append(OWN_ADAPTERS)
    return [*absent, OWN_WEIGHTS] if not server.versions else absent


def lacks(server: Server, switch: Switch) -> bool:
    """Return whether a server is not known to have all that a switch gives."""
    pool = switch.small_pool and not server.small_pool
    return pool or any(server.capabilities[each].present is not True for each in switch.gives)


def with_switches(server: Server, chosen: Sequence[Switch], absent: Sequence[Switch]) -> Server:
    """Return the server as it would be with some of its absent switches. A capability needs all that give it."""
    left = {each for one in absent if one not in chosen for each in one.gives}
    given = {each: Support(True, one.name) for one in chosen for each in one.gives if each not in left}
    capabilities = {
        **server.capabilities,
        **{each: s for each, s in given.items() if server.capabilities[each].present is not True},
    }
    return msgspec.structs.replace(
        server,
        capabilities=capabilities,
        contents=max(server.contents, 2 if Capability.ADAPTER_CHOICE in given else 0),
        versions=max(server.versions, 1 if OWN_WEIGHTS in chosen else 0),
        pool=server.fits if any(one.small_pool for one in chosen) else server.pool,
    )


def row_of(
    switch: Switch,
    absent: Sequence[Switch],
    server: Server,
    requirements: Sequence[Requirement],
    *,
    now: set[str],
    most: set[str],
) -> MissingSwitch:
    """Return the row of one absent switch: what is testable with all of them and not with all others; and with it.

    `now`, `most`: what is testable without any of them, and with all.
    """
    others = [one for one in absent if one is not switch]
    added = most - with_switches(server, others, absent).testable(requirements)
    alone = with_switches(server, [switch], absent).testable(requirements) - now
    blocks = server.fits // server.block
    return MissingSwitch(
        name=switch.name,
        adds=switch.adds,
        adds_requirements=sorted(added),
        alone=len(alone),
        how=switch.how.format(blocks=blocks, tokens=blocks // 2 * server.block),
        safe=switch.safe,
        because=switch.because,
    )
