"""How good the memory model is: ``python -m validation.judge.memory``.

The peak of a training step, total and by category, against ``torch.distributed._tools.mem_tracker`` on the same run
without hardware (fake tensors; it needs PyTorch 2.5 or later).  *recorded* is the step as ``triosim.record`` notes it,
*named* the model that is built from its configuration alone (``triosim.model``), both predicted on one device.

Categories are those of the tracker.  It calls what was made in the forward an activation, what was made in the backward
temporary, and what the optimizer makes for itself an optimizer state; so our temporaries count by the phase in which
the peak is.  It does not round sizes to the 512 bytes of the caching allocator.  *worst* is the largest relative error
of a category or the total; what is less than 1 % of the total is judged by that 1 %.  Goal: within 3 %.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from validation import command

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

LARGEST_GPT, SMALL_GPT = (50257, 1024, 12, 768, 12), (4096, 128, 2, 256, 4)


class Case(NamedTuple):
    """A step.

    Attributes:
        model: makes the model (inside fake tensors).
        shape: of the input: tokens, or images.
        classes: how many there are to tell apart.
        optimizer: makes the optimizer of the parameters.
        named: arguments of ``triosim.model`` for the same step, None where there is no such model.
        recompute: the plan's recomputation of the named model and of the step recorded without it.
        reference: makes the model that the tracker sees, where it is another one (with checkpoints).
        set_to_none: whether gradients are dropped after the update, or set to zero.
    """

    model: Callable[[], Any]
    shape: tuple[int, ...]
    classes: int
    optimizer: str = "adamw"
    named: dict[str, Any] | None = None
    recompute: str = "none"
    reference: Callable[[], Any] | None = None
    set_to_none: bool = True


def cases(small: bool = False) -> dict[str, Case]:
    """The steps to compare; ``small`` ones take a second each."""
    import torch
    from models import GPT, Llama, ResNet
    from tests.sources.models import torch_models
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(GPT):
        """Every block under ``torch.utils.checkpoint``."""

        def forward(self, tokens: Any) -> Any:
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.h:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
            return self.lm_head(self.ln_f(x))

    vocabulary, context, layers, width, heads = gpt = SMALL_GPT if small else LARGEST_GPT
    batch = 2 if small else 8
    sizes = {"vocab_size": vocabulary, "n_positions": context, "n_layer": layers, "n_embd": width, "n_head": heads}
    llama = (256, 640, 2, 4, 2, 4096) if small else (4096, 14336, 32, 32, 8, 128256)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
             "vocab_size")  # fmt: skip
    length = 128 if small else 4096
    image = 64 if small else 224

    def in_bfloat16(make: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Any:
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.bfloat16)
            try:
                return make()
            finally:
                torch.set_default_dtype(before)

        return made

    return {
        "GPT-2, float32": Case(
            lambda: torch_models.GPT(width, layers, heads, context, vocabulary, 0.1), (batch, context), vocabulary,
            named={"name": "gpt", "batch_size": batch, "precision": "float32",
                   "configuration": {**sizes, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.0}},
        ),
        "GPT-2, every block checkpointed": Case(
            lambda: GPT(*gpt), (batch, context), vocabulary, recompute="full", reference=lambda: Checkpointed(*gpt),
            named={"name": "gpt", "batch_size": batch, "precision": "float32",
                   "configuration": {**sizes, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}},
        ),
        "GPT-2, gradients set to zero": Case(
            lambda: GPT(*gpt), (batch, context), vocabulary, set_to_none=False
        ),
        "Llama-3-8B, bfloat16": Case(
            in_bfloat16(lambda: torch_models.Llama(*llama, False)), (1, length), llama[-1],
        ),
        "Llama-3-8B, bfloat16, master weights": Case(
            in_bfloat16(lambda: torch_models.Llama(*llama, False)), (1, length), llama[-1], "masters",
            named={"name": "llama", "configuration": dict(zip(names, llama, strict=True)), "sequence_length": length},
        ),
        "Llama-3-8B of examples, bfloat16": Case(
            lambda: Llama(llama[-1], llama[2], llama[0], llama[1], llama[3], llama[4]).to(torch.bfloat16), (1, length),
            llama[-1],
        ),
        "ResNet-50, float32": Case(
            ResNet, (batch * 4, 3, image, image), 1000, "sgd",
            named={"name": "resnet50", "batch_size": batch * 4, "image_size": image},
        ),
    }  # fmt: skip


def optimizer_of(kind: str, parameters: Any) -> Any:
    """An optimizer of a model's parameters; ``masters`` keeps float32 copies of them, and one operator updates all."""
    import torch

    class Masters(torch.optim.Optimizer):
        """AdamW on float32 copies of 16-bit parameters."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                trained = [p for p in group["params"] if p.grad is not None]
                for p in trained:
                    if p not in self.state:
                        self.state[p] = {
                            "master": p.detach().float(), "mean": torch.zeros_like(p, dtype=torch.float32),
                            "square": torch.zeros_like(p, dtype=torch.float32), "count": torch.zeros(()),
                        }  # fmt: skip
                kept = [self.state[p] for p in trained]
                masters, mean, square, count = ([s[n] for s in kept] for n in ("master", "mean", "square", "count"))
                torch._fused_adamw_(
                    masters, [p.grad for p in trained], mean, square, [], count, lr=1e-4, beta1=0.9, beta2=0.95,
                    weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False,
                )  # fmt: skip
                torch._foreach_copy_(trained, masters)

    if kind == "masters":
        return Masters(parameters)
    if kind == "sgd":
        return torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=1e-4)
    return torch.optim.AdamW(parameters, 3e-4)


def session(case: Case, make: Callable[[], Any]) -> tuple[Any, Any, list[Any], Callable[..., None]]:
    """Model, optimizer, inputs and step."""
    import torch
    import torch.nn.functional as F

    from triosim.sources.record import fake

    with fake():
        model = make()
        optimizer = optimizer_of(case.optimizer, model.parameters())
        text = len(case.shape) == 2
        x = torch.randint(case.classes, case.shape) if text else torch.randn(case.shape)
        y = torch.randint(case.classes, case.shape if text else case.shape[:1])

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad(case.set_to_none)
        loss = F.cross_entropy(model(x).flatten(0, -2).float(), y.flatten())
        loss.backward()
        optimizer.step()

    return model, optimizer, [x, y], step


def tracked(case: Case) -> dict[str, int]:
    """Bytes at the peak by category, as the tracker counts them; the second step, so that the states exist."""
    from torch.distributed._tools.mem_tracker import MemTracker

    from triosim.sources.record import fake
    from triosim.sources.record.fakes import accelerator_defaults

    model, optimizer, inputs, step = session(case, case.reference or case.model)
    with fake(), accelerator_defaults(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step(*inputs)
        optimizer.zero_grad(case.set_to_none)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *inputs)
        with tracker:
            step(*inputs)
        (found,) = tracker.get_tracker_snapshot("peak").values()
    return {str(getattr(name, "value", name)): size for name, size in found.items()}


def counted(memory: Any) -> dict[str, int]:
    """A predicted peak in the tracker's categories."""
    held = dict(memory.categories)
    loose = held.pop("temporary", 0)
    made_in = {"backward": "Temp", "forward": "Activation", "recompute": "Activation", "optimizer": "Optstate"}
    ours = {
        "Parameter": held.get("weight", 0), "Buffer": held.get("buffer", 0), "Gradient": held.get("gradient", 0),
        "Activation": held.get("activation", 0), "Temp": 0, "Optstate": held.get("optimizer_state", 0),
        "Other": held.get("input", 0) + held.get("label", 0), "Total": memory.allocated_bytes,
    }  # fmt: skip
    ours[made_in[memory.peak.phase]] += loose
    return ours


