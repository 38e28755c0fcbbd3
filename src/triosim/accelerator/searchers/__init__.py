"""Ways to look for mappings, one file each; see :class:`triosim.accelerator.mapper.Searcher`."""
