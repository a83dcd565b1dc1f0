"""The frame of every page: templates, escaping, content policy, styles and script."""
