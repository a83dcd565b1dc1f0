"""The exit codes of a run, which `results.json` has too (`exit_code`). 2 is that of wrong words on the command line."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1  # a requirement is violated, or was not shown without being allowed
EXIT_HARNESS = 3  # no verdict on the engine: it did not start, the run was interrupted, or Coldproof failed
EXIT_USAGE = 4  # options that do not fit the engine
EXIT_NOTHING = 5  # no requirement was selected
EXIT_NOT_SHOWN = 6  # too few requirements were shown for a run that allows NOT EXERCISED

CONCLUDED = (EXIT_OK, EXIT_FAILED, EXIT_NOT_SHOWN)  # of a run that came to its verdicts
