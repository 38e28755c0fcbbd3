"""Images that others timed, which shaped no constant here: ``images.csv``.

Seconds of one image, text encoders and decoder included (``image``), or of the denoiser's steps alone (``steps``); all
in 16 bits, one image at a time.  Sources:

* ``xDiT docs``: github.com/xdit-project/xDiT, docs/performance/flux.md: FLUX.1 [dev] on up to four H100 of one server.
  The two of one device, and those of Ulysses over four, stand in docs/scenarios.md since before: these four were known,
  all others were predicted blind, Ulysses times rings (here and below) when serving offered it.
* ``xDiT issue 378``: github.com/xdit-project/xDiT/issues/378: the same measured by somebody else, who could not repeat
  them.  How far the two are apart is what such figures are worth.
* ``xDiT issue 416``: github.com/xdit-project/xDiT/issues/416: ``flux_example.py`` on eight H100.
* ``xDiT schnell``: docs/performance/flux.md again: FLUX.1 [schnell] on eight A100 with NVLink, Ulysses over all.
* ``SGLang BCG``: github.com/BBuf/sglang, diffusion-prs/flux1-bcg-h200/benchmark.json, column eager: tensor parallel
  over two H200; what starts the kernels is SGLang's, not plain PyTorch.
* ``diffusers docs``: github.com/huggingface/diffusers, docs/source/en/tutorials/fast_diffusion.md: SDXL on an A100 of
  400 W, attention in one kernel; compiled with ``max-autotune``, images by channels last.
* ``MaxDiffusion``: mintlify.com/AI-Hypercomputer/maxdiffusion/inference/flux: a chip makes an image of its own; the
  encoders do not fit beside the denoiser, so that steps alone are predicted.  Steps of [dev] and [schnell] are the same
  work, and those of one device are up to 1.5 apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from validation import command

TABLE = Path(__file__).with_name("images.csv")


class TimedImage(NamedTuple):
    """An image that somebody made.

    Attributes:
        source: who.
        model, weights, pixels, steps: what was made.
        device, devices: where; several share it as ``shared`` says: ``"tp"``, a style of ``--cp``, or ``"usp2"``:
            Ulysses among two, rings through the others.
        stack: what ran it; ``""``: plain PyTorch.
        what: ``"image"`` or ``"steps"``.
        seconds: as measured.
    """

    source: str
    model: str
    device: str
    devices: int
    shared: str
    weights: str
    stack: str
    pixels: int
    steps: int
    what: str
    seconds: float


def read(path: Path) -> list[TimedImage]:
    """The rows of a table."""
    return [
        TimedImage(
            row["source"], row["model"], row["device"], int(row["devices"]), row["shared"], row["weights"],
            row["stack"], int(row["pixels"]), int(row["steps"]), row["what"], float(row["seconds"]),
        )
        for row in command.rows(path, *TimedImage._fields)
    ]  # fmt: skip
