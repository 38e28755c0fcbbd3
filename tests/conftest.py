"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Tests run side by side, and their arrays are small: threads of one operation would wait for each other.  This comes
# before anything imports NumPy or PyTorch, which look once.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# No test measures how long an example takes, as the machine may be busy.  Examples are drawn anew in every run, also in
# continuous integration, and a failure prints what repeats it.  A clean clone keeps no examples of earlier runs.
settings.register_profile(
    "triosim",
    derandomize=False,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    **({"database": None} if os.environ.get("CI") else {}),
)
settings.load_profile("triosim")
