"""All engines, by their names on the command line. No other file names an engine.

The registry imports every module that declares engines: as `ENGINE`, or as a tuple `ENGINES`. Other distributions name
such modules in their entry points.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType

from coldproof import adapters as package
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.cell import Cell, EngineVariant
from coldproof.adapters.spec.engine_spec import ATTACH, MODEL, EngineSpec, FaultCatalogue
from coldproof.adapters.spec.fault import Fault
from coldproof.adapters.spec.reproduction import Reproduction
from coldproof.adapters.spec.weight_promise import UNDOCUMENTED, WeightPromise

ATTACHED = Cell(name="attached", about="the server as its owner configured it")

SPEC = "spec"  # the name of the module that declares an engine, in the engine's folder
GROUP = "coldproof.engines"  # entry points of other distributions


def own_modules() -> Iterator[ModuleType]:
    """Import every module of Coldproof that declares engines."""
    for found in pkgutil.iter_modules(package.__path__):
        name = f"{package.__name__}.{found.name}.{SPEC}"
        if found.ispkg and importlib.util.find_spec(name) is not None:
            yield importlib.import_module(name)


def engines_of(modules: Iterable[ModuleType]) -> dict[str, EngineSpec]:
    """Return the engines of these modules by name. The default engine comes first, and its cells with it."""
    declared = [(module.ENGINE,) if hasattr(module, "ENGINE") else getattr(module, "ENGINES", ()) for module in modules]
    declared.sort(key=lambda specs: not any(MODEL in spec.default_for for spec in specs))
    return {spec.name: spec for specs in declared for spec in specs}


def discovered() -> dict[str, EngineSpec]:
    """Return all engines by name: Coldproof's and those of other distributions."""
    others = importlib.metadata.entry_points(group=GROUP)
    return engines_of([*own_modules(), *(importlib.import_module(entry.module) for entry in others)])


ENGINES: dict[str, EngineSpec] = discovered()
# A release of Coldproof is frozen with these cells. They do not depend on which other distributions are installed.
OWN_CELLS: dict[str, Cell] = {cell.name: cell for spec in engines_of(own_modules()).values() for cell in spec.cells}


def default_engine(worker: str = MODEL, *, attached: bool = False) -> EngineSpec:
    """Return the default engine for a worker or, with `attached`, for attached servers."""
    wanted = ATTACH if attached else worker
    first = next(iter(ENGINES.values()))
    return next((spec for spec in ENGINES.values() if wanted in spec.default_for), first)


def measured_engine() -> EngineSpec:
    """Return the engine for fault injection: the first engine that has faults and starts quickly."""
    return next(spec for spec in ENGINES.values() if spec.faults is not None and spec.quick)


def layer_of(engine: str, worker: str) -> str:
    """Return the name of the layer that an engine with this worker is."""
    declared = (layer for spec in ENGINES.values() for layer in spec.layers if layer.engine == engine)
    own = ENGINES[engine].layer if engine in ENGINES else ""
    return next((layer.name for layer in declared if layer.worker == worker), own)


def attached(engine: str, url: str | None) -> EngineSpec | None:
    """Return the specification of an attached engine; None for an engine that Coldproof starts."""
    spec = ENGINES.get(engine)
    if spec is None or spec.attach is None:
        return None
    return spec if url is not None or spec.start is None else None


def started() -> tuple[str, ...]:
    """Return the names of the engines that Coldproof starts."""
    return tuple(name for name, spec in ENGINES.items() if spec.start is not None)


def variants_of(cell: Cell, shape: EngineShape, arguments: tuple[str, ...]) -> Iterator[EngineVariant]:
    """Return the control variants of a cell. `arguments`: the user's arguments, which follow the cell's own."""
    spec = ENGINES.get(cell.engine)
    return iter(()) if spec is None else spec.variants(cell, shape, arguments)


def reproduction_of(engine: str) -> Reproduction:
    """Return how a script uses an engine: its own reproduction, or else the default engine's."""
    own = ENGINES[engine].reproduction if engine in ENGINES else None
    found = own or default_engine().reproduction
    if found is None:
        raise LookupError(f"neither {engine} nor the default engine has a reproduction")
    return found


def title_of(engine: str) -> str:
    """Return the name of an engine in reports."""
    return (ENGINES[engine].title if engine in ENGINES else "") or engine


def promise_of(engine: str, config: Mapping[str, str]) -> WeightPromise:
    """Return what an engine promises after an update of its weights. `config`: its configuration.

    An adapter for servers of several engines documents nothing itself. The engine that recognises the server does.
    """
    own = ENGINES[engine].weights
    if own is not UNDOCUMENTED:
        return own
    return next((spec.weights for spec in ENGINES.values() if spec.recognises(config)), own)


def served_engine(engine: str, config: Mapping[str, str]) -> EngineSpec:
    """Return the engine of an attached server: the one that recognises the server, if its adapter is for any server."""
    own = ENGINES[engine]
    return own if own.switches else next((spec for spec in ENGINES.values() if spec.recognises(config)), own)


def cell_type(engine: str) -> type[Cell]:
    """Return the class of an engine's cells. Engines with flags of their own have a subclass of Cell."""
    spec = ENGINES.get(engine)
    return type(spec.cells[0]) if spec is not None and spec.cells else Cell


def fault_of(engine: str, name: str) -> Fault | None:
    """Return an engine's fault by its name, or None."""
    faults = ENGINES[engine].faults
    return None if faults is None else faults().faults.get(name)


def catalogue(engine: str) -> FaultCatalogue:
    """Return the faults of an engine. Raises LookupError if it has none."""
    faults = ENGINES[engine].faults
    if faults is None:
        raise LookupError(f"fault injection is not supported for {engine}")
    return faults()


def fault_listing() -> str:
    """Return the list of all faults of all engines as text."""
    catalogues = dict.fromkeys(spec.faults for spec in ENGINES.values() if spec.faults is not None)
    return "\n".join(faults().listing() for faults in catalogues)


class Cells(dict[str, Cell]):
    """The cells of all engines by name. A crossed cell is made when it is asked for, and is not listed."""

    def __missing__(self, name: str) -> Cell:
        """Return the crossed cell with this name. Raises KeyError if there is none."""
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str, default: Cell | None = None) -> Cell | None:  # type: ignore[override]  # one default
        """Return the cell with this name."""
        crossings = (spec.crossings for spec in ENGINES.values() if spec.crossings is not None)
        listed = super().get(name)
        return listed or next(filter(None, (one.named(name) for one in crossings)), default)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None


CELLS = Cells({cell.name: cell for spec in ENGINES.values() for cell in spec.cells})


def plain_cell(engine: str) -> Cell:
    """Return an engine's cell for the cross-engine oracle: the first cell with adapters, or else the first cell."""
    cells = ENGINES[engine].cells
    return next((cell for cell in cells if cell.suits((CellTrait.ADAPTERS, CellTrait.ADAPTER_CHOICE))), cells[0])
