"""mistral.rs, in a process of its own behind HTTP."""
