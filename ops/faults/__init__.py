"""Faults and their verdict: what `make chaos` and the nemesis share."""
