"""A test is repeated with other seeds: for hours, or until it has its evidence."""

from __future__ import annotations

import pytest
from hypothesis import core, given, settings
from hypothesis import strategies as st

from coldproof.harness.session.rounds import MORE_ROUNDS, behind_failures, in_rounds, while_lacking


def test_rounds_have_new_seeds_and_end_with_the_time() -> None:
    """Every round has its own seed, and the same seed repeats all of them."""

    def drawn(seed: str) -> list[int]:
        seen: list[int] = []

        @settings(max_examples=5, database=None, derandomize=False)  # as in a run
        @given(number=st.integers(0, 2**60))
        def test(number: int) -> None:
            seen.append(number)

        in_rounds(test, seed, lambda: len(seen) >= 15)()
        return seen

    once = drawn("7")
    assert len(once) >= 15
    assert len(set(once)) > 10
    assert drawn("7") == once
    assert drawn("8") != once


def test_a_counterexample_ends_the_rounds() -> None:
    """An exception of the test is not caught, because it becomes the verdict."""

    def test() -> None:
        raise AssertionError("broken")

    with pytest.raises(AssertionError, match="broken"):
        in_rounds(test, "1", lambda: False)()


@pytest.mark.parametrize(("enough", "rounds"), [(1, 1), (6, 2), (1000, 1 + MORE_ROUNDS)])
def test_what_the_first_round_did_not_show_is_drawn_with_other_seeds(
    monkeypatch: pytest.MonkeyPatch, enough: int, rounds: int
) -> None:
    """The number of rounds is limited, and the seed of the session is restored afterwards."""
    monkeypatch.setattr(core, "global_force_seed", 7)
    seen: list[int] = []

    @settings(max_examples=5, database=None, derandomize=False)  # as in a run
    @given(number=st.integers())
    def test(number: int) -> None:
        seen.append(number)

    while_lacking(test, "7", lambda: len(seen) < enough)()
    assert len(seen) == 5 * rounds
    assert len(set(seen)) > 4 * (rounds - 1)
    assert core.global_force_seed == 7


def test_behind_a_failure_the_test_is_repeated_with_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends without a failure, or with the one behind which it does not go on."""
    monkeypatch.setattr(core, "global_force_seed", 7)
    seeds: list[object] = []
    seen: list[str] = []

    def test() -> None:
        seeds.append(core.global_force_seed)
        if len(seeds) < 4:
            raise AssertionError(f"failure {len(seeds)}")

    def goes_on(failure: BaseException) -> bool:
        seen.append(str(failure))
        return len(seen) != 4

    behind_failures(test, "7", goes_on)()
    assert seen == ["failure 1", "failure 2", "failure 3"]
    assert seeds == [7, "7, behind 1", "7, behind 2", "7, behind 3"]
    assert core.global_force_seed == 7
    seeds.clear()
    with pytest.raises(AssertionError, match="failure 1"):
        behind_failures(test, "7", goes_on)()


def test_a_failure_is_put_aside_outside_of_its_own_handling() -> None:
    """What an engine does while the first failure is proved has not that failure as its context."""
    contexts: list[BaseException | None] = []

    def test() -> None:
        if not contexts:
            raise AssertionError("broken")

    def goes_on(_: BaseException) -> bool:
        try:
            raise ValueError("another")
        except ValueError as problem:
            contexts.append(problem.__context__)
        return True

    behind_failures(test, "7", goes_on)()
    assert contexts == [None]
