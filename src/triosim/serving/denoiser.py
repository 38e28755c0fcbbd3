"""What is served of a diffusion model: the denoiser, what reads the text before it, and what paints the image after.

A request is its number of denoising steps.  Text is encoded once before the first step, latents are decoded once after
the last.  Under classifier-free guidance (Ho and Salimans, arXiv:2207.12598) each step runs on two samples for an
image, with the text and without it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES
from triosim.core.errors import InputError, quoted
from triosim.sources import modelling
from triosim.sources.models._family import PIXELS, Noise

TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}
"""Types of weights that are served, and what all is computed in but products by 8-bit weights."""
IN_8_BITS = "fp8"
"""The one whose denoiser has 8-bit weights in its blocks."""
DECODES = {"decoder_only": True}
"""Of an autoencoder, what images are made with."""


@dataclass(frozen=True)
class ImagePipeline:
    """What stands around the denoisers of a family.

    Attributes:
        encoders: models that read the text.
        decoder: model that makes an image of latents.
        guided: whether each step runs with the text and without it.
    """

    encoders: tuple[str, ...]
    decoder: str
    guided: bool


PIPELINES = {
    "unet": ImagePipeline(("clip-vit-l-14-text", "openclip-bigg-14-text"), "sdxl-vae", guided=True),
    "flux": ImagePipeline(("clip-vit-l-14-text", "t5-xxl-encoder"), "flux.1-vae", guided=False),
    "dit": ImagePipeline((), "sdxl-vae", guided=True),
}
"""By family.  SDXL and FLUX.1: ``model_index.json`` of Hugging Face stabilityai/stable-diffusion-xl-base-1.0 and
black-forest-labs/FLUX.1-dev, whose guidance is distilled into the model; DiT reads classes, and its decoder has the
form of SDXL's (facebookresearch/DiT, ``sd-vae-ft``)."""
ENCODERS_BY_WIDTH = {768: ("clip-vit-l-14-text",), 1024: ("openclip-vit-h-14-text",)}
"""Text encoders of UNets by the width of the states that they see: of Stable Diffusion 1 and 2 (``model_index.json`` of
their repositories), whose decoder has the form of SDXL's."""


@dataclass(frozen=True)
class Denoiser:
    """A diffusion model as it is served.

    Attributes:
        name: of the denoiser.
        pipeline: what stands around it.
        image_size: pixels along each side of an image.
        parameters: of the denoiser.
        around: parameters of encoders and decoder.
        latents: elements of an image as the denoiser reads it.
    """

    name: str
    pipeline: ImagePipeline
    image_size: int
    parameters: int
    around: int
    latents: int = 0

    @property
    def passes(self) -> int:
        """Samples of a step for one image."""
        return 2 if self.pipeline.guided else 1

    def weight_bytes(self, weights: str, tensor_parallel: int = 1) -> float:
        """On each device: its part of the denoiser, and all of encoders and decoder."""
        own = 1 if weights == IN_8_BITS else DTYPE_BYTES[TYPES[weights]]
        return self.parameters * own / tensor_parallel + self.around * DTYPE_BYTES[TYPES[weights]]


def is_denoiser(name: str) -> bool:
    """Whether a name, or a configuration file, is of a model that takes noise off images."""
    found = modelling.preset(name)
    if found is not None:
        return found.family in PIPELINES
    is_file = Path(name).suffix.lower() in modelling.SUFFIXES and os.path.exists(name)
    return is_file and isinstance(modelling.configured(name), Noise)


def denoiser(name: str, image_size: int | None = None) -> Denoiser:
    """A diffusion model by name or by configuration file.

    Args:
        name: of the model or the file.
        image_size: pixels along each side of an image; what the model was made for if None.

    Raises:
        InputError: nobody knows what stands around models of its family.
    """
    family = modelling.configured(name)
    assert isinstance(family, Noise)
    known = type(family).__module__.rpartition(".")[2]
    if known not in PIPELINES:
        raise InputError(f"{quoted(name)} is not served: what reads its text is known of {', '.join(PIPELINES)} alone")
    pipeline = PIPELINES[known]
    encoders = ENCODERS_BY_WIDTH.get(getattr(family, "cross_attention_dim", 0), pipeline.encoders)
    pipeline = replace(pipeline, encoders=encoders)
    beside = [modelling.configured(encoder) for encoder in pipeline.encoders]
    beside.append(modelling.configured(pipeline.decoder, DECODES))
    around = sum(int(one.weights().count()) for one in beside)
    size = image_size or PIXELS * family.sample_size
    latents = family.in_channels * (size // PIXELS) ** 2
    return Denoiser(name, pipeline, size, int(family.weights().count()), around, latents)
