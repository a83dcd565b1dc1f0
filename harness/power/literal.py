"""The field reports' own scripts, written down as they were run: what hand-written tests would have noticed.

Each is one fixed workload in the configuration that its report names, scaled to blocks of 32 tokens. They are judged by
all of our checkers, which is more than their authors looked at: what a fault escapes here, generation has to add.
`python -m harness.power.literal` runs them on one engine, with or without a fault, and writes what was found as JSON.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from harness.bench import Bench
from harness.budget import Budget
from harness.cell import Cell
from harness.cells import CELLS
from harness.events import EventLog
from harness.judge import judge
from harness.options import Options
from harness.session import Session
from harness.workload import Burst, Prompt, Request, Route, Segment, SetAdapter, Workload
from reports.power_schema import FieldReport

BLOCK = 32
NONCE = "fie1d0"


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One report's script. `cells`: by worker."""

    name: str
    cells: dict[str, Cell]
    workload: Workload


def blocks(count: int) -> Cell:
    """The default cell with a pool of so many usable blocks."""
    arguments = ("--num-gpu-blocks-override", str(count + 1), "--max-model-len", str(count * BLOCK))
    return msgspec.structs.replace(CELLS["tight"], name=f"pool of {count} blocks", arguments=arguments)


def alone(*segments: tuple[str, int], adapter: str | None = None, tokens: int = 16) -> Burst:
    """One request."""
    prompt = Prompt(tuple(Segment(*segment) for segment in segments))
    return Burst(requests=(Request(prompt=prompt, adapter=adapter, max_tokens=tokens),))


def adapter(content: str, route: Route) -> SetAdapter:
    """`content` behind the tenant's name, from a path of its own."""
    return SetAdapter(name="tenant", content=content, path=f"path of {content}", route=route)


def same_name_reload() -> Workload:
    """Adapter A as `tenant`, a prompt twice; B in place under the same name, the same prompt; A again (both orders)."""
    ask = alone(("prelude of the report", 8 * BLOCK + 5), adapter="tenant")
    back = (adapter("A", Route.IN_PLACE), ask)
    return Workload((adapter("A", Route.LOAD), ask, ask, adapter("B", Route.IN_PLACE), ask, ask, *back))


def identical_prompts() -> Workload:
    """One long prompt, sixty times (the report: two hundred), in a pool that holds it twice."""
    request = Request(prompt=Prompt((Segment("giant prefix", 8 * BLOCK + 4),)), max_tokens=40)
    return Workload((Burst(requests=(request,)), Burst(requests=(request,) * 60)))


def two_that_outgrow_the_pool() -> Workload:
    """Two requests of two blocks + 2, each answered with two blocks + 3, in a pool of seven blocks (LMCache#1969)."""
    crowd = (
        Request(prompt=Prompt((Segment(f"request {i}", 2 * BLOCK + 2 - 4),)), max_tokens=2 * BLOCK + 3)
        for i in range(2)
    )
    return Workload((Burst(requests=tuple(crowd)),))


def prelude_over_groups(length: int) -> Workload:
    """A, A, B, A with a prelude of 256 tokens that all share."""
    a = alone(("prelude", 256), ("a", length))
    return Workload((a, a, alone(("prelude", 256), ("b", length)), a))


GROUPS = {"model": CELLS["sliding-window"], "fingerprint": CELLS["groups-five"]}
PLAIN = dict.fromkeys(GROUPS, CELLS["default"])
SCRIPTS = (
    Script(name="same-name reload (vllm#42125)", cells=PLAIN, workload=same_name_reload()),
    Script(name="identical prompts (V0 stall)", cells=dict.fromkeys(GROUPS, blocks(16)), workload=identical_prompts()),
    Script(
        name="two in seven blocks (LMCache#1969)",
        cells=dict.fromkeys(GROUPS, blocks(7)),
        workload=two_that_outgrow_the_pool(),
    ),
    Script(name="A, A, B, A over groups (vllm#32802's kin)", cells=GROUPS, workload=prelude_over_groups(1500)),
)


def options(worker: str, fault: str | None, folder: Path) -> Options:
    """A run in process."""
    oracle = "closed-form" if worker == "fingerprint" else "cold-engine"
    return Options(engine="vllm-inproc", report_dir=folder, oracle=oracle, worker=worker, fault=fault)


def found(worker: str, fault: str | None, root: Path, folder: Path) -> Iterator[FieldReport]:
    """Each script on an engine of its own; what was noticed in it. An engine that does not start is no notice."""
    folder.mkdir(parents=True, exist_ok=True)
    log = EventLog(folder / "events.ndjson")
    session = Session(options(worker, fault, folder), log, root, Budget(60, 1))
    try:
        session.prepare()
        for script in SCRIPTS:
            bench = Bench(session, script.cells[worker])
            history = bench.run(bench.engine, script.workload, NONCE)
            judgement = judge(history, bench.oracle, bench.rule, exclusive=True)
            yield FieldReport(name=script.name, found=judgement.findings[0].sentence if judgement.findings else "")
            session.close_engine(bench.engine)
    finally:
        session.close()


def main(words: tuple[str, ...] | None = None) -> int:
    """Run the scripts and write a JSON list of `FieldReport`."""
    parser = argparse.ArgumentParser(prog="python -m harness.power.literal", description=__doc__)
    parser.add_argument("--worker", choices=tuple(GROUPS), default="fingerprint")
    parser.add_argument("--fault", default=None)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="where the tiny model is kept")
    parser.add_argument("--out", type=Path, required=True, help="folder for logs and literal.json")
    given = parser.parse_args(words)
    rows = list(found(given.worker, given.fault, given.root, given.out))
    (given.out / "literal.json").write_bytes(msgspec.json.encode(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
