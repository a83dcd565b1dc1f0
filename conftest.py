"""Loads the plugin; everything else is in `coldproof.harness.session.plugin`."""

pytest_plugins = ["coldproof.harness.session.plugin"]
