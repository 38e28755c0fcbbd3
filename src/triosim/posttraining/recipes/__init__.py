"""Recipes of post-training, one in each file; see :mod:`triosim.posttraining.recipe`."""
