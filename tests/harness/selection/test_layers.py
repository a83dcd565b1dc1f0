"""The options of a run decide which layers it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.declared_requirements import declared_requirements

from coldproof.adapters.registry import ENGINES, layer_of
from coldproof.harness.options import Options, UsageError
from coldproof.harness.selection.layers import chosen_layers, is_covered, joined_layers, layers_of, use_layers
from coldproof.harness.selection.select import selected_cell_names

GROUND, ADAPTERS = (declared_requirements()[name] for name in ("GROUND-1", "LORA-1"))
DEFAULTS = {"--worker": "model", "--profile": "smoke", "--joined": ""}


def config(*words: str, processes: int | None = None, **options: str) -> pytest.Config:
    """Return the pytest configuration after a command line. Names in `options` have underscores for dashes."""
    given = {**DEFAULTS, **{f"--{name.replace('_', '-')}": value for name, value in options.items()}}
    option = SimpleNamespace(numprocesses=processes, engine=None, worker="model", engine_url=given.get("--engine-url"))
    made = SimpleNamespace(
        getoption=given.get, option=option, stash=pytest.Stash(), invocation_params=SimpleNamespace(args=words)
    )
    return cast(pytest.Config, made)


def names(made: pytest.Config) -> list[str]:
    """Return the names of the layers of a run."""
    return [layer.name for layer in chosen_layers(made)]


def test_the_default_engine_has_all_of_its_layers() -> None:
    """The exact layer comes first, because it starts soonest."""
    assert names(config()) == ["exact", "model", "server"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"engine": "vllm"}, ["server"]),
        ({"engine": "vllm-inproc"}, ["model"]),
        ({"engine": "llamacpp"}, ["server"]),
        ({"engine": "openvino"}, ["model"]),
        ({"engine_url": "http://127.0.0.1:1"}, ["server"]),
        ({"cells": "tight"}, ["server"]),
        ({"shard": "1/2"}, ["server"]),
        ({"profile": "qualify"}, ["server"]),
        ({"profile": "ci"}, ["exact", "model", "server"]),
        ({"layers": "server,exact"}, ["exact", "server"]),
        ({"layers": "model"}, ["model"]),
        ({"engine_url": "http://127.0.0.1:1", "layers": "exact,server"}, ["exact", "server"]),
        ({"engine": "nope"}, []),
    ],
)
def test_an_option_about_one_engine_chooses_one_layer(options: dict[str, str], found: list[str]) -> None:
    """--layers can name more, and an attached server can have the exact layer beside it."""
    assert names(config(**options)) == found


def test_a_worker_or_several_processes_choose_one_layer() -> None:
    """This holds for any worker."""
    assert names(config("suites", "--worker=model")) == ["server"]
    assert names(config("suites", "-n", "2", processes=2)) == ["server"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": "exakt"}, "unknown layer 'exakt': choose one of exact, model, server"),
        ({"engine": "llamacpp", "layers": "exact"}, "unknown layer 'exact': choose one of server"),
        ({"layers": "exact,server", "oracle": "closed-form"}, "--oracle is for one layer"),
        ({"layers": "exact,server", "profile": "soak"}, "--profile soak is for one layer"),
    ],
)
def test_wrong_layers_are_refused(options: dict[str, str], said: str) -> None:
    """The message is one line."""
    with pytest.raises(UsageError, match=said):
        chosen_layers(config(**options))


def test_one_layer_is_an_engine_with_its_worker() -> None:
    """The options no longer name the server of another layer."""
    made: Any = config(layers="exact", engine_url="http://127.0.0.1:1", joined="exact,server")
    use_layers(made)
    assert (made.option.engine, made.option.worker, made.option.engine_url) == ("vllm-inproc", "fingerprint", None)
    assert [layer.name for layer in layers_of(made)] == ["exact"]
    assert [layer.name for layer in joined_layers(made)] == ["exact", "server"]


def test_a_layer_of_several_may_test_a_part_of_the_requirements() -> None:
    """Alone it tests all requirements."""
    joined, alone = config(layers="model", joined="exact,model,server"), config(layers="model")
    for made in (joined, alone):
        use_layers(made)
    assert [is_covered(joined, one) for one in (GROUND, ADAPTERS)] == [True, False]
    assert is_covered(alone, ADAPTERS)


def test_a_layer_may_have_cells_of_its_own() -> None:
    """It has them in addition to those of the profile."""
    made: Any = config(layers="model", joined="exact,model,server")
    use_layers(made)
    made.getoption = {**DEFAULTS, "--engine": made.option.engine}.get
    assert selected_cell_names(made) == ("default", "tight", "bfloat16", "images-model", "images-model-tight")
    made.stash = pytest.Stash()
    assert selected_cell_names(made) == ("default", "tight")


def test_a_slower_layer_samples_what_a_faster_one_covers(tmp_path: Any) -> None:
    """The server waives without a replay only in the smallest profile."""
    exact, model, server = ENGINES["vllm"].layers
    numeric = Options(engine="vllm-inproc", report_dir=tmp_path, layers=(model,), joined=(exact, model, server))
    assert numeric.is_sample(GROUND.suits)
    assert not numeric.waives_at_once(GROUND.suits)
    assert not msgspec.structs.replace(numeric, joined=(model, server)).is_sample(GROUND.suits)
    whole = Options(engine="vllm", report_dir=tmp_path, layers=(server,), joined=(exact, model, server))
    partly = Options(engine="vllm", report_dir=tmp_path, layers=(server,), joined=(model, server), profile="ci")
    alone = Options(engine="vllm", report_dir=tmp_path, layers=(server,))
    assert [one.is_sample(ADAPTERS.suits) for one in (whole, partly, alone)] == [True, False, False]
    assert [one.waives_at_once(GROUND.suits) for one in (whole, partly, alone)] == [True, False, False]


def test_every_engine_names_its_layer() -> None:
    """With the fingerprint worker in process, the layer is the exact one."""
    assert layer_of("vllm", "model") == "server"
    assert layer_of("vllm-inproc", "model") == "model"
    assert layer_of("vllm-inproc", "fingerprint") == "exact"
    assert layer_of("sglang", "model") == "server"
    assert layer_of("nope", "model") == ""
