"""Pages and files rendered from stored results; imports only itself, talks to no engine."""
