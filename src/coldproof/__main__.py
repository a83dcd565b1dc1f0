"""`python -m coldproof` is the command `coldproof`."""

import sys

from coldproof.harness.cli.main import main

sys.exit(main())
