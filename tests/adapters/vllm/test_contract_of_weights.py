"""The contract about weights, pauses, sleeps and larger resets finds adapters that break it.

Each is vLLM's in-process adapter with the fingerprint worker and one method that does something else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contract import subjects
from contract import test_contract_weights as rules
from contract.rules import RuleBroken

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightRoute
from coldproof.adapters.vllm.fingerprint.topology import FULL_ATTENTION
from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.adapters.vllm.inproc.engine import InprocEngine
from coldproof.adapters.vllm.server import VllmOptions

pytestmark = pytest.mark.engine


class Wrong(msgspec.Struct, frozen=True):
    """The methods that replace those of the adapter, and the capabilities that it reports."""

    methods: dict[str, Callable[..., Any]] = {}
    said: dict[Capability, bool] = {}

    def adapter(self, engine: InprocEngine) -> Any:
        """Return the changed engine. It is not wrapped where it reports that a capability is missing, so nothing
        refuses calls.
        """
        other = object.__new__(type("Broken", (InprocEngine,), self.methods))
        support = {capability: Support(there, "as the test says") for capability, there in self.said.items()}
        other.__dict__ = {**engine.__dict__, "capabilities": {**engine.capabilities, **support}}
        return CheckedEngine(other) if all(self.said.values()) else other


def no_update(_engine: InprocEngine, _path: str, _route: WeightRoute) -> None:
    """Confirm new weights without loading any."""


def updates_and_resets(engine: InprocEngine, path: str, route: WeightRoute) -> None:
    """Load the weights and clear the cache."""
    InprocEngine.update_weights(engine, path, route)
    engine.reset_cache()


def no_pause(_engine: InprocEngine, _mode: PauseMode, *, clear: bool) -> None:
    """Confirm a pause without pausing."""


def clears_always(engine: InprocEngine, mode: PauseMode, *, clear: bool) -> None:
    """Clear the cache although the call does not request it."""
    InprocEngine.pause(engine, mode, clear=True)


def clears_never(engine: InprocEngine, mode: PauseMode, *, clear: bool) -> None:
    """Confirm a cleared cache and keep it."""
    InprocEngine.pause(engine, mode, clear=False)


def keeps(engine: InprocEngine, _mode: PauseMode, *, clear: bool) -> None:
    """Keep the requests whatever the mode is."""
    InprocEngine.pause(engine, PauseMode.KEEP, clear=clear)


def keeps_kv_in_sleep(engine: InprocEngine, _level: int) -> None:
    """Stop the scheduler and keep the KV."""
    InprocEngine.sleep(engine, 0)


def wakes_with_other_weights(engine: InprocEngine, part: SleepPart = SleepPart.ALL) -> None:
    """Load other weights at the wake-up."""
    InprocEngine.wake(engine, part)
    if part is not SleepPart.WEIGHTS:
        InprocEngine.update_weights(engine, str(subjects.generated_weights(Path())[1]), WeightRoute.PATH)


def confirms_without_reset(_engine: InprocEngine, _scope: tuple[ResetScope, ...]) -> bool:
    """Confirm a reset without resetting anything."""
    return True


def aborts_running_requests(engine: InprocEngine, _scope: tuple[ResetScope, ...]) -> bool:
    """Reset by aborting the running requests."""
    InprocEngine.pause(engine, PauseMode.ABORT, clear=True)
    engine.resume()
    return True


C = Capability
PATH, NOT_CLEAR = {"route": WeightRoute.PATH}, {"clear": False}
BROKEN: list[tuple[Callable[..., None], dict[str, Any], Wrong]] = [
    (rules.test_an_update_changes_the_weights_and_goes_back, PATH, Wrong({"update_weights": no_update})),
    (rules.test_an_update_resets_no_cache, PATH, Wrong({"update_weights": updates_and_resets})),
    (rules.test_a_checksum_is_that_of_the_weights, PATH, Wrong({"weights_checksum": lambda _engine: "always"})),
    (rules.test_weights_that_are_not_there_are_refused, PATH, Wrong({"update_weights": no_update})),
    (
        rules.test_without_updates_weights_are_refused,
        {},
        Wrong({"update_weights": no_update}, {C.WEIGHT_UPDATES: False}),
    ),
    (rules.test_a_pause_that_keeps_requests, NOT_CLEAR, Wrong({"pause": no_pause})),
    (rules.test_a_pause_that_ends_requests, NOT_CLEAR, Wrong({"pause": keeps})),
    (rules.test_a_pause_that_waits_for_requests, {}, Wrong({"pause": keeps}, {C.PAUSE_WAIT: True})),
    (
        rules.test_a_pause_clears_the_cache_only_on_request,
        {"mode": PauseMode.KEEP},
        Wrong({"pause": clears_always}),
    ),
    (
        rules.test_a_pause_clears_the_cache_only_on_request,
        {"mode": PauseMode.ABORT},
        Wrong({"pause": clears_never}),
    ),
    (rules.test_without_a_mode_its_pause_is_refused, {"mode": PauseMode.KEEP}, Wrong(said={C.PAUSE_KEEP: False})),
    (rules.test_a_sleep_discards_the_cache_from_level_1_on, {"level": 1}, Wrong({"sleep": keeps_kv_in_sleep})),
    (rules.test_a_sleep_that_discards_the_weights, {}, Wrong({"wake": wakes_with_other_weights})),
    (
        rules.test_without_the_capability_a_sleep_is_refused,
        {"level": 1, "capability": C.SLEEP},
        Wrong(said={C.SLEEP: False}),
    ),
    (rules.test_a_reset_of_more_leaves_nothing_to_hit, {}, Wrong({"reset_more": confirms_without_reset})),
    (rules.test_a_reset_of_running_requests_lets_them_go_on, {}, Wrong({"reset_more": aborts_running_requests})),
    (
        rules.test_a_scope_that_an_engine_lacks_is_not_confirmed,
        {"scope": ResetScope.RUNNING},
        Wrong(said={C.RESET_RUNNING: False}),
    ),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InprocEngine]:
    """Yield one engine for all tests."""
    start, _ = subjects.generated_weights(Path())
    log = tmp_path_factory.mktemp("contract") / "engine.log"
    started = vllm_inproc.start(VllmOptions(model=str(start), log=log, topology=FULL_ATTENTION))
    yield started
    started.stop()


def given(test: Callable[..., None], arguments: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the arguments of a contract test, including the fixtures that it uses."""
    wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
    fixtures = {"weights": subjects.generated_weights(folder), "tmp_path": folder}
    return {name: value for name, value in (fixtures | arguments).items() if name in wanted}


@pytest.mark.parametrize(
    ("test", "arguments", "wrong"),
    [pytest.param(*row, id=f"{row[0].__name__.removeprefix('test_')}-{i}") for i, row in enumerate(BROKEN)],
)
def test_a_broken_adapter_is_detected(
    engine: InprocEngine, tmp_path: Path, test: Callable[..., None], arguments: dict[str, Any], wrong: Wrong
) -> None:
    """The contract test fails for the broken adapter and passes for the unmodified one."""
    known = given(test, arguments, tmp_path)
    with contextlib.suppress(pytest.skip.Exception):  # in this process, vLLM has no pause that waits
        test(engine=CheckedEngine(engine), **known)
    try:
        with pytest.raises(RuleBroken, match="adapters/protocol/"):
            test(engine=wrong.adapter(engine), **known)
    finally:
        engine.wake()
        engine.resume()
        engine.update_weights(str(subjects.generated_weights(tmp_path)[0]), WeightRoute.PATH)
        engine.reset_cache()


def test_every_rule_can_be_broken() -> None:
    """Every contract test of this file is broken by at least one adapter."""
    assert {name for name in vars(rules) if name.startswith("test_")} == {test.__name__ for test, _, _ in BROKEN}
