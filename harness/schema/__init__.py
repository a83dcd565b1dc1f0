"""Defines results.json, case files, power.json and curve.json, as plain data that every room may import."""
