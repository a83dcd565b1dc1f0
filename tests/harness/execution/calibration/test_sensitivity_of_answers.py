"""The calibration measures whether cold answers depend on each part of their requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.histories import Tampered, contents

from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.harness.execution.calibration.sensitivity import (
    EDITS,
    OF_BLOCKS,
    OF_TOKENS,
    edits_of,
    measure_sensitivity,
)
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.oracle import Question
from coldproof.harness.schema.cold_answers import ADAPTER, ColdAnswers, Sensitivity
from coldproof.harness.session.selftest.scripted_engine import BlindModel, ScriptedEngine

UNIT = 16


def measured(engine: ScriptedEngine, folder: Path, *, adapters: bool = True) -> dict[str, Sensitivity]:
    """Return the measured sensitivity by part."""
    oracle = EngineOracle("cold-engine", engine, list(contents(folder).values()), memo={})
    identities = [None, *list(oracle.adapters)[:2]] if adapters else [None]
    return {one.part: one for one in measure_sensitivity(oracle, identities, UNIT, EXACT)}


def test_one_pair_is_enough_where_answers_differ(tmp_path: Path) -> None:
    """This holds for each part, and for the adapter if there are adapters."""
    found = measured(ScriptedEngine(caching=False), tmp_path)
    assert list(found) == [*EDITS, ADAPTER]
    assert all((one.changed, one.pairs) == (1, 1) for one in found.values())
    assert list(measured(ScriptedEngine(caching=False), tmp_path / "base", adapters=False)) == [*EDITS]


@pytest.mark.parametrize("model", BlindModel)
def test_a_blind_model_is_detected(model: BlindModel, tmp_path: Path) -> None:
    """A model that reads only the last block does not change its answer for any other block."""
    found = measured(ScriptedEngine(caching=False, model=model), tmp_path)
    blind = ColdAnswers(sensitivity=tuple(found.values()))
    assert "the first token" in blind.insensitive(adapters=False)
    assert found["the first token of the prompt"].pairs == OF_TOKENS + OF_BLOCKS
    assert ADAPTER in blind.insensitive(adapters=True)
    assert ADAPTER not in blind.insensitive(adapters=False)


def weak(differs: Callable[[tuple[int, ...]], object]) -> Tampered:
    """Return an engine whose answers depend only on one function of the prompt."""

    def tampered(request: CompletionRequest, honest: Completion) -> Completion:
        token = 40 + hash(differs(request.prompt)) % 50
        same = tuple(msgspec.structs.replace(one, id=token) for one in honest.tokens)
        return msgspec.structs.replace(honest, tokens=same)

    return Tampered(tampered, caching=False)


def test_a_model_that_depends_little_on_single_tokens_gets_whole_blocks_changed(tmp_path: Path) -> None:
    """A trained model often gives two such prompts the same short answer."""
    whole = weak(lambda prompt: sum(prompt[:UNIT]) // UNIT)  # a changed token rarely shows, a changed block always
    assert measured(whole, tmp_path)["the first token of the prompt"].changed


def test_scores_alone_may_differ(tmp_path: Path) -> None:
    """The tokens are the same."""

    def tampered(request: CompletionRequest, honest: Completion) -> Completion:
        score = -1.0 - sum(i * token for i, token in enumerate(request.prompt)) / 100
        same = tuple(msgspec.structs.replace(one, id=40, logprob=score) for one in honest.tokens)
        return msgspec.structs.replace(honest, tokens=same)

    found = measured(Tampered(tampered, caching=False), tmp_path, adapters=False)
    assert all(one.changed for one in found.values())


def test_edits_stay_within_their_blocks() -> None:
    """Edits are within the first two of three blocks: tokens first, then whole blocks."""
    prompt = tuple(range(33, 33 + 3 * UNIT - 1))
    for edit in EDITS.values():
        changed = [one(Question(prompt, None, 4)).prompt for one in edits_of(edit, UNIT)]
        assert len(changed) == OF_TOKENS + OF_BLOCKS
        assert all(
            len(one) == len(prompt) and one != prompt and one[2 * UNIT :] == prompt[2 * UNIT :] for one in changed
        )
        places = [sum(a != b for a, b in zip(one, prompt, strict=True)) for one in changed]
        assert set(places[:OF_TOKENS]) <= {1, 2}
        assert min(places[OF_TOKENS:]) >= UNIT // 2
