"""The command `coldproof`, one file for each subcommand. No other room has argparse, stdout or exit codes."""
