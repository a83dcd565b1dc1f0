"""Sessions whose turns one request continues."""

USES = ("salts",)
