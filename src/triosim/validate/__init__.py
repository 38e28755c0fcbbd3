"""Predictions against real runs on the machine at hand, with nothing but PyTorch.

:func:`triosim.validate.validation.validate` records a model's step in one process, measures how the machine's processes
talk, predicts what a parallel job of several processes takes, runs that job, and compares.  How, file by file:

* ``ranks``       what runs in the processes (the only part that imports PyTorch);
* ``launch``      starts them, watches them, and leaves none behind;
* ``measured``    what they bring back, as data;
* ``prediction``  from that to predictions, through :func:`triosim.simulate`;
* ``comparison``  predicted beside measured: errors, intervals, medians, JSON;
* ``plot``        the same as a picture;
* ``validation``  the road through all of these;
* ``kit``         what to record on a machine with a GPU for those who have none.
"""
