"""A run attributes its cases by replays, says so where none can be made, and looks behind equal signatures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.histories import history
from support.paths import PLUGIN_PATH

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.vllm.spec import CACHE_CONFIG
from coldproof.harness.case.finding_records import read_finding, read_records
from coldproof.harness.case.repairs import read_repairs
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Failing
from coldproof.harness.options import Options
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import ReplayResult
from coldproof.harness.schema.results import read_results
from coldproof.harness.session.budget import LEAST_PROOFS, PATIENT_RUN, ProofTime, RunClock
from coldproof.harness.session.causes import local_engine
from coldproof.harness.session.causes.attributor import Attributor, Behind, OutOfTime
from coldproof.harness.session.causes.replay_job import ReplayEnd, ReplayJob, Run, read_job, write_job
from coldproof.harness.workload.steps import Workload

CONTENTS = "vllm/adapter-key-lacks-the-contents"
ROWS = "vllm/rows-behind-a-prompt-enter-the-key"
FAILS, PASSES = ReplayResult.FAILS, ReplayResult.PASSES
IN_PROCESS = {"engine": "vllm-inproc", "worker": "fingerprint", "oracle": "closed-form"}
SERVER = {"engine": "vllm", "worker": "model"}
REQUIREMENT = Requirement(id="LORA-3", title="", needs=(), shows=())
RELEASE = "0.32.0"
ENGINES_OF_CELL = cast(CellEngines, SimpleNamespace(pool=SimpleNamespace(calibrations={})))
Answer = Callable[[ReplayJob], ReplayEnd]


def case_of(finding: str, **changes: Any) -> Case:
    """Return the case of a finding, with changes."""
    case = read_finding(read_records()[finding]).case
    assert case is not None
    return msgspec.structs.replace(case, **changes)


class Replays:
    """Replays that nothing runs. `answer`: how one ends."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.seconds = answer, 0.0
        self.jobs: list[ReplayJob] = []

    def run(self, job: ReplayJob, *, seconds: float) -> ReplayEnd:
        """Return the answer."""
        assert seconds > 0
        self.jobs.append(job)
        return self.answer(job)

    @property
    def repaired(self) -> list[list[str]]:
        """Return the names of the repairs of each replay."""
        return [[one.name for one in job.options.repairs] for job in self.jobs]


def gone_with(name: str) -> Answer:
    """Return an answer: the case is gone with any repairs that have this one."""
    return lambda job: ReplayEnd(PASSES if name in [one.name for one in job.options.repairs] else FAILS)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the release of vLLM be installed that the repairs are for."""
    monkeypatch.setattr(local_engine, "installed_release", lambda spec: RELEASE if spec.name in ENGINES else "")


def attributor(folder: Path, answer: Answer, *, left: float = 100.0, **options: Any) -> tuple[Attributor, Replays]:
    """Return the attributor of a run with these options, and its replays."""
    given = Options(report_dir=folder, **{**IN_PROCESS, **options})
    clock = RunClock(left / PATIENT_RUN, strict=False, clock=lambda: 0.0)
    log, time = EventLog(folder / "events.ndjson"), ProofTime(lambda: clock)
    time.spent = LEAST_PROOFS  # so that only the time of the run is left
    one, replays = Attributor(given, log, time=time), Replays(answer)
    one.replays = replays  # type: ignore[assignment]
    return one, replays


def test_a_case_is_replayed_with_the_likeliest_repair_and_without(tmp_path: Path) -> None:
    """Its like in the same requirement and cell is not replayed again. In another cell, the same repair comes first."""
    one, replays = attributor(tmp_path, gone_with(CONTENTS))
    found = one.attribution(case_of(CONTENTS), REQUIREMENT, ENGINES_OF_CELL)
    assert found is not None
    assert (found.basis, found.finding, found.link) == (Basis.REPAIR, CONTENTS, read_records()[CONTENTS].link)
    assert replays.repaired == [[CONTENTS], []]
    assert one.attribution(case_of(CONTENTS), REQUIREMENT, ENGINES_OF_CELL) is found
    assert len(replays.jobs) == 2
    assert one.attribution(case_of(CONTENTS, cell="tight"), REQUIREMENT, ENGINES_OF_CELL) == found
    assert replays.repaired[2:] == [[CONTENTS], []]
    assert {job.cell for job in replays.jobs} == {"default", "tight"}


def test_what_has_just_failed_takes_one_replay(tmp_path: Path) -> None:
    """As a finding's own case does at the beginning of a run."""
    one, replays = attributor(tmp_path, gone_with(CONTENTS))
    found = one.attribution(case_of(CONTENTS), REQUIREMENT, ENGINES_OF_CELL, fails_now=True)
    assert found is not None
    assert (found.finding, replays.repaired) == (CONTENTS, [[CONTENTS]])


