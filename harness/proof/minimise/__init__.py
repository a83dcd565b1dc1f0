"""Makes a counterexample smaller and simpler."""
