"""Workloads as plain data: steps, tokens, descriptions, transformations, validity."""
