"""Sharing solvers, one per file."""
