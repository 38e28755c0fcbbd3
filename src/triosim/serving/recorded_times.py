"""Step times that were measured, from a folder: layers that a profiler of vLLM timed, or Vidur's profiles as they are.

Which of the two it is, its files say: ``dense.csv``, ``attention.csv`` and ``per_sequence.csv``
(:mod:`triosim.serving.layer_profiles`), or ``mlp.csv`` and ``attention.csv``, with ``all_reduce.csv`` and
``send_recv.csv`` of the network where several devices share layers or stages follow each other
(:mod:`triosim.serving.vidur_times`).
"""

from __future__ import annotations

from pathlib import Path

from triosim.core.errors import InputError, no_such_file
from triosim.serving.layer_profiles import read_profiles
from triosim.serving.model import ServedModel
from triosim.serving.step_times import StepTimes
from triosim.serving.vidur_times import ModelShape, of_profiles

NETWORK = ("all_reduce.csv", "send_recv.csv")
"""Of Vidur's profiles, those that not everybody needs."""


def recorded_times(
    folder: Path, model: ServedModel, tensor_parallel: int = 1, stages: int = 1, host_s: float = 0.0
) -> StepTimes:
    """Step times of a replica from the measured layers of its model.

    Args:
        folder: that holds the files.
        model: whose layers were measured.
        tensor_parallel: devices that share a layer; layers that a profiler timed are taken to be theirs.
        stages: of the pipeline.
        host_s: seconds of the host in a step that nothing hides; of Vidur's profiles there are none.

    Raises:
        InputError: there is no such folder, it holds neither kind of files, one of them is broken, or they do not go
            with the model.
    """
    if not folder.is_dir():
        raise InputError(f"--step-times {no_such_file(folder)} (give a folder of profiles)")
    model.alike("--step-times")
    if (folder / "dense.csv").is_file():
        if stages > 1:
            raise InputError(
                f"--step-times {folder}: it says nothing of sending to the next stage: leave --pp out, or give Vidur's "
                "profiles"
            )
        return read_profiles(folder, model.layers, host_s)
    if (folder / "mlp.csv").is_file() and not host_s:
        heads, _ = model.cached
        shape = ModelShape(model.layers, model.heads, int(heads), model.width, tensor_parallel)
        reduce, send = (path if path.is_file() else None for path in map(folder.joinpath, NETWORK))
        return of_profiles(
            folder / "mlp.csv", folder / "attention.csv", shape, all_reduce=reduce, send_recv=send, stages=stages
        )
    if host_s:
        raise InputError("--host-time is not part of Vidur's step times: leave it out")
    raise InputError(
        f"--step-times {folder}: it has neither dense.csv (layers that a profiler of vLLM timed) nor mlp.csv (Vidur's "
        "profiles): give a folder with either"
    )
