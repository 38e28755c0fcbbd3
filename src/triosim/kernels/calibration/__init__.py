"""Calibration: a few measured kernels of one device bring the physical models closer to it.

* ``scalars``  three factors of a class of kernels, within what is plausible;
* ``anchors``  what is left of the error, carried over from the measured kernels that are most alike;
* ``tiles``    which tiles a library has, from the names of its kernels;
* ``fitting``  all of it for one class, with the error on kernels that were not looked at;
* ``samples``  the measured kernels of a trace;
* ``figures``  a processor that the catalog does not know, described by what it was seen to do;
* ``pack``     the file that keeps it;
* ``model``    operator times with it.
"""
