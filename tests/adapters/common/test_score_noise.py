"""Noise that is injected into an engine: what it depends on, its size, and its command-line option."""

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
    """Return the options of a run with noise."""
    return Options(**{"engine": "vllm-inproc", "report_dir": Path("out"), "noise": "gaussian:0.05", **changes})


@pytest.mark.parametrize("kind", NoiseKind)
def test_noise_has_the_requested_size(kind: NoiseKind) -> None:
    """The noise has the requested standard deviation in nats, and a mean of zero."""
    drawn = NoiseSource(Noise(kind, 0.3)).draw(SHAPE, b"alone")
    assert drawn.shape == SHAPE
    assert np.std(drawn) == pytest.approx(0.3, rel=0.1)
    assert abs(np.mean(drawn)) < 0.05


def test_independent_noise_never_repeats() -> None:
    """Two draws differ even for the same batch."""
    source = NoiseSource(parse("gaussian:0.1"))
    assert not np.array_equal(source.draw(SHAPE, b"alone"), source.draw(SHAPE, b"alone"))


def test_noise_of_a_batch_repeats_for_the_same_batch_only() -> None:
    """The same batch gets the same noise. Another batch, another order or another engine gets other noise."""
    source = NoiseSource(parse("batch:0.1"))
    alone = source.draw(SHAPE, b"alone")
    assert np.array_equal(source.draw(SHAPE, b"alone"), alone)
    assert not np.array_equal(source.draw(SHAPE, b"beside"), alone)
    assert not np.array_equal(NoiseSource(parse("batch:0.1")).draw(SHAPE, b"alone"), alone)


@pytest.mark.parametrize("text", ["gaussian", "gaussian:", "gaussian:0", "gaussian:-1", "loud:1", "batch:nan", ""])
def test_an_invalid_noise_setting_is_refused_in_one_line(text: str) -> None:
    """The message says what to write instead."""
    with pytest.raises(ValueError, match=r"not a noise setting: use gaussian:NATS or batch:NATS"):
        parse(text)


@pytest.mark.parametrize("text", ["gaussian:0.05", "batch:1"])
def test_a_noise_setting_is_printed_as_it_is_parsed(text: str) -> None:
    """A noise setting is printed in the form in which it is parsed."""
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"noise": "quiet:1"}, "--noise 'quiet:1' is not a noise setting"),
        ({"engine": "llamacpp"}, "--engine llamacpp does not support --noise"),
        ({"oracle": "closed-form", "worker": "fingerprint"}, "does not model noise"),
    ],
)
def test_impossible_noise_is_refused_before_any_engine_starts(changes: dict[str, object], says: str) -> None:
    """An impossible combination ends in one line before any engine starts."""
    with pytest.raises(UsageError, match=says):
        check_options(options(**changes))


def test_noise_in_a_managed_vllm_is_accepted() -> None:
    """Noise works with either worker of vLLM."""
    check_options(options())
    check_options(options(worker="fingerprint"))


def test_engines_started_inside_have_the_noise_in_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is in the environment that the report shows, and is removed afterwards."""
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
