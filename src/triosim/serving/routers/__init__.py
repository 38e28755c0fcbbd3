"""Routers, one file each."""
