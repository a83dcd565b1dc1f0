"""Chooses the layers of a run: the ways in which the same requirements are run on an engine."""

from __future__ import annotations

import pytest

from coldproof.adapters.registry import ENGINES, default_engine
from coldproof.adapters.spec.layer import EXACT_LAYER, Layer
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.options import QUALIFY, SOAK, UsageError
from coldproof.harness.selection.select import LAYER_CELLS, check_choice, engine_name, is_fingerprint, listed_names

LAYERS = pytest.StashKey[tuple[Layer, ...]]()  # of this process
JOINED = pytest.StashKey[tuple[Layer, ...]]()  # of the run of which this process is one layer
# Options that are about one engine with one worker. With any of them, a run has one layer unless --layers names more.
NEVER_OF_SEVERAL = ("--cells", "--oracle", "--replay", "--shard", "--noise", "--calibration")
OF_ONE_LAYER = ("--engine", "--engine-url", *NEVER_OF_SEVERAL)


def offered_layers(config: pytest.Config) -> tuple[Layer, ...]:
    """Return the layers that the engine can have; empty for an engine that does not exist.

    A server that was attached to can have the exact layer of the default engine beside it.
    """
    spec = ENGINES.get(engine_name(config))
    if spec is None:
        return ()
    beside = default_engine().more_layers if spec.attach is not None and spec.start is None else ()
    return (*(layer for layer in beside if layer.name == EXACT_LAYER), *spec.layers)


def chosen_layers(config: pytest.Config) -> tuple[Layer, ...]:
    """Return the layers of the run: those in --layers, or all that the default engine has, or else its own one.

    Raises UsageError for a layer that the engine does not have.
    """
    offered, names = offered_layers(config), config.getoption("--layers")
    if names is None or not offered:
        return offered[-1:] if names_one_layer(config) else offered
    named = listed_names("--layers", names)
    for name in named:
        check_choice("layer", name, [layer.name for layer in offered])
    layers = tuple(layer for layer in offered if layer.name in named)
    if len(layers) > 1:
        check_several(config)
    return layers


def names_one_layer(config: pytest.Config) -> bool:
    """Return whether an option asks for one engine with one worker, or for one part of a run."""
    given = any(config.getoption(name) is not None for name in OF_ONE_LAYER)
    worker = any(str(word).startswith("--worker") for word in config.invocation_params.args)
    return given or worker or in_parts(config) or config.getoption("--profile") in (QUALIFY, SOAK)


def check_several(config: pytest.Config) -> None:
    """Raise UsageError for an option that a run of several layers cannot have."""
    for name in NEVER_OF_SEVERAL:
        if config.getoption(name) is not None:
            raise UsageError(f"{name} is for one layer: add --layers with one name")
    if in_parts(config):
        raise UsageError("-n is for one layer: several layers run at once already; add --layers with one name")
    if is_fingerprint(config):
        raise UsageError("--worker is for one layer: the layer 'exact' has the fingerprint worker; remove --worker")
    if config.getoption("--profile") in (QUALIFY, SOAK):
        raise UsageError(f"--profile {config.getoption('--profile')} is for one layer: add --layers with one name")


def in_parts(config: pytest.Config) -> bool:
    """Return whether xdist divides the tests among processes."""
    return bool(getattr(config.option, "numprocesses", None))


def use_layers(config: pytest.Config) -> None:
    """Choose the layers. A single one sets engine and worker, as --engine and --worker do. Raises UsageError."""
    layers = config.stash[LAYERS] = chosen_layers(config)
    of_run = config.getoption("--joined").split(",")
    config.stash[JOINED] = tuple(layer for layer in offered_layers(config) if layer.name in of_run)
    if len(layers) == 1 and config.getoption("--layers") is not None:
        config.option.engine, config.option.worker = layers[0].engine, layers[0].worker
        config.stash[LAYER_CELLS] = layers[0].cells
        if ENGINES[layers[0].engine].attach is None:
            config.option.engine_url = None  # the server is another layer's


def layers_of(config: pytest.Config) -> tuple[Layer, ...]:
    """Return the chosen layers; empty in xdist's workers."""
    return config.stash.get(LAYERS, ())


def joined_layers(config: pytest.Config) -> tuple[Layer, ...]:
    """Return all layers of the run of which this process is one; empty for a run of its own."""
    return config.stash.get(JOINED, ())


def is_covered(config: pytest.Config, requirement: Requirement) -> bool:
    """Return whether this process tests a requirement: not every layer of a run of several has to."""
    return not joined_layers(config) or any(layer.suits(requirement.suits) for layer in layers_of(config))
