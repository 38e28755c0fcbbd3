"""What to record on a machine with a GPU, for predictions and judgements elsewhere: ``triosim validate --record DIR``.

Ceilings of the device, sweeps of kernels, training steps of the TrioSim paper's networks and of language models with
their traces, and what the host costs.  How, file by file:

* ``parts``     what there is to record, in order of worth;
* ``recorder``  goes through the parts, skips what a folder has already, stops in time;
* ``timing``    takes the time of one call on the device;
* ``sweeps``    matrix products, convolutions, attention, norms, elementwise, optimizers; ceilings of the device;
* ``steps``     whole training steps: traces, times without instruments, memory;
* ``host``      what issuing costs: eager, compiled, in a CUDA graph;
* ``vision``, ``language``  the networks.
"""
