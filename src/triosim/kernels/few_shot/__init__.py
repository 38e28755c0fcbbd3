"""A device from few measurements of whole networks.

Ten to fifty networks have been timed on a device, as a user's program runs them; what any other network of the same
search space takes follows from what its operators, or other devices, took.

* :mod:`~triosim.kernels.few_shot.networks`: what a network is made of, from its name.
* :mod:`~triosim.kernels.few_shot.pool`: other devices, each learned from many networks.
* :mod:`~triosim.kernels.few_shot.device`: the device, and which explanation of its times holds.
* :mod:`~triosim.kernels.few_shot.tables`, :mod:`~triosim.kernels.few_shot.pack`: files.
"""
