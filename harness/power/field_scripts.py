"""The test scripts of public bug reports, as fixed workloads: they show what hand-written tests would have detected.

Each script is one workload in the configuration of its report, scaled to blocks of 32 tokens. All checkers judge it,
which is more than the reports' authors checked. A fault that these scripts miss shows what generated workloads add.
`python -m coldproof.harness.power.field_scripts` runs them on one engine, with or without a fault, and writes the
findings as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from coldproof.adapters.registry import measured_engine
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import FieldCells
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.judgement.judge import judge
from coldproof.harness.options import Options
from coldproof.harness.schema.oracles import CLOSED_FORM
from coldproof.harness.schema.power import FieldReport
from coldproof.harness.workload.steps import Burst, Prompt, Request, Route, Segment, SetAdapter, Workload
from coldproof.reports.files.own_folder import claim

BLOCK = 32
NONCE = "fie1d0"


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The script of one report. `cells` has the cell for each worker."""

    name: str
    cells: dict[str, Cell]
    workload: Workload


def field_cells() -> FieldCells:
    """Return the cells of the measured engine for these scripts. Raises LookupError if it has none."""
    found = measured_engine().field_cells
    if found is None:
        raise LookupError(f"{measured_engine().name} has no cells for the scripts of bug reports")
    return found


def single_request(*segments: tuple[str, int], adapter: str | None = None, tokens: int = 16) -> Burst:
    """Return a burst with one request."""
    prompt = Prompt(tuple(Segment(*segment) for segment in segments))
    return Burst(requests=(Request(prompt=prompt, adapter=adapter, max_tokens=tokens),))


def set_adapter(content: str, route: Route) -> SetAdapter:
    """Return a step that puts `content` behind the name "tenant", from a separate path."""
    return SetAdapter(name="tenant", content=content, path=f"path of {content}", route=route)


def same_name_reload() -> Workload:
    """Load adapter A as `tenant` and send a prompt twice; reload B in place, send it twice; go back to A."""
    ask = single_request(("prelude of the report", 8 * BLOCK + 5), adapter="tenant")
    back = (set_adapter("A", Route.IN_PLACE), ask)
    return Workload((set_adapter("A", Route.LOAD), ask, ask, set_adapter("B", Route.IN_PLACE), ask, ask, *back))


def identical_prompts() -> Workload:
    """Send one long prompt 60 times (200 times in the report), in a pool with room for it twice."""
    request = Request(prompt=Prompt((Segment("giant prefix", 8 * BLOCK + 4),)), max_tokens=40)
    return Workload((Burst(requests=(request,)), Burst(requests=(request,) * 60)))


def two_growing_requests() -> Workload:
    """Send two requests of 2 blocks + 2 tokens with answers of 2 blocks + 3, in a pool of 7 blocks (LMCache#1969)."""
    crowd = (
        Request(prompt=Prompt((Segment(f"request {i}", 2 * BLOCK + 2 - 4),)), max_tokens=2 * BLOCK + 3)
        for i in range(2)
    )
    return Workload((Burst(requests=tuple(crowd)),))


def prelude_over_groups(length: int) -> Workload:
    """Send A, A, B, A, which share a prefix of 256 tokens."""
    a = single_request(("prelude", 256), ("a", length))
    return Workload((a, a, single_request(("prelude", 256), ("b", length)), a))


POOL_CELL, GROUPS = field_cells().pool, dict(field_cells().groups)
PLAIN = dict.fromkeys(GROUPS, field_cells().plain)
SCRIPTS = (
    Script(name="same-name reload (vllm#42125)", cells=PLAIN, workload=same_name_reload()),
    Script(
        name="identical prompts (V0 stall)", cells=dict.fromkeys(GROUPS, POOL_CELL(16)), workload=identical_prompts()
    ),
    Script(
        name="two in seven blocks (LMCache#1969)",
        cells=dict.fromkeys(GROUPS, POOL_CELL(7)),
        workload=two_growing_requests(),
    ),
    Script(name="A, A, B, A over groups (vllm#32802's kin)", cells=GROUPS, workload=prelude_over_groups(1500)),
)


def run_scripts(given: argparse.Namespace) -> Iterator[FieldReport]:
    """Run each script on a fresh engine and yield what was detected. An engine that does not start detects nothing."""
    given.out.mkdir(parents=True, exist_ok=True)
    options = Options(
        engine=measured_engine().name,
        report_dir=given.out,
        oracle=CLOSED_FORM if given.worker == "fingerprint" else "cold-engine",
        worker=given.worker,
        fault=given.fault,
        model=given.model,
        engine_args=tuple(shlex.split(given.engine_args)),
    )
    with contextlib.closing(EnginePool(options, EventLog(claim(given.out / "events.ndjson")))) as session:
        session.prepare()
        for script in SCRIPTS:
            engines = CellEngines.open(session, script.cells[given.worker])
            history = engines.run(engines.engine, script.workload, NONCE)
            judgement = judge(history, engines.oracle, engines.rule, exclusive=True)
            yield FieldReport(name=script.name, found=judgement.findings[0].sentence if judgement.findings else "")
            session.close_engine(engines.engine)


def main(words: list[str] | None = None) -> int:
    """Run the scripts and write a JSON list of `FieldReport`."""
    parser = argparse.ArgumentParser(prog="python -m coldproof.harness.power.field_scripts", description=__doc__)
    parser.add_argument("--worker", choices=tuple(GROUPS), default="fingerprint")
    parser.add_argument("--fault", default=None)
    parser.add_argument("--model", default=None)
    parser.add_argument("--engine-args", default="")
    parser.add_argument("--out", type=Path, required=True, help="folder for logs and literal.json")
    given = parser.parse_args(words)
    rows = list(run_scripts(given))
    claim(given.out / "literal.json").write_bytes(msgspec.json.encode(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
