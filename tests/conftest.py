"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import sys

from hypothesis import HealthCheck, settings

from tests.exploring import EXPLORES, examples

# Tests run side by side, and their arrays are small: threads of one operation would wait for each other.  This comes
# before anything imports NumPy or PyTorch, which look once.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Containers often ask Python to keep nothing.  Then each process would compile all files anew: the tests, whose
# assertions are rewritten, and the program in every command that a test starts.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No test measures how long an example takes, as the machine may be busy.  The same examples are tried in every run, so
# that a change is refused for what it does and for nothing else; TRIOSIM_EXPLORE=1 (`make explore`, and once a night in
# the workflow) draws them anew and three times as many, and a failure prints what repeats it.
settings.register_profile(
    "triosim",
    max_examples=examples(100),
    derandomize=not EXPLORES,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("triosim")


def pytest_collection_finish() -> None:
    """What all tests share lives to the end: it need not be looked through each time that memory is tidied."""
    gc.collect()
    gc.freeze()
