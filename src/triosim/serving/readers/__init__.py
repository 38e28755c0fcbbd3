"""Readers of request files, one file each."""
