"""LMDeploy: attached servers."""
