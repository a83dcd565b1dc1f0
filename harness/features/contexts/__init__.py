"""Answers that are longer than their context, and clients that cut their history."""
