"""Turns of a pipeline that repeat are left out, as far as there are any."""

from __future__ import annotations

import pytest

import triosim


def test_turns_of_many_chunks_are_looked_at_as_far_as_there_are_any() -> None:
    """The engine looked for several periods behind the last turn here; ``native/sanitize.py`` sees when it does."""
    workload = triosim.model("llama-3.2-1b", sequence_length=4096)
    system = triosim.system("dgx-h100", nodes=2)
    plan = triosim.Plan(
        dp=1, tp=8, pp=2, parallelism=("sequence",), schedule="interleaved-1f1b", schedule_options={"chunks": 8},
        micro_batches=16, global_batch_size=32,
    )  # fmt: skip
    (outcome,) = triosim.sweep(workload, system, [plan])
    assert outcome.figures is not None
    whole = triosim.simulate(workload, system, plan)
    assert outcome.figures.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-3)
