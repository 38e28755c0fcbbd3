"""Collective algorithms, one per file."""
