"""The command `coldproof`, which is `python -m coldproof` too.

Invariant: nothing of the working folder can be imported, neither here nor in a process that this one starts, unless
PYTHONPATH names the folder. That holds before any other module is imported, so this one imports only what Python itself
has imported at its start.
"""

import os
import sys


def main() -> int:
    """Run the command and return its exit code."""
    leave_out_working_folder()
    from coldproof.harness.cli.main import main as command

    return command()


def leave_out_working_folder() -> None:
    """Remove the working folder from the import path, here and for the processes that this one starts.

    `python -m` puts it there, and so does an empty entry of PYTHONPATH.
    """
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if "PYTHONPATH" in os.environ:
        os.environ["PYTHONPATH"] = os.pathsep.join(named)
    os.environ["PYTHONSAFEPATH"] = "1"
    here = os.path.realpath(os.curdir)
    if here in map(os.path.realpath, named):
        return
    library = os.path.realpath(os.path.dirname(os.__file__))
    places = [os.path.realpath(entry) for entry in sys.path]
    front = places.index(library) if library in places else len(places)  # what Python was installed with comes later
    sys.path[:front] = [entry for entry, place in zip(sys.path[:front], places[:front], strict=True) if place != here]


if __name__ == "__main__":
    sys.exit(main())
