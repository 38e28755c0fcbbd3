"""Damaged inputs, odd plans and odd graphs, as many as wanted; see :mod:`tests.fuzz.__main__`."""