def test_a_case_that_only_looks_like_a_finding_is_new(tmp_path: Path) -> None:
    """It fails with the finding's repair, and with all of them."""
    one, replays = attributor(tmp_path, lambda _: ReplayEnd(FAILS))
    found = one.attribution(case_of(CONTENTS), REQUIREMENT, ENGINES_OF_CELL)
    assert found is not None
    assert (found.basis, found.finding) == (Basis.NEW, "")
    assert f"it has the signature of {CONTENTS}" in found.words
    assert [len(names) > 1 for names in replays.repaired] == [False, True]


def test_a_replay_that_fails_in_another_way_tells_how(tmp_path: Path) -> None:
    """Otherwise nobody can find out afterwards why a case with the signature of a finding did not belong to it."""
    another = ReplayEnd(ReplayResult.OTHERWISE, "request 3 waits for ever")
    one, _ = attributor(tmp_path, lambda job: another if job.options.repairs else ReplayEnd(FAILS, "a wrong answer"))
    found = one.attribution(case_of(CONTENTS), REQUIREMENT, ENGINES_OF_CELL)
    assert found is not None
    assert (found.basis, found.finding) == (Basis.OTHERWISE, "")
    assert {(replay.result, replay.words) for replay in found.replays} == {(another.result, another.words)}


@pytest.mark.parametrize("every", [True, False])
def test_what_is_repaired_in_the_run_is_no_cause(tmp_path: Path, *, every: bool) -> None:
    """A case with its signature has another cause, also where no other repair is left to try."""
    planted = tuple(one for name, one in read_repairs("vllm").items() if every or name == CONTENTS)
    one, _ = attributor(tmp_path, lambda _: ReplayEnd(FAILS), repairs=planted)
    found = one.attribution(case_of(CONTENTS), REQUIREMENT, ENGINES_OF_CELL)
    assert found is not None
    assert (found.basis, found.finding) == (Basis.NEW, "")


