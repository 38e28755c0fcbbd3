"""The interface of step times: how long a replica takes for one step of its batch.

Only what matters to the time is passed on: how many tokens are computed, the chunks of prompts with what each found in
the cache, and the decodes by their number and the sum of their lengths.  Unequal lengths within a batch of decodes
change its time by a few per cent of their spread, so their mean stands for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from triosim.kernels.estimate import Z90


class StepShape(NamedTuple):
    """What a step computes.

    Attributes:
        tokens: of all requests together.
        chunks: of requests that do not decode: tokens computed, and tokens computed before.
        decodes: requests that compute one token of their output.
        context: keys that the decodes attend to, each its own token included, summed.
        sampled: positions at which the step gives a token, drafts included.
        drafted: of the decodes, how many verify at least one draft, at least two, and so on; drafts are among the
            tokens.
        adapters: different ones that its requests ask for.
    """

    tokens: int
    chunks: tuple[tuple[int, int], ...]
    decodes: int
    context: int
    sampled: int
    drafted: tuple[int, ...] = ()
    adapters: int = 0


class StepHost(NamedTuple):
    """What the host of an engine does for each step: schedule it, prepare its inputs, take its tokens.

    Attributes:
        step_s: seconds for any step.
        sequence_s: seconds more for each sequence in it.
        hidden: whether that passes while the device runs the step before, so that a step takes the longer of the two;
            else the device waits for it.
        gap_s: seconds between two steps that nothing hides in either case.
        launch_s: seconds to launch one kernel of a step that holds prompts, where neither a captured graph nor compiled
            code does; a step takes no less than all of them.  0 where these do.
    """

    step_s: float = 0.0
    sequence_s: float = 0.0
    hidden: bool = True
    gap_s: float = 0.0
    launch_s: float = 0.0

    def off(self, z: float) -> StepHost:
        """A host that is off by so many standard deviations (:data:`HOST_SPREAD`)."""
        if not z:
            return self
        step, sequence, hidden, gap, launch = self
        factor = host_factor(z)
        return StepHost(step * factor, sequence * factor, hidden, gap * factor, launch * factor)


NO_HOST = StepHost()

HOST_SPREAD = 1.5
"""Factor within which, either way, nine of ten hosts lie.  A kernel's launch took 38, 46.5 and 53 us on three of them
(:data:`EAGER_ISSUE_S`), whose processors are not those of others."""

EAGER_ISSUE_S = 46.5e-6
"""Seconds that such an engine takes to launch one kernel of a large model (``--host large-model``; trainings have
another of that name): BLOOM-176B's 13 launches a layer on a DGX A100, batch 1, where the host binds
(``validation/fit/eager_engine.py``).

Engines of today launch the kernels of prompts one by one from Python too, unless they are vLLM's, which are compiled.
Two say what that takes, divided by the kernels counted here: SGLang with DeepSeek-V3 on 8 devices, 82.6 ms for one
token where a captured graph took 23.1 (its pull request 12160), 53 us; sfllm, of layers alike, with Qwen3-4B, 16.4 ms
for 513 tokens as for 129 (its pull request 46), 38 us.  So the same is taken of them."""

VLLM_WAITING = StepHost(1.0e-3, 40e-6, hidden=False)
VLLM_AHEAD = StepHost(gap_s=0.3e-3)
SGLANG = StepHost(0.2e-3, 15e-6, hidden=False, launch_s=EAGER_ISSUE_S)
TRTLLM = StepHost(gap_s=0.7e-3, launch_s=EAGER_ISSUE_S)
"""What engines of 2025 and 2026 leave between the graphs of two steps: sampling, the inputs of the next step, and what
nothing hides of scheduling.  Chosen by ``validation/fit/engine_host.py`` on the even rows of closed loops on H100: vLLM
0.12 (Qwen3-32B on 2 to 8 devices), which schedules when a step is over, vLLM 0.18 (GPT-OSS), which schedules ahead,
SGLang (Qwen3-32B on 1 to 8) and TensorRT-LLM 1.0 (Llama-3.1-8B on 1 to 8)."""

FRONT_S = 5e-3
"""Seconds that a server of today adds to a first token before and behind its engine.  Chosen on the even rows of closed
loops on H100 (``python -m validation.judge.serving silicon``), of 0 to 8 ms.  Servers differ much in it
(:mod:`triosim.serving.software`)."""

EAGER_ALONE = StepHost(1.28e-3, 0.106e-3, hidden=False)
EAGER_SHARED = StepHost(3.84e-3, 0.216e-3, hidden=False)
"""Of an engine of 2023 that launches its kernels from Python, on one device, and on several whose workers are processes
of Ray: the line through 8 and 64 sequences of the medians that Vidur publishes of an A100 (its repository,
``data/profiling/a100/cpu_overheads.csv``; schedule, inputs, sampler, outputs and, between processes, messages).  Alone
Llama-2-7B: 2.13 and 8.05 ms; shared Llama-2-70B on four: 5.58 and 17.70 ms."""

VLLM_V0 = EAGER_ALONE._replace(launch_s=EAGER_ISSUE_S)
"""Of vLLM before its version 1, whose decodes run in graphs: the host of 2023 prepares and ends steps as before, and
launches the kernels of prompts one by one.  Nothing is chosen for it."""

EAGER_FRONT_S = 19.3e-3
"""Seconds that such an engine's server adds to a first token, as ``FRONT_S``: what prompts of BLOOM-176B of 128 and 256
tokens lack on a DGX A100 (``validation/fit/eager_front.py``)."""


def host_factor(z: float) -> float:
    """By what a host is off whose error is so many standard deviations."""
    return float(HOST_SPREAD ** (z / Z90))


def eager_host(devices: int) -> StepHost:
    """Of an engine that launches its kernels from Python, on so many devices."""
    return EAGER_ALONE if devices == 1 else EAGER_SHARED


class StepTimes(ABC):
    """Prices the steps of a replica of one model on given devices.

    Attributes:
        stages: pipeline stages that a step goes through.
    """

    stages: int = 1

    def padded(self, tokens: int) -> int:
        """Tokens that a step of so many computes: more where it runs in a captured graph."""
        return tokens

    def computed(self, step: StepShape) -> int:
        """Tokens that a step computes, those that fill its graph too."""
        return self.padded(step.tokens)

    @abstractmethod
    def ticks(self, step: StepShape, stage: int) -> int:
        """Picoseconds that a pipeline stage is busy with a step, sending it on included; at least 1."""

    def after(self, step: StepShape, before: int) -> int:
        """As :meth:`ticks`, where the host has launched kernels of the step for so many picoseconds already, while the
        device ran the one before."""
        return self.ticks(step, 0)

    def decodes(self, count: int, context: int, most: int, before: int) -> list[int]:
        """Picoseconds of steps on one stage, one after another, in which the same requests decode.

        Args:
            count: requests.
            context: keys that they attend to in the first step; ``count`` more in each that follows.
            most: steps.
            before: ticks; all steps together take fewer.
        """
        out: list[int] = []
        took = 0
        while len(out) < most:
            ticks = self.ticks(StepShape(count, (), count, context, count), 0)
            took += ticks
            if took >= before:
                break
            out.append(ticks)
            context += count
        return out
