"""Starts the engines of one cell and finds the rule by which their answers are compared."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.metrics import COUNTERS, increase
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.execution.calibration.calibrate import calibrate, earlier_calibration
from coldproof.harness.execution.calibration.cross_engine import calibrate_between
from coldproof.harness.execution.calibration.pooled import calibrate_pooled, tasks_of
from coldproof.harness.execution.calibration.progress import Progress
from coldproof.harness.execution.calibration.second_calibration import second_calibration
from coldproof.harness.execution.engines.deaths import ends_soon, last_error
from coldproof.harness.execution.engines.dropped_kinds import DroppedKinds
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.models.contents import Contents
from coldproof.harness.execution.oracles.closed_form import ClosedForm
from coldproof.harness.execution.oracles.cross_engine import OtherEngine
from coldproof.harness.execution.oracles.engine import EngineOracle, FreshOracle
from coldproof.harness.judgement.dropped_kind import DroppedKind
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Oracle, OracleError
from coldproof.harness.options import COLD_ENGINE, SAME_ENGINE, UsageError
from coldproof.harness.schema.oracles import CLOSED_FORM
from coldproof.harness.schema.results import Calibration
from coldproof.harness.workload.request_kinds import RequestKind

IDLE_SECONDS = 2.0  # an attached server is watched


class StartedEngines(msgspec.Struct, frozen=True, kw_only=True):
    """The engines of a cell and the oracles over them. `cold_engine` is None if no second engine is started."""

    tested: CheckedEngine
    cold_engine: CheckedEngine | None
    oracle: Oracle
    cold: EngineOracle


class ComparisonRules(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a calibration: the rule for the oracle's answers and the one for the engine's own cold answers.

    `ended`: that an engine ended at its first requests, so that nothing can be compared; empty if both live.
    """

    calibration: Calibration
    rule: Rule
    own_rule: Rule
    seconds: float = 0.0
    ended: str = ""


def start_engines(pool: EnginePool, cell: Cell) -> StartedEngines:
    """Start the engines that the chosen oracle needs, both at once. Raises EngineStartError."""
    options = pool.options
    name, other = options.oracle, options.other_engine
    starting = pool.cold_engine(cell) if name != SAME_ENGINE and not options.attached else None
    beside = pool.other_engine(cell, other) if other is not None else None
    tested = pool.open_engine(cell, purpose="tested")
    pool.vet_contents(tested, cell)
    if options.exclusive:
        check_idle(tested)
    if options.cold_url is not None and name != SAME_ENGINE:
        starting = pool.cold_engine(cell)  # after the other server, whose adapters it gets
    check_mode(tested.shape, cell, other)
    cold_engine = starting.result() if starting is not None else None
    if beside is not None:
        pool.vet_contents(beside.result(), cell)
    cold = (
        pool.oracles.oracle_for(COLD_ENGINE, cold_engine, cell)
        if cold_engine is not None
        else pool.oracles.oracle_for(SAME_ENGINE, tested, cell)
    )
    if cold_engine is not None and not options.attached:  # an attached one loads other weights itself
        cold.of_weights = lambda digest: pool.cold_engine(cell, digest).result()
    oracle: Oracle = cold
    if other is not None:
        oracle = other_oracle(pool, cell, other, cold)
    elif cold_engine is not None and name == "fresh-engine":
        oracle = FreshOracle(
            lambda weights: pool.fresh(cell, caching=True, weights=weights),
            list(pool.files.contents_of(cell).values()),
            memo=pool.oracles.memo(cell),
        )
    elif cold_engine is not None and name == CLOSED_FORM:
        oracle = ClosedForm(cold, tested.shape.row_width, tested.shape.image)
    return StartedEngines(tested=tested, cold_engine=cold_engine, oracle=oracle, cold=cold)


def other_oracle(pool: EnginePool, cell: Cell, name: str, cold: EngineOracle) -> OtherEngine:
    """Return the oracle over another engine, which is restarted if it crashes."""

    def reopen() -> EngineOracle:
        return pool.oracles.other_oracle(cell, name, pool.other_engine(cell, name).result())

    return OtherEngine(reopen(), cold, reopen=reopen)


def usable_contents(pool: EnginePool, cell: Cell, engine: CheckedEngine) -> Contents:
    """Return the adapter contents of a cell; none if requests cannot choose an adapter."""
    return pool.files.contents_of(cell) if engine.capabilities[Capability.ADAPTER_CHOICE].present is True else {}


