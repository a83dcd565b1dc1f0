"""Makes an environment for one release of an engine: this interpreter's packages, behind that release's own.

So a release needs only the space of its own files. Releases that need other versions of what is installed, as vLLM of
another torch, get a folder with them in between (`--packages`), or an interpreter of the user's (`--python`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from coldproof import IMPORT_ROOT
from coldproof.adapters.spec.release_package import ReleasePackage

OWN = "release"  # the folder of the release's own packages in its environment
READY = "coldproof-ready"  # says what is installed, so that an environment that was begun is made again
OURS = "coldproof-environment"  # is in every environment that we began
FIRST = 1  # place in sys.path, behind the script's own folder


class NoEnvironment(Exception):
    """pip could not install a release; the message is the last line that it wrote."""


def prepared(
    package: ReleasePackage, version: str, folder: Path, say: Callable[[str], None], *, packages: Sequence[Path] = ()
) -> Path:
    """Return the interpreter of an environment with one release; make it if it is not there. Raises NoEnvironment.

    `packages`: folders with packages, behind the release's own and in front of this interpreter's.
    """
    python, ready = folder / "bin" / "python", folder / READY
    wanted = f"{package.name}=={version}"
    content = "\n".join([wanted, *map(str, packages)])
    if ready.is_file() and ready.read_text() == content:
        return python
    if folder.exists() and not (folder / OURS).is_file():
        raise NoEnvironment(f"{folder} exists, and Coldproof did not make it")
    say(f"installing {wanted}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / OURS).touch()
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(folder / OWN), wanted]
    done = subprocess.run(
        command if package.dependencies else [*command, "--no-deps"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise NoEnvironment(last_line(done.stderr) or f"pip ended with exit code {done.returncode}")
    front = [str(folder / OWN), *map(str, packages)]
    (site / "a_release.pth").write_text(f"import sys; sys.path[{FIRST}:{FIRST}] = {front!r}\n")
    (site / "b_installed.pth").write_text("".join(f"{place}\n" for place in installed_places()))
    ready.write_text(content)
    return python


def installed_places() -> list[str]:
    """Return the folders of this interpreter's packages, and of Coldproof itself."""
    paths = sysconfig.get_paths()
    return list(dict.fromkeys([IMPORT_ROOT, paths["purelib"], paths["platlib"]]))


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
