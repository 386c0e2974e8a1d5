"""Backfill: a table in, the same table enriched out, whatever happens meanwhile."""
