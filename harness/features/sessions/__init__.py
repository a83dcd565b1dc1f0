"""Sessions whose turns one request continues."""
