"""What a trial lacks is drawn first, and a failing example is drawn again as it was."""

from __future__ import annotations

from coldproof.harness.judgement.leads import MOST_TRIES, Leads

AMONG = ("loads", "images")


def test_what_is_missing_comes_first_and_each_in_its_turn() -> None:
    """One that no example shows does not keep the others from theirs."""
    evidence = {"loads": 0.0}
    leads = Leads(evidence)
    assert [leads.choose(AMONG, number) for number in range(4)] == ["loads", "images", "loads", "images"]
    evidence["loads"] = 64
    assert [leads.choose(AMONG, number) for number in (4, 5)] == ["images", "images"]
    evidence["images"] = 1
    assert leads.choose(AMONG, 6) == ""


def test_a_number_keeps_its_choice() -> None:
    """Hypothesis draws a counterexample again after its evidence is there, and must get the same workload."""
    evidence: dict[str, float] = {}
    leads = Leads(evidence)
    first = leads.choose(AMONG, 7)
    evidence[first] = 1
    assert first in AMONG
    assert leads.choose(AMONG, 7) == first
    assert leads.choose(("images",), 7) == "images"  # another place of the workload has numbers of its own


def test_what_no_workload_shows_is_given_up() -> None:
    """The trial then goes on with the usual workloads, and does not wait for this evidence any more."""
    leads = Leads({})
    assert not leads.is_trying(AMONG)
    assert [leads.choose(AMONG[:1], number) for number in range(MOST_TRIES - 1)] == ["loads"] * (MOST_TRIES - 1)
    assert leads.is_trying(AMONG)
    assert [leads.choose(AMONG[:1], number) for number in (100, 101)] == ["loads", ""]
    assert not leads.is_trying(AMONG)
