"""Optimizers, one file each; see :mod:`triosim.transform.optimizing`."""
