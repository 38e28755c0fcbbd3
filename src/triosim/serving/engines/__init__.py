"""Scheduling policies of serving engines, one file each."""
