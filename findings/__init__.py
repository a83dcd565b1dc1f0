"""The findings: a folder for each root cause that Coldproof has found in an engine. docs/findings.md lists them."""
