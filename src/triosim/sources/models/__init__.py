"""Families of models, one file each; see :mod:`triosim.sources.modelling`."""