def predicted(case: Case, named: bool) -> dict[str, int]:
    """The peak of the step as it was recorded, or of the model with its name, in the tracker's categories."""
    import triosim
    from triosim.sources.record import record

    if named:
        assert case.named is not None
        trace = triosim.model(**case.named)
    else:
        _, _, inputs, step = session(case, case.model)
        trace = record(step, *inputs, device="fake")
    plan = triosim.Plan(batch_size=case.shape[0], recompute=case.recompute)
    return counted(triosim.simulate(trace, triosim.system(device="B200", devices=1), plan, fit=False).memory)


def worst(theirs: dict[str, int], ours: dict[str, int]) -> float:
    """The largest relative error of a category or the total; one below 1 % of the total is judged by that 1 %."""
    small = theirs["Total"] / 100
    return max(abs(ours[name] - size) / max(size, small) for name, size in theirs.items())


def main() -> None:
    """Print the table."""
    parser = command.parser(__doc__)
    parser.add_argument("--small", action="store_true", help="small models, a second each")
    options = parser.parse_args()
    names = ("Parameter", "Gradient", "Optstate", "Activation", "Temp", "Total")
    print(f"{'peak in MB':38}{'':10}" + "".join(f"{name:>11}" for name in names) + f"{'worst':>9}")
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for title, case in cases(options.small).items():
        theirs = tracked(case)
        figures[title] = {"tracker": dict(theirs)}
        print(f"{title:38}{'tracker':10}" + "".join(f"{theirs[name] / 1e6:>11,.1f}" for name in names))
        for how in ("recorded", *(["named"] if case.named is not None else [])):
            ours = predicted(case, how == "named")
            figures[title][how] = dict(ours)
            row = "".join(f"{ours[name] / 1e6:>11,.1f}" for name in names)
            print(f"{'':38}{how:10}{row}{worst(theirs, ours):>9.2%}", flush=True)
    command.write(options.json, figures)


if __name__ == "__main__":
    command.run(main)
