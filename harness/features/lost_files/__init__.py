"""Files of a tier that are lost while an engine runs."""

USES = ("tiers",)