def find_rules(pool: EnginePool, cell: Cell, started: StartedEngines) -> ComparisonRules:
    """Calibrate the engines of a cell. Cells with the same cold answers share one calibration.

    Where the cold engine ends at its first requests, the rules say so. Raises OracleError where it does not answer and
    lives, or UsageError for an earlier calibration that does not fit.
    """
    began = time.monotonic()
    progress = Progress(pool.log.emit)
    cold = started.tested.capabilities[Capability.COLD_ANSWERS]
    if cold.present is not True:
        return no_rules(cell, started, f"no answer of this server is known to be cold: {cold.evidence}")
    try:
        calibration, own_rule = own_rules(pool, cell, started, progress)
        rule = own_rule
        if isinstance(started.oracle, OtherEngine):
            calibration, rule = rules_between(pool, cell, started, started.oracle, calibration, progress)
    except OracleError as problem:
        if started.cold.saltless and started.tested.alive():
            started.tested.withdraw(Capability.COLD_ANSWERS, str(problem))
            return no_rules(cell, started, f"no answer of this server is known to be cold: {problem}")
        engine = started.cold.engine
        if started.cold_engine is None or pool.options.attached or not ends_soon(engine):
            raise
        said = ended_early(engine.log_tail(), "without its prefix cache")
        why = "the engine without its cache ended at its first requests"
        return no_rules(cell, started, why, ended=f"{problem}. {said}")
    # A server that ended at its first probe still answers for seconds, and refuses all.
    refuses = started.tested.capabilities[Capability.TOKEN_PROMPTS].present is not True
    lost = not pool.options.attached and (ends_soon(started.tested) if refuses else not started.tested.alive())
    return ComparisonRules(
        calibration=calibration,
        rule=msgspec.structs.replace(rule, lossy=cell.lossy),
        own_rule=own_rule,
        seconds=round(time.monotonic() - began, 2),
        ended=ended_early(started.tested.log_tail(), "with its prefix cache") if lost else "",
    )


def no_rules(cell: Cell, started: StartedEngines, why: str, *, ended: str = "") -> ComparisonRules:
    """Return the rules of a cell without cold answers. `ended`: what its cold engine did, if that is the reason."""
    rule = Rule(exact=False, why=why)
    calibration = Calibration(
        cell=cell.name,
        oracle=started.cold.name,
        rule=str(rule),
        exact=False,
        noise_nats=None,
        probes=0,
        differing=0,
        mixtures={},
        notes=[ended] if ended else [],
    )
    return ComparisonRules(calibration=calibration, rule=rule, own_rule=rule, ended=ended)


def ended_early(log_tail: str, which: str) -> str:
    """Say that an engine ended at its first requests, with the last error in its log. `which`: of the engines."""
    error = last_error(log_tail)
    last = f" with {error}" if error else ""
    return (
        f"The engine ended{last} at one of its first requests, {which}, so that nothing can be compared. Its log is in "
        "the folder of the report (engine-*.log)"
    )


def own_rules(pool: EnginePool, cell: Cell, started: StartedEngines, progress: Progress) -> tuple[Calibration, Rule]:
    """Find the rule for the engine's own cold answers, or take it from an earlier run."""
    key = cell.name if started.cold_engine is None else pool.oracles.cell_of_answers(cell).name
    if key not in pool.calibrations:
        digests = [files.digest for files in usable_contents(pool, cell, started.tested).values()]
        shape = (started.cold_engine or started.tested).shape
        source = pool.options.calibration
        earlier = earlier_calibration(source, cell=key, version=started.tested.version) if source else None
        use_without(started.cold, pool.dropped)
        tasks = tasks_of(started.cold.engine)
        # With states, vLLM without a cache has one block for the whole context.
        block = started.tested.shape.block_size
        slots = shape.adapter_slots or 1
        if earlier is None and tasks:
            earlier = calibrate_pooled(
                started.cold, digests, tasks, cell=key, block=block, slots=slots, progress=progress
            )
        pool.calibrations[key] = earlier or calibrate(
            started.cold,
            digests,
            cell=key,
            block=block,
            slots=slots,
            seconds=pool.calibration_seconds,
            stepped=pool.options.fingerprint and pool.options.quick,
            renew=renewing(pool, cell, started.cold, started.cold_engine),
            dropped=tuple(pool.dropped),
            on_death=noting_deaths(pool, cell),
            progress=progress,
        )
        if isinstance(started.oracle, ClosedForm):
            started.oracle.verify(digests, tasks)
    started.cold.batches = pool.calibrations[key][0].exact
    return pool.calibrations[key]


