"""What kernels of serving engines do to states of fixed size: the scan of a prompt, and the update by one token.

A prompt's chunk is convolved and scanned by the kernels that train (:mod:`triosim.kernels.physical.scan`), from the
state of its slot, which is copied out before and back after.  A decode runs two kernels: one shifts the inputs that the
convolution keeps and convolves, one updates the state and reads it.  Each reads and writes what is kept of every
sequence once, and that is what it takes, as few operations as there are for an element.  So do vLLM
(``vllm/model_executor/layers/mamba/mamba_mixer2.py``, ``qwen3_next.py``), SGLang and TensorRT-LLM, whose kernels come
from ``mamba_ssm``, ``causal_conv1d`` and ``fla``.  Constants of elementwise kernels are taken, with the interval of
kernels that were not measured; the update of the delta rule, which was, takes longer (:func:`updating`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.kernels.work.scan import ScanCalls, scans
from triosim.kernels.work.stream import CODE, Stream
from triosim.serving.states import CONVOLVED_BYTES, ServedState

Column = NDArray[np.float64]

UPDATES = "other"
"""Kind of the kernels that decode: elementwise, but not measured."""


DELTA_S, DELTA_FACTOR = 4.7e-6, 1.53
"""Of ``fused_recurrent_gated_delta_rule_fwd``: seconds of any call, and by how much longer it takes than an elementwise
kernel for the same bytes, of which a program moves few at a time.  A line through five of the ten calls of
:data:`validation.data.states.UPDATES` (vLLM's pull request 31722, H200), which is within 2.2 % of the other five."""


def updating(own: ServedState, seconds: Column) -> Column:
    """Seconds of the kernel that updates states, from those of an elementwise one for its bytes."""
    return DELTA_S + DELTA_FACTOR * seconds if own.delta else seconds


def update(own: ServedState, sequences: Column, tensor_parallel: int, state_bytes: float) -> tuple[Stream, Stream]:
    """The kernels of a layer that decodes one token of each sequence: convolution, and state.

    Args:
        own: the layer's.
        sequences: how many, one row per call.
        tensor_parallel: devices that share its heads.
        state_bytes: of an element of the state.
    """
    channels, kept = own.convolved(tensor_parallel), own.kept(tensor_parallel)
    convolved = sequences * (channels + kept) * CONVOLVED_BYTES
    values, state = own.values(tensor_parallel), own.elements(tensor_parallel) * state_bytes
    read = sequences * (state + (channels + own.heads / tensor_parallel) * CONVOLVED_BYTES)
    return _moved(convolved, convolved, UPDATES), _moved(read, sequences * (state + values * CONVOLVED_BYTES), UPDATES)


def scan(
    own: ServedState, tokens: Column, tensor_parallel: int, state_bytes: float, dtype: str
) -> tuple[ScanCalls | Stream, ...]:
    """The kernels of a layer that computes a chunk of one prompt, but for its products and the norm of its result.

    Args:
        own: the layer's.
        tokens: of the chunk, one row per call.
        tensor_parallel: devices that share its heads.
        state_bytes: of an element of the state.
        dtype: element type of the products.
    """
    heads, groups = own.shares(tensor_parallel)
    within = np.minimum(float(own.chunk), np.maximum(tokens, 1.0))
    convolves = 0.0 if own.delta else float(own.window)  # which the scan of Mamba-2 counts itself
    calls = scans(
        1.0, tokens, heads, groups, float(own.state), float(own.size), within, convolves, dtype, delta=own.delta,
        gated=False,
    )  # fmt: skip
    state = np.full(len(calls), own.elements(tensor_parallel) * state_bytes)
    out_and_back = _moved(state, state)
    if not own.delta:
        return calls, out_and_back, out_and_back
    channels = tokens * own.convolved(tensor_parallel) * CONVOLVED_BYTES
    return _moved(channels, channels), calls, out_and_back, out_and_back


def _moved(read: Column, written: Column, kind: str = "elementwise") -> Stream:
    """A kernel that reads and writes so many bytes."""
    ones = np.ones(len(read))
    return Stream(np.full(len(read), CODE[kind], np.int8), read, written, ones, 0.0 * ones, ones)
