"""What the user sees of a prediction.

* :mod:`triosim.report.terminal` - a summary that is read in ten seconds.
* :mod:`triosim.report.html` - one page that opens offline, to look around in.
* :mod:`triosim.report.chrome` - a trace for Perfetto, HTA, TraceLens and everything else that reads PyTorch's traces.

The JSON for programs is :meth:`triosim.prediction.result.Result.to_json`.
"""
