"""Finds the cause of a confirmed case while the run goes on: replays it under repairs, in processes of their own."""
