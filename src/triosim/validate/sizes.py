"""Sizes of the networks that a validation runs."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown


@dataclass(frozen=True)
class DecoderSize:
    """A decoder and its batch.

    Attributes:
        layers, width, heads, vocabulary: of the network; four times the width inside a block.
        batch, length: samples of a step and tokens of each.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int


CPU = {
    "gpt-tiny": DecoderSize(2, 128, 4, 1024, 8, 64),
    "gpt-small": DecoderSize(4, 256, 8, 2048, 8, 64),
    "gpt-deep": DecoderSize(8, 192, 6, 1024, 8, 48),
    "gpt-wide": DecoderSize(2, 512, 8, 4096, 8, 32),
}
"""For processes with one thread each: steps of 50 to 300 ms."""

GPU = {
    "gpt-tiny": DecoderSize(4, 512, 8, 8192, 8, 256),
    "gpt-small": DecoderSize(12, 768, 12, 50304, 8, 512),
    "gpt-deep": DecoderSize(24, 1024, 16, 50304, 4, 512),
    "gpt-wide": DecoderSize(6, 2048, 16, 50304, 4, 512),
}
"""For a GPU each, in float32."""

DEFAULT = ("gpt-tiny", "gpt-small", "gpt-wide")


MODES = ("ddp", "fsdp2", "tp", "gpipe", "1f1b")
"""Ways to run a step in several processes."""

PIPELINES = ("gpipe", "1f1b")

ALONE, PARTS = "alone", "parts"
"""A step by itself in each process: on the whole batch, and in micro-batches."""


def baselines(modes: tuple[str, ...]) -> tuple[str, ...]:
    """Steps by themselves that predictions of some modes start from."""
    return (ALONE, PARTS) if set(modes) & set(PIPELINES) else (ALONE,)


MICRO_BATCHES = 4
"""Parts of the batch that a pipeline works on."""

TP_PLAN = {"blocks.*.qkv": "colwise", "blocks.*.proj": "rowwise", "blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
"""Which layers are divided over tensor-parallel ranks, as ``parallelize_module`` takes it."""


def stage_starts(layers: int, stages: int) -> list[int]:
    """First block of each pipeline stage, and the number of blocks."""
    return [round(layers * stage / stages) for stage in range(stages + 1)]


def nulls(processes: int) -> dict[str, DecoderSize]:
    """Three small networks that any mode can divide: what a mode adds to their time is the framework's.

    Two of almost no size show what it does for each block; one of many weights and few tokens what it does for bytes.
    """
    width = 8 * processes
    return {
        "few blocks": DecoderSize(processes, width, processes, 16 * processes, 8, 4),
        "many blocks": DecoderSize(3 * processes, width, processes, 16 * processes, 8, 4),
        "many weights": DecoderSize(processes, 128 * processes, processes, 512 * processes, 8, 1),
    }


def check(name: str, size: DecoderSize, modes: tuple[str, ...], processes: int) -> None:
    """Whether every mode can divide a network over so many processes.

    Raises:
        InputError: one cannot.
    """
    pipelines = [mode for mode in modes if mode in PIPELINES]
    if pipelines and size.layers < processes:
        raise InputError(
            f"{name} has {size.layers} blocks, too few for {pipelines[0]} over {processes} processes: give fewer "
            "--processes, another --model, or --modes without pipelines"
        )
    if "tp" in modes and (size.heads % processes or size.vocabulary % processes):
        raise InputError(
            f"the {size.heads} heads of {name} do not divide over {processes} processes: give other --processes, "
            "another --model, or --modes without tp"
        )


def sizes(names: tuple[str, ...], device: str) -> dict[str, DecoderSize]:
    """Sizes by name on a kind of device.

    Raises:
        InputError: there is no such model.
    """
    table = GPU if device == "cuda" else CPU
    for name in names:
        if name not in table:
            raise unknown("model to validate", name, table)
    return {name: table[name] for name in names}
