"""A kit for a GPU machine without a network: packed here, carried there in parts, run there in a time that is known.

`pack` writes numbered parts and a driver, gpu_kit.pyz, that needs Python alone. On the target, `gpu_kit.pyz run` puts
them together, installs into a folder of its own and runs a plan of timed steps. `gpu_kit.pyz inventory` prints what a
target has, as JSON for `pack --has`.

Exit code: 0 packed, or every step is done; 1 a step is not; 3 the kit cannot be packed or installed; 4 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kit_inventory import inventory
from kit_pack import Order, pack
from kit_parts import PartsError
from kit_plan import PlanError
from kit_run import InstallError, Run, run
from kit_wheels import Target, WheelsError, target_of

EXIT_BROKEN, EXIT_USAGE = 3, 4
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def main(words: Sequence[str]) -> int:
    """Do what the words ask for, and return the exit code."""
    options = parser().parse_args(words)
    try:
        code: int = options.do(options)
        return code
    except PlanError as problem:
        say(str(problem))
        return EXIT_USAGE
    except (PartsError, WheelsError, InstallError, OSError) as problem:
        say(str(problem))
        return EXIT_BROKEN


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = Parser(prog="gpu_kit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("pack", help="write the parts and the driver")
    one.add_argument("out", type=Path, metavar="OUT")
    one.add_argument("--engine", required=True, metavar="NAME[==VERSION]", help="the plan is ci/plans/NAME.toml")
    one.add_argument("--plan", type=Path, metavar="FILE", help="another plan")
    one.add_argument("--part-size", type=size, default=size("45M"), metavar="SIZE", help="of a part (default: 45M)")
    one.add_argument("--python", metavar="VERSION", help="of the target (default: the inventory's, else 3.12)")
    one.add_argument("--has", type=Path, metavar="FILE", help="what the target has: what `inventory` printed there")
    one.add_argument("--lacks", metavar="NAME,... or FILE", help="bring these of what is required, and no others")
    one.add_argument("--wheels", type=Path, nargs="+", default=[], metavar="DIR", help="look for wheels here as well")
    one.add_argument("--preset", type=int, default=6, choices=range(10), metavar="0-9", help="of xz (default: 6)")
    one.set_defaults(do=do_pack)
    one = commands.add_parser("run", help="run the plan on this machine")
    one.add_argument("parts", type=Path, nargs="+", metavar="PART")
    one.add_argument("--out", type=Path, required=True, help="folder for the results: at most eight files")
    one.add_argument("--work", type=Path, metavar="DIR", help="folder to install in and work in (default: a new one)")
    one.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    one.add_argument("--plan", type=Path, metavar="FILE", help="another plan than the packed one")
    one.add_argument("--only", type=names, default=(), metavar="STEP,...", help="run these steps of the plan")
    one.add_argument("--budget", type=float, metavar="SECONDS", help="for everything (default: the plan's)")
    one.add_argument(
        "--stretch",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="multiply all times, to rehearse on a slow machine",
    )
    one.set_defaults(do=do_run)
    one = commands.add_parser("inventory", help="print what this machine has, as JSON")
    one.set_defaults(do=do_inventory)
    return top


class Parser(argparse.ArgumentParser):
    """A parser whose errors have the exit code for wrong usage."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def size(text: str) -> int:
    """Return a number of bytes. Raises ArgumentTypeError."""
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: use for example 45M")
    return int(found[1]) * UNITS[found[2]]


def names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas."""
    return tuple(filter(None, text.split(",")))


STARTED = time.monotonic()


def say(line: str) -> None:
    """Print a line with the seconds since the start, at once."""
    sys.stderr.write(f"[{time.monotonic() - STARTED:6.1f} s] {line}\n")
    sys.stderr.flush()


def do_pack(options: argparse.Namespace) -> int:
    """Pack, and list what was written."""
    target = target_of(json.loads(options.has.read_text())) if options.has else Target()
    if options.python:
        target = Target(python=options.python, machine=target.machine, glibc=target.glibc, packages=target.packages)
    lacks = None
    if options.lacks:
        path = Path(options.lacks)
        text = path.read_text() if path.is_file() else options.lacks
        lacks = frozenset(filter(None, re.split(r"[,\s]+", text)))
    order = Order(
        out=options.out,
        engine=options.engine,
        plan=options.plan,
        target=target,
        lacks=lacks,
        near=tuple(options.wheels),
        part_bytes=options.part_size,
        preset=options.preset,
    )
    for path in pack(order, say):
        say(f"{path}: {path.stat().st_size:,} bytes")
    return 0


def do_run(options: argparse.Namespace) -> int:
    """Run the plan."""
    work = options.work or Path(tempfile.mkdtemp(prefix="gpu-kit-"))
    return run(
        Run(
            parts=tuple(options.parts),
            out=options.out.resolve(),
            work=work.resolve(),
            device=options.device,
            plan=options.plan,
            only=options.only,
            budget=options.budget,
            stretch=options.stretch,
        ),
        say,
    )


def do_inventory(_: argparse.Namespace) -> int:
    """Print what this machine has."""
    sys.stdout.write(json.dumps(inventory(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