def test_a_finding_about_code_that_is_not_installed_is_no_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its signature would take what fails with all repairs of the code that is."""
    lmcache = "vllm/lmcache-clears-memory-alone"
    monkeypatch.setattr("coldproof.adapters.spec.repair.installed", lambda name: name != "lmcache")
    one, _ = attributor(tmp_path, lambda _: ReplayEnd(FAILS))
    found = one.attribution(case_of(lmcache, cell="tier-offload"), REQUIREMENT, ENGINES_OF_CELL)
    assert found is not None
    assert (found.basis, found.finding) == (Basis.NEW, "")


def test_a_fault_of_the_run_is_in_its_replays_too(tmp_path: Path) -> None:
    """And so are the repairs of the run, whose causes are no candidates."""
    rows = read_repairs("vllm")[ROWS]
    one, replays = attributor(tmp_path, lambda _: ReplayEnd(FAILS), fault="a-reset-does-nothing", repairs=(rows,))
    assert one.attribution(case_of(CONTENTS), REQUIREMENT, ENGINES_OF_CELL) is not None
    assert {job.options.fault for job in replays.jobs} == {"a-reset-does-nothing"}
    assert all(names.count(ROWS) == 1 for names in replays.repaired)


@pytest.mark.parametrize(
    ("signature", "basis", "among"),
    [(None, Basis.UNDECIDED, [CONTENTS]), ("corrupt; something else", Basis.NOT_TRIED, [])],
)
def test_without_time_it_is_undecided(signature: str | None, basis: Basis, among: list[str], tmp_path: Path) -> None:
    """It is not accepted by its likeness."""
    changes = {} if signature is None else {"signature": signature}
    one, replays = attributor(tmp_path, gone_with(CONTENTS), left=0.0)
    found = one.attribution(case_of(CONTENTS, **changes), REQUIREMENT, ENGINES_OF_CELL)
    assert found is not None
    assert (found.basis, found.finding, found.candidates) == (basis, "", among)
    assert "budget" in found.sentence
    assert replays.jobs == []


def test_a_replay_that_does_not_fail_again_decides_nothing(tmp_path: Path) -> None:
    """The case may need what ran before it."""
    one, _ = attributor(tmp_path, lambda _: ReplayEnd(PASSES))
    found = one.attribution(case_of(CONTENTS), REQUIREMENT, ENGINES_OF_CELL)
    assert found is not None
    assert (found.basis, found.candidates) == (Basis.UNDECIDED, [CONTENTS])


def test_a_case_of_a_server_is_replayed_in_process(tmp_path: Path) -> None:
    """First without a repair: the server may fail in its own ways."""
    one, replays = attributor(tmp_path, gone_with(CONTENTS), **SERVER, engine_args=("--port", "1"))
    found = one.attribution(case_of(CONTENTS, engine="vllm"), REQUIREMENT, ENGINES_OF_CELL)
    assert found is not None
    assert (found.basis, found.finding) == (Basis.LOCAL, CONTENTS)
    assert replays.repaired == [[], [CONTENTS]]
    assert found.is_shown_by([CONTENTS], failed=False)
    options = replays.jobs[0].options
    assert (options.engine, options.worker, options.engine_args) == ("vllm-inproc", "fingerprint", ())


def test_a_cell_that_needs_a_model_is_replayed_with_one(tmp_path: Path) -> None:
    """The fingerprint worker has none."""
    one, replays = attributor(tmp_path, gone_with(CONTENTS), **SERVER)
    found = one.attribution(case_of(CONTENTS, engine="vllm", cell="images-model"), REQUIREMENT, ENGINES_OF_CELL)
    assert found is not None
    assert (found.basis, found.finding) == (Basis.LOCAL, CONTENTS)
    options = replays.jobs[0].options
    assert (options.engine, options.worker, options.cells) == ("vllm-inproc", "model", ("images-model",))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cell": "prefill-decode"}, "its cell takes a server"),
        ({"engine_version": "0.33.0"}, "no engine of its release that takes repairs is installed here"),
        ({}, "on a local engine of its release it does not fail"),
    ],
)
def test_else_a_servers_case_has_its_signature_alone(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    """The reason says why."""
    one, _ = attributor(tmp_path, lambda _: ReplayEnd(PASSES), **SERVER)
    found = one.attribution(case_of(CONTENTS, engine="vllm", **changes), REQUIREMENT, ENGINES_OF_CELL)
    assert found is not None
    assert (found.basis, found.finding) == (Basis.SIGNATURE, CONTENTS)
    assert found.words.startswith(why)


def test_an_attached_server_is_recognised(tmp_path: Path) -> None:
    """It is vLLM of the release that is installed here."""
    attached = {"engine": "endpoint", "engine_url": "http://127.0.0.1:9", "worker": "model"}
    config = {f"{CACHE_CONFIG}block_size": "32"}
    one, replays = attributor(tmp_path, gone_with(CONTENTS), **attached)
    case = case_of(
        CONTENTS, engine="endpoint", cell="attached", engine_version=f"{RELEASE}+cu130", engine_config=config
    )
    found = one.attribution(case, REQUIREMENT, ENGINES_OF_CELL)
    assert found is not None
    assert (found.basis, replays.jobs[0].cell) == (Basis.LOCAL, "default")


def test_an_engine_without_findings_is_asked_nothing(tmp_path: Path) -> None:
    """An engine of the user's has none."""
    one, _ = attributor(tmp_path, lambda _: ReplayEnd(FAILS), engine="mine", worker="model")
    assert one.attribution(case_of(CONTENTS, engine="mine"), REQUIREMENT, ENGINES_OF_CELL) is None


def failing(number: int) -> Failing:
    """Return an example that failed, with this number in its nonce."""
    workload = msgspec.convert(case_of(CONTENTS).workload, Workload)
    judged = cast(Judgement, SimpleNamespace(history=history(workload=workload, nonce=f"n{number}")))
    return Failing(workload, judged, failed=1, tries=1)


def attributed_case() -> Case:
    """Return a case that a repair has attributed."""
    return case_of(CONTENTS, attribution=Attribution(basis=Basis.REPAIR, finding=CONTENTS))


@pytest.mark.parametrize(("fails_alone", "expected"), [({"n1", "n2"}, "n1"), ({"n2"}, "n2"), (set(), None)])
def test_of_what_failed_alike_it_finds_what_fails_with_the_repair(
    fails_alone: set[str], expected: str | None, tmp_path: Path
) -> None:
    """All run in one process. What fails there has to fail alone, too."""

    def answer(job: ReplayJob) -> ReplayEnd:
        nonces = [run.nonce for run in job.runs]
        if len(nonces) == 1:
            return ReplayEnd(FAILS if nonces[0] in fails_alone else PASSES, "words")
        place = next((nonces.index(name) for name in ("n1", "n2") if name in nonces), None)
        return ReplayEnd(PASSES) if place is None else ReplayEnd(FAILS, run=place)

    one, replays = attributor(tmp_path, answer)
    found = one.behind(attributed_case(), [failing(number) for number in range(4)], REQUIREMENT)
    assert (None if found.failing is None else found.failing.judgement.history.nonce) == expected
    assert found.passed == (4 if expected is None else 0)
    assert (found.failed, found.tries) == ((0, 0) if expected is None else (3, 3))
    assert {tuple(names) for names in replays.repaired} == {(CONTENTS,)}


