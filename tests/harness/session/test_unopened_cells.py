"""What the engine lacks in every cell is UNSUPPORTED in a cell that was not opened for lack of time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.harness.event_log import EventLog
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.options import Options
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.budget import OUT_OF_TIME
from coldproof.harness.session.trials import RunPlan, TrialRunner

ABSENT = {
    Capability.CACHE_SALT: Support(False, "requests have no salt"),
    Capability.SAVED_STATE: Support(False, OPTIONAL_ABSENT[Capability.SAVED_STATE]),
    Capability.CONTEXT_SHIFT: Support(False, "no --context-shift"),  # another cell may be started with it
    Capability.KV_EVENTS: Support(False, "no events in this cell"),
    Capability.STRUCTURED_OUTPUT: Support(None, "not probed"),
}


def concluded(folder: Path, need: Capability | None, *, opened: bool = True) -> tuple[Verdict, str]:
    """Return the verdict on a requirement with one need, in a cell that was not opened after another one."""
    seen: list[dict[str, Any]] = []
    log = EventLog(folder / "events.ndjson")
    log.subscribe(lambda _, fields: seen.append(fields))
    runner = TrialRunner(
        Options(engine="vllm", report_dir=folder),
        log,
        RunPlan(),
        case=None,
        waivers=cast(Any, None),
        save_case=cast(Any, None),
        time=cast(Any, None),
    )
    if opened:
        engine = SimpleNamespace(capabilities={c: ABSENT.get(c, Support(True, "")) for c in Capability})
        cell = SimpleNamespace(name="default")
        budget = SimpleNamespace(drop=lambda _: None)
        runner.release_unsupported(
            cast(Any, SimpleNamespace(cell=cell, engines=SimpleNamespace(engine=engine), budget=budget))
        )
    trial = Trial(Requirement("R-1", "title", () if need is None else (need,), ()), "tight", "", "test")
    with pytest.raises((pytest.skip.Exception, pytest.fail.Exception)):
        runner.conclude_unopened(trial, OUT_OF_TIME)
    return seen[-1]["verdict"], seen[-1]["reason"]


@pytest.mark.parametrize("need", [Capability.CACHE_SALT, Capability.SAVED_STATE])
def test_what_the_engine_lacks_is_unsupported(need: Capability, tmp_path: Path) -> None:
    """The reason is that of the other cell."""
    assert concluded(tmp_path, need) == (Verdict.UNSUPPORTED, f"{need.value}: {ABSENT[need].evidence}")


@pytest.mark.parametrize(
    "need", [None, Capability.CONTEXT_SHIFT, Capability.KV_EVENTS, Capability.STRUCTURED_OUTPUT, Capability.CHAT]
)
def test_what_this_cell_may_have_is_not_exercised(need: Capability | None, tmp_path: Path) -> None:
    """The capability depends on how the engine is started, or is unknown."""
    assert concluded(tmp_path, need) == (Verdict.NOT_EXERCISED, OUT_OF_TIME)


def test_without_any_open_cell_nothing_is_known(tmp_path: Path) -> None:
    """A longer budget may then help."""
    assert concluded(tmp_path, Capability.CACHE_SALT, opened=False)[0] is Verdict.NOT_EXERCISED
