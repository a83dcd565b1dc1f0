"""Which engine a case is about, and which findings are about that engine."""

from __future__ import annotations

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.engine_spec import EngineSpec
from coldproof.harness.schema.case import Case


def tested_engine(case: Case) -> EngineSpec | None:
    """Return the engine that a case is about. That of a server that was attached to is the one that recognises it."""
    spec = ENGINES.get(case.engine)
    if spec is None or spec.start is not None:
        return spec
    return next((one for one in ENGINES.values() if one.recognises(case.engine_config)), spec)


def family_of(case: Case) -> str:
    """Return the folder of the findings about the engine of a case."""
    spec = tested_engine(case)
    if spec is not None and spec.repairs is not None:
        return spec.repairs.findings
    return spec.known_issues.parent.name if spec is not None and spec.known_issues is not None else case.engine
