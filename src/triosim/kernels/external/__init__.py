"""Readers of external times, one format a file."""
