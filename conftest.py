"""Loads the plugin; everything else is in `harness.plugin`."""

pytest_plugins = ["harness.plugin"]
