"""Searchers: one file each, named as users type it."""
