"""All engine-specific code; imports only itself."""
