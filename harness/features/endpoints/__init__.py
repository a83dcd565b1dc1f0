"""The routes at which an engine takes requests: chats, completions, token ids, messages."""

USES = ("salts",)
