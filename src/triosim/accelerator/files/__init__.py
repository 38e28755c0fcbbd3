"""Formats of designs, problems and mappings, one file each; see :mod:`triosim.accelerator.reading`."""
