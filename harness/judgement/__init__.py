"""History + cold answers -> findings, evidence, verdict; pure, needs no engine."""
