"""vLLM's engine before version 1, as releases 0.4 to 0.7 ran it: a step is either whole prompts or decodes.

After ``_schedule_default`` of ``vllm/core/scheduler.py`` of those releases, without chunked prefill.  Steps are as the
published engine's (:mod:`triosim.serving.engines.vllm_2023`), but prompts are not padded.  Decodes run in captured
graphs; prompts are launched kernel by kernel, as nothing is compiled, and kernels of their own cast to 8 bits.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.engines.vllm_2023 import Vllm2023
from triosim.serving.step_times import FRONT_S, VLLM_V0, StepHost


@registered
@dataclass
class VllmV0(Vllm2023):
    """As the published engine, with the limits of its later server.

    Attributes:
        max_running: requests that may run at a time (``max_num_seqs``).
        max_tokens: of the prompts of a step together (``max_num_batched_tokens``, by default as many as the model has
            positions).
    """

    max_running: int = 256

    padded: ClassVar[bool] = False
    all_reduce: ClassVar[str] = "custom"
    tuned_tiles: ClassVar[str] = "vllm"
    step_host: ClassVar[StepHost] = VLLM_V0
    front_s: ClassVar[float] = FRONT_S
