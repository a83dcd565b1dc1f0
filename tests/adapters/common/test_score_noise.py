"""Noise that is put into an engine: what it depends on, how large it is, and what the command line takes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from coldproof.adapters.common import score_noise
from coldproof.adapters.common.score_noise import Noise, NoiseKind, NoiseSource, parse
from coldproof.adapters.vllm.plugins import register_plugin
from coldproof.adapters.vllm.server import effective_environment
from coldproof.harness.options import Options, UsageError
from coldproof.harness.selection.validation import check_options

SHAPE = (40, 50)


def options(**changes: object) -> Options:
    """A run with noise."""
    return Options(**{"engine": "vllm-inproc", "report_dir": Path("out"), "noise": "gaussian:0.05", **changes})


@pytest.mark.parametrize("kind", NoiseKind)
def test_noise_is_as_large_as_was_asked(kind: NoiseKind) -> None:
    """The standard deviation, in nats, around nothing."""
    drawn = NoiseSource(Noise(kind, 0.3)).draw(SHAPE, b"alone")
    assert drawn.shape == SHAPE
    assert np.std(drawn) == pytest.approx(0.3, rel=0.1)
    assert abs(np.mean(drawn)) < 0.05


def test_independent_noise_never_comes_back() -> None:
    """Not even for the same company."""
    source = NoiseSource(parse("gaussian:0.1"))
    assert not np.array_equal(source.draw(SHAPE, b"alone"), source.draw(SHAPE, b"alone"))


def test_noise_of_a_batch_comes_back_in_the_same_company_only() -> None:
    """Alone an engine repeats itself; beside others, or in another order, it does not. Nor does another engine."""
    source = NoiseSource(parse("batch:0.1"))
    alone = source.draw(SHAPE, b"alone")
    assert np.array_equal(source.draw(SHAPE, b"alone"), alone)
    assert not np.array_equal(source.draw(SHAPE, b"beside"), alone)
    assert not np.array_equal(NoiseSource(parse("batch:0.1")).draw(SHAPE, b"alone"), alone)


@pytest.mark.parametrize("text", ["gaussian", "gaussian:", "gaussian:0", "gaussian:-1", "loud:1", "batch:nan", ""])
def test_what_is_no_noise_is_refused_in_one_line(text: str) -> None:
    """It says what to write."""
    with pytest.raises(ValueError, match=r"not a noise setting: use gaussian:NATS or batch:NATS"):
        parse(text)


@pytest.mark.parametrize("text", ["gaussian:0.05", "batch:1"])
def test_noise_is_told_as_it_was_asked(text: str) -> None:
    """Its words read back."""
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"noise": "quiet:1"}, "--noise 'quiet:1' is not a noise setting"),
        ({"engine": "llamacpp"}, "--engine llamacpp does not support --noise"),
        ({"oracle": "closed-form", "worker": "fingerprint"}, "does not model noise"),
    ],
)
def test_noise_that_cannot_be_ends_before_any_engine(changes: dict[str, object], says: str) -> None:
    """One line that says what to do."""
    with pytest.raises(UsageError, match=says):
        check_options(options(**changes))


def test_noise_in_a_vllm_of_ours_is_fine() -> None:
    """With either worker."""
    check_options(options())
    check_options(options(worker="fingerprint"))


def test_engines_started_inside_find_the_noise_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment that the report shows; outside, nothing of it is left."""
    monkeypatch.delenv(score_noise.VARIABLE, raising=False)
    before = dict(os.environ)
    with register_plugin(
        tmp_path / "noise",
        "coldproof_noise",
        "coldproof.adapters.vllm.plugins:install_noise",
        {score_noise.VARIABLE: "batch:0.1"},
    ):
        assert effective_environment()[score_noise.VARIABLE] == "batch:0.1"
        found = score_noise.noise_from_environment()
        assert found is not None
        assert found.noise == Noise(NoiseKind.BATCH, 0.1)
    assert dict(os.environ) == before
    assert score_noise.noise_from_environment() is None
    assert score_noise.VARIABLE not in effective_environment()
