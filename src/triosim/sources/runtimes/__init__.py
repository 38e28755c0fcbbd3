"""Measuring single kernels as the runtimes of inference run them: ONNX Runtime, numpy, or one elsewhere.

* ``draws``            sizes of kernels, evenly in the logarithm of their work;
* ``graphs``           small networks, written down;
* ``kernels``          networks of one operator that are worth measuring;
* ``fusion``, ``rules``  operators that a runtime runs as one, found by measuring;
* ``runtime``          what a runtime has to do; ``onnx_runtime`` and ``numpy_runtime`` do it;
* ``bench``            measures on this machine until a budget is used up;
* ``onnx_file``        writes a network as an ONNX file;
* ``exchange``         the same kernels as files to be measured elsewhere, and what came back.

PyTorch's kernels are measured by :mod:`triosim.sources.record.bench`.
"""
