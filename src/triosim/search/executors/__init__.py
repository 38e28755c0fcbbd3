"""Executors, one file each; see :mod:`triosim.search.executor`."""
