"""What an attached server lets Coldproof test, and what each switch that it lacks would add.

Invariant: every number follows from the needs of the run's requirements and from the probed capabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.registry import served_engine
from coldproof.adapters.spec.switch import Switch
from coldproof.harness.judgement.collect import with_trait
from coldproof.harness.judgement.counters import Trait
from coldproof.harness.judgement.requirement import Requirement, missing
from coldproof.harness.schema.switches import MissingSwitch, ServerSwitches

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
    """What decides which requirements can be tested: capabilities, and the numbers of adapters and of other weights."""

    capabilities: Mapping[Capability, Support]
    contents: int
    versions: int

    def can_test(self, requirement: Requirement) -> bool:
        """Return whether nothing that a requirement needs is missing, nor the counts in which its evidence is."""
        if missing(self.capabilities, requirement.needs, contents=self.contents, versions=self.versions):
            return False
        present = [one for one, support in self.capabilities.items() if support.present is True]
        counted = with_trait(Trait.HIT_COUNTS, requirement.on(present).shows)
        return not counted or Capability.CACHED_TOKENS in present

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
    rows = [row_of(switch, absent, server, requirements) for switch in absent]
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
    absent = [one for one in switches if any(server.capabilities[each].present is not True for each in one.gives)]
    if server.capabilities[Capability.RUNTIME_LORA].present is None:  # there was no adapter to probe it with
        absent.append(OWN_ADAPTERS)
    return [*absent, OWN_WEIGHTS] if not server.versions else absent


def with_switches(server: Server, chosen: Sequence[Switch], absent: Sequence[Switch]) -> Server:
    """Return the server as it would be with some of its absent switches. A capability needs all that give it."""
    left = {each for one in absent if one not in chosen for each in one.gives}
    given = {each: Support(True, one.name) for one in chosen for each in one.gives if each not in left}
    capabilities = {
        **server.capabilities,
        **{each: s for each, s in given.items() if server.capabilities[each].present is not True},
    }
    return Server(
        capabilities=capabilities,
        contents=max(server.contents, 2 if Capability.ADAPTER_CHOICE in given else 0),
        versions=max(server.versions, 1 if OWN_WEIGHTS in chosen else 0),
    )


def row_of(
    switch: Switch, absent: Sequence[Switch], server: Server, requirements: Sequence[Requirement]
) -> MissingSwitch:
    """Return the row of one absent switch: what is testable with all of them and not with all others; and with it."""
    others = [one for one in absent if one is not switch]
    most = with_switches(server, absent, absent).testable(requirements)
    added = most - with_switches(server, others, absent).testable(requirements)
    alone = with_switches(server, [switch], absent).testable(requirements) - server.testable(requirements)
    return MissingSwitch(
        name=switch.name,
        adds=switch.adds,
        adds_requirements=sorted(added),
        alone=len(alone),
        how=switch.how,
        safe=switch.safe,
        because=switch.because,
    )
