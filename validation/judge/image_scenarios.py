"""The scenarios of the survey in which images are made: one image (D1.1, D1.2), and diffusion served (D1.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from validation.judge.survey import Document, Figure, Published, Scenario

Of = Callable[[Sequence[Document]], float]

XDIT = "xdit-project/xDiT, docs/performance/flux.md"
MLPERF = "MLPerf Inference 4.0, closed, NVIDIA DGX H100, SDXL Offline: samples per second"
ONE_IMAGE = "--arrivals users:1 --requests 1 --interval off"
FLEET = (
    "serve sdxl --device A100-SXM4-80GB --devices 4 --replicas 4 --router least-outstanding --weights fp16 --arrivals "
    "poisson:0.7 --steps uniform:20-50 --requests 500 --interval off --engine {engine}"
)
SCHNELL = "serve flux.1-schnell --system dgx-h100 --idle-ok --tp {tp} --steps 4 " + ONE_IMAGE
DEVICES = (1, 2, 4, 8)


def _figure(name: str, at: int = 0, times: float = 1.0) -> Of:
    return lambda found: times * float(found[at][name])


def _energy(name: str, at: int = 0, times: float = 1.0) -> Of:
    return lambda found: times * float(found[at]["energy"][name])


def _per_kwh(at: int) -> Of:
    return lambda found: 3.6e6 / _energy("per_request_j", at)(found)


def _latency(which: str, at: int = 0) -> Of:
    """Of whole images, seconds."""
    return lambda found: float(found[at]["latency_s"]["e2e"][which])


def _over(a: Of, b: Of) -> Of:
    return lambda found: a(found) / b(found)


def _step_ms(found: Sequence[Document]) -> float:
    return 1e3 * float(found[0]["iteration_time_s"])


def _around_ms(steps: int) -> Of:
    """What an image takes beside its steps."""
    return lambda found: 1e3 * _latency("mean", 1)(found) - steps * _step_ms(found)


IMAGES = (
    Scenario(
        "D1.1", "SDXL, one image of 1024 pixels, 50 steps",
        ("infer sdxl --device A100-SXM4-80GB --batch-size 2 --precision float16",
         f"serve sdxl --device A100-SXM4-80GB --weights fp16 --steps 50 {ONE_IMAGE}"),
        (Figure("step, with the text and without", _step_ms, "ms"), Figure("image", _latency("mean", 1), "s"),
         Figure("text encoders and decoder", _around_ms(50), "ms"),
         Figure("energy of the device", _energy("work_j", 1, 1e-3), "kJ")),
        "The survey names no published figure.",
    ),
    Scenario(
        "D1.2", "FLUX.1 [dev], one image of 1024 pixels, 28 steps",
        ("infer flux.1-dev --device H100-SXM5-80GB",
         f"serve flux.1-dev --device H100-SXM5-80GB --steps 28 {ONE_IMAGE}",
         f"serve flux.1-dev --device H100-SXM5-80GB --steps 28 {ONE_IMAGE} --stack torch-compile"),
        (Figure("step", _step_ms, "ms"),
         Figure("image", _latency("mean", 1), "s", Published(6.71, 0.1, f"{XDIT}: PyTorch, 1 GPU")),
         Figure("image, compiled", _latency("mean", 2), "s", Published(4.30, 0.1, f"{XDIT}: torch.compile, 1 GPU")),
         Figure("text encoders and decoder", _around_ms(28), "ms"),
         Figure("energy of the device", _energy("work_j", 1, 1e-3), "kJ")),
        "In 16 bits; diffusion models are not served in 8.",
    ),
    Scenario(
        "D1.3", "Diffusion served: SDXL on four devices, FLUX.1 [schnell] on one to eight",
        (FLEET.format(engine="diffusers"), FLEET.format(engine="continuous"),
         FLEET.format(engine="continuous") + " --step-cache 3,share=0.4",
         "serve sdxl --system dgx-h100 --replicas 8 --weights fp16 --stack torch-compile --arrivals burst:640 --steps "
         "20 --requests 640 --interval off",
         *(SCHNELL.format(tp=tp) for tp in DEVICES),
         *(f"serve flux.1-dev --system dgx-h100 --idle-ok --cp {cp} --steps 28 {ONE_IMAGE}{stack}"
           for stack in ("", " --stack torch-compile") for cp in (1, 4))),
        (Figure("P99 of an image, fixed batches of 8", _latency("p99"), "s"),
         Figure("P99 of an image, batches that change", _latency("p99", 1), "s"),
         Figure("mean of an image, fixed", _latency("mean"), "s"), Figure("mean, changing", _latency("mean", 1), "s"),
         Figure("P99, two of three steps at 0.4 of one", _latency("p99", 2), "s"),
         Figure("images/s, fixed", _figure("requests_per_s")),
         Figure("images/kWh with hosts, fixed", _per_kwh(0)), Figure("images/kWh, changing", _per_kwh(1)),
         Figure("images/kWh, two of three steps at 0.4", _per_kwh(2)),
         Figure("images/s of 20 steps, eight H100, in 16 bits", _figure("requests_per_s", 3),
                published=Published(13.1263, 0.15, MLPERF)),
         *(Figure(f"schnell, 4 steps, tp {tp}", _latency("mean", 4 + at), "s") for at, tp in enumerate(DEVICES)),
         Figure("schnell, 8 devices over one", _over(_latency("mean", 4), _latency("mean", 7)), "x"),
         Figure("dev, 4 devices over one", _over(_latency("mean", 8), _latency("mean", 9)), "x",
                Published(6.71 / 4.24, 0.15, f"{XDIT}: PyTorch, Ulysses over 4 GPUs")),
         Figure("dev, 4 devices over one, compiled", _over(_latency("mean", 10), _latency("mean", 11)), "x",
                Published(4.30 / 1.63, 0.15, f"{XDIT}: torch.compile, Ulysses over 4 GPUs")),
         Figure("dev on 4 devices, compiled", _latency("mean", 11), "s",
                Published(1.63, 0.15, f"{XDIT}: torch.compile, Ulysses over 4 GPUs"))),
        "MLPerf's UNet runs in 8 bits.  Uncompiled, xDiT waits for its host.  Nothing is published of the rest; how "
        "much of a network cached steps run depends on the method.",
    ),
)  # fmt: skip
