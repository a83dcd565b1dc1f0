"""Merges the results of a fleet's runs into one report."""