def test_what_failed_like_several_causes_is_replayed_with_the_repairs_of_all(tmp_path: Path) -> None:
    """With only one of them it would fail for the other's reason."""
    one, replays = attributor(tmp_path, lambda _: ReplayEnd(PASSES))
    cause = Attribution(basis=Basis.REPAIR, finding=CONTENTS, with_findings=[ROWS])
    found = one.behind(case_of(CONTENTS, attribution=cause), [failing(0)], REQUIREMENT)
    assert found == Behind(passed=1)
    assert [set(names) for names in replays.repaired] == [{CONTENTS, ROWS}]


@pytest.mark.parametrize("new", [False, True])
def test_what_another_accepted_cause_explains_is_not_new(tmp_path: Path, *, new: bool) -> None:
    """An example that fails with the repair of one cause passes with those of all accepted ones, or it is new."""

    def answer(job: ReplayJob) -> ReplayEnd:
        both = {one.name for one in job.options.repairs} == {CONTENTS, ROWS}
        return ReplayEnd(PASSES if both and not new else ReplayResult.OTHERWISE, "words")

    one, replays = attributor(tmp_path, answer)
    found = one.behind(attributed_case(), [failing(0)], REQUIREMENT, accepted=[ROWS])
    assert (found.failing is not None, found.passed) == (new, 0)
    assert set(replays.repaired[2]) == {CONTENTS, ROWS}  # behind one replay of all that failed alike, and one alone


@pytest.mark.parametrize(
    ("basis", "result"), [(Basis.SIGNATURE, PASSES), (Basis.LOCAL, PASSES), (Basis.REPAIR, ReplayResult.NOT_RUN)]
)
def test_nothing_has_passed_that_was_not_replayed(basis: Basis, result: ReplayResult, tmp_path: Path) -> None:
    """There is no repair for it in this process, or the replay came to nothing."""
    one, _ = attributor(tmp_path, lambda _: ReplayEnd(result))
    case = case_of(CONTENTS, attribution=Attribution(basis=basis, finding=CONTENTS))
    assert one.behind(case, [failing(0)], REQUIREMENT) == Behind()


def test_without_time_nobody_looks_behind(tmp_path: Path) -> None:
    """The caller has to know."""
    one, _ = attributor(tmp_path, gone_with(CONTENTS), left=0.0)
    with pytest.raises(OutOfTime):
        one.behind(attributed_case(), [failing(0)], REQUIREMENT)


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    """It is read in another process."""
    rows = read_repairs("vllm")[ROWS]
    workload = failing(0).workload
    job = ReplayJob(
        options=Options(report_dir=tmp_path, repairs=(rows,), adapters=(Path("a"),), **IN_PROCESS),
        cell="default",
        requirements=[REQUIREMENT],
        runs=[Run(workload, "abc")],
        failure_class=case_of(CONTENTS).failure_class,
        signature="x",
    )
    write_job(tmp_path / "job.json", job)
    assert read_job(tmp_path / "job.json") == job


@pytest.mark.engine
@pytest.mark.nightly
def test_a_fault_beside_a_known_cause_is_a_violation(tmp_path: Path) -> None:
    """Both fail LORA-3 with one signature. The known cause vanishes with its repair, and the fault does not."""
    run = tmp_path / "run"
    words = ["--layers", "exact", "--cells", "default", "--requirements", "LORA-3", "--diagnose", "none"]
    words += ["--known-issues", "vllm", "--fault", "every-eighth-adapter-counts-as-none", "--budget", "60s"]
    command = [sys.executable, "-m", "coldproof", "run", "-q", *words, "--report-dir", str(run)]
    given = {**os.environ, "PYTHONPATH": PLUGIN_PATH}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    results = read_results(run / "results.json")
    accepted = [one for one in results.cases if one.known_issue is not None]
    new = [one for one in results.cases if one.known_issue is None]
    assert {one.attribution.finding for one in accepted if one.attribution is not None} == {CONTENTS}
    assert {one.attribution.basis for one in new if one.attribution is not None} == {Basis.NEW}
    assert {one.signature for one in accepted} & {one.signature for one in new}
    assert all("--repairs" in one.replay for one in new)
