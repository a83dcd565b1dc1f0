"""The command `coldproof`, one file for each kind of subcommand. No other room has argparse, stdout or exit codes."""