def rule_after_second_calibration(
    pool: EnginePool, cell: Cell, started: StartedEngines, found: Calibration
) -> tuple[Calibration, Rule] | None:
    """Measure more cold answers, once for each calibration. Return what replaces it; None if that was done before, in
    this run or in the one whose calibration it uses.

    Raises OracleError.
    """
    cold, key = started.cold, found.cell
    if found.repeated or key in pool.looked_again or started.oracle is not cold or not cold.scores:
        return None
    pool.looked_again.add(key)
    measured = second_calibration(
        cold,
        [files.digest for files in usable_contents(pool, cell, started.tested).values()],
        found,
        block=started.tested.shape.block_size,
        seconds=pool.calibration_seconds,
        renew=renewing(pool, cell, cold, started.cold_engine),
        dropped=tuple(pool.dropped),
        on_death=noting_deaths(pool, cell),
        progress=Progress(pool.log.emit),
    )
    pool.calibrations[key] = measured
    cold.batches = measured[0].exact
    return measured


def renewing(
    pool: EnginePool, cell: Cell, cold: EngineOracle, engine: CheckedEngine | None
) -> Callable[[], CheckedEngine] | None:
    """Return what replaces the cold engine if a request ends it; None if there is no such engine of its own."""
    return None if engine is None else lambda: renew_cold(pool, cell, cold)


def noting_deaths(pool: EnginePool, cell: Cell) -> Callable[[RequestKind, str], None]:
    """Return what drops a kind of request of which the cold engine died."""

    def on_death(kind: RequestKind, why: str) -> None:
        pool.dropped.add(DroppedKind(kind=kind, cell=cell.name, requirement="", why=why))

    return on_death


def renew_cold(pool: EnginePool, cell: Cell, cold: EngineOracle) -> CheckedEngine:
    """Start another cold engine for the oracle, whose engine was lost, and return it. Raises EngineStartError."""
    lost = cold.engine
    pool.log.emit("engine_lost", cell=cell.name, log_tail=lost.log_tail())
    pool.close_cold(lost)
    engine = pool.cold_engine(cell).result()
    cold.use(engine)
    return engine


def use_without(cold: EngineOracle, dropped: DroppedKinds) -> None:
    """Let the cold engine get no requests of the dropped kinds for scores, which it needs for no answer."""
    cold.scores = cold.scores and RequestKind.LOGPROBS not in dropped
    cold.scores_prompts = cold.scores_prompts and cold.scores and RequestKind.SCORES not in dropped


def rules_between(
    pool: EnginePool, cell: Cell, started: StartedEngines, oracle: OtherEngine, found: Calibration, progress: Progress
) -> tuple[Calibration, Rule]:
    """Find the rule for comparing with another engine. `found` is the calibration of this cell's own cold engine."""
    key = f"{oracle.name}, {found.cell}"
    if key not in pool.calibrations:
        contents = usable_contents(pool, cell, started.tested)
        pool.calibrations[key] = calibrate_between(
            started.cold,
            oracle.other,
            {files.digest: name for name, files in contents.items()},
            name=oracle.name,
            block=started.tested.shape.block_size,
            found=found,
            progress=progress,
        )
    return pool.calibrations[key]


def check_idle(engine: CheckedEngine, pause: float = IDLE_SECONDS) -> None:
    """Check that an attached server does nothing while no request is sent: its counters would be compared with ours.

    `pause`: how long it is watched, in seconds. Raises UsageError.
    """
    before = engine.metrics()
    time.sleep(pause)
    after = engine.metrics()
    grown = [name for name in COUNTERS if increase(getattr(before, name), getattr(after, name))]
    if grown or after.running or after.waiting:
        seen = f"its counters grew ({', '.join(grown)})" if grown else "it has requests"
        raise UsageError(f"--exclusive: another client uses the server: {seen} while Coldproof sent none")


def check_mode(shape: EngineShape, cell: Cell, other: str | None) -> None:
    """Check that the cell allows for modes that change answers by design, and that no other engine is the oracle then.

    Raises UsageError.
    """
    if shape.moves_pieces_of and shape.prefix_caching and not cell.lossy:
        raise UsageError(
            f"the engine reuses KV of {shape.moves_pieces_of}-token pieces at other positions (non-prefix KV reuse), "
            f"which changes answers by design, but cell {cell.name!r} requires exact answers: choose a cell for this "
            "mode (--cells list)"
        )
    if other is not None and (shape.moves_pieces_of or shape.shifts_context):
        raise UsageError(
            f"cell {cell.name!r} changes answers by design, so they cannot be compared with another engine's"
        )
