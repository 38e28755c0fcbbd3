"""Three roads, one answer: a step by name, recorded under fake tensors and recorded on a CPU, predicted on an H100.

    python -m validation.judge.roads [--model resnet50] [--device H100] [--cpu] [--launches]

For each road the predicted iteration, the sum of its operators, the host's time and how much is launched.
``--launches`` tells what is launched more or less often than by name: that is where roads differ.  ``--cpu`` records on
this CPU too, with the optimizer as it is there and with that of a GPU (``foreach``), which takes a minute or two.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from validation import command

import triosim
from triosim import Fidelity, Plan, Trace
from triosim.composition.host import launches
from triosim.trace.tables import Phase

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]


class Case(NamedTuple):
    """A step.

    Attributes:
        model: makes the PyTorch model.
        optimizer: makes the optimizer of the parameters.
        inputs: make the batch and its labels.
        named: arguments of ``triosim.model`` for the same step.
        on_cpu: whether a CPU has the memory to run it.
    """

    model: Callable[[], Any]
    optimizer: Callable[..., Any]
    inputs: Callable[[], tuple[Any, Any]]
    named: dict[str, Any]
    on_cpu: bool = True


def _adamw(parameters: Any, **options: Any) -> Any:
    import torch

    return torch.optim.AdamW(parameters, 3e-4, **options)


def _sgd(parameters: Any, **options: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=1e-4, **options)


def _resnet() -> Any:
    from models import ResNet

    return ResNet()


def _gpt(sizes: dict[str, int]) -> Any:
    from tests.sources.models import torch_models

    names = ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size")
    width, layers, heads, positions, vocabulary = (sizes[name] for name in names)
    return torch_models.GPT(width, layers, heads, positions, vocabulary, 0.1)


def _llama(layers: int) -> Any:
    import torch
    from tests.sources.models import torch_models

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return torch_models.Llama(4096, 14336, layers, 32, 8, 128256, False)
    finally:
        torch.set_default_dtype(before)


def _with_masters(parameters: Any, **options: Any) -> Any:
    from validation.judge.memory import optimizer_of

    return optimizer_of("masters", parameters)


def _images(batch: int) -> tuple[Any, Any]:
    import torch

    return torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))


def _tokens(batch: int, length: int, vocabulary: int) -> tuple[Any, Any]:
    import torch

    return torch.randint(vocabulary, (batch, length)), torch.randint(vocabulary, (batch, length))


def small(sizes: dict[str, int], batch: int, length: int | None = None) -> Case:
    """A GPT in float32 of these sizes; its context unless ``length`` is given."""
    length = length or sizes["n_positions"]
    named = {"name": "gpt", "batch_size": batch, "sequence_length": length, "precision": "float32"}
    more = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.0}
    return Case(
        lambda: _gpt(sizes), _adamw, lambda: _tokens(batch, length, sizes["vocab_size"]),
        {**named, "configuration": {**sizes, **more}},
    )  # fmt: skip


def llama(layers: int = 32) -> Case:
    """Llama 3 8B, or one of fewer layers."""
    named = {"name": "llama-3-8b", "batch_size": 1, "sequence_length": 2048}
    return Case(
        lambda: _llama(layers), _with_masters, lambda: _tokens(1, 2048, 128256),
        {**named, "configuration": {"num_hidden_layers": layers}}, on_cpu=False,
    )  # fmt: skip


GPT_2 = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
CASES = {
    "resnet50": Case(_resnet, _sgd, lambda: _images(8), {"name": "resnet50", "batch_size": 8}),
    "gpt2": small(GPT_2, batch=1, length=256),
    "llama-3-8b": llama(),
}  # fmt: skip


def recorded(case: Case, device: str, **optimizer: Any) -> Trace:
    """The step as ``triosim.record`` notes it on ``device`` (``"fake"`` or ``"cpu"``)."""
    import torch.nn.functional as F

    from triosim.sources.record import fake, record

    with fake() if device == "fake" else contextlib.nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = case.model()
        updates = case.optimizer(model.parameters(), **optimizer)
        x, y = case.inputs()

    def step(x: Any, y: Any) -> None:
        updates.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2).float(), y.flatten())
        loss.backward()
        updates.step()

    return record(step, x, y, model=model, device=device, warmup=1, repeats=1)


def launched(trace: Trace) -> Counter[str]:
    """How often what is launched, by phase and name."""
    operators, counted = trace.operators, launches(trace)
    rows = zip(operators.name, operators.phase.tolist(), counted.tolist(), strict=True)
    return Counter(f"{Phase(phase).name.lower()} {name}" for name, phase, counts in rows if counts)


def main() -> None:
    """Print the table of each model."""
    parser = command.parser(__doc__)
    parser.add_argument("--model", choices=[*CASES], action="append")
    parser.add_argument("--device", default="H100")
    parser.add_argument("--cpu", action="store_true", help="record on this CPU as well")
    parser.add_argument("--launches", action="store_true", help="what is launched more or less often than by name")
    options = parser.parse_args()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for name in options.model or CASES:
        figures[name] = {}
        case, batch = CASES[name], CASES[name].named["batch_size"]
        roads = {"by name": triosim.model(**case.named), "fake tensors": recorded(case, "fake")}
        if options.cpu and case.on_cpu:
            roads["CPU"] = recorded(case, "cpu")
            roads["CPU, foreach"] = recorded(case, "cpu", foreach=True)
        print(f"{f'{name}, {options.device}':20}{'iteration':>12}{'to by name':>11}{'operators':>13}", end="")
        print(f"{'host':>11}{'launches':>10}")
        first, usual = 0.0, launched(roads["by name"])
        for road, trace in roads.items():
            system = triosim.system(device=options.device)
            result = triosim.simulate(trace, system, Plan(batch_size=batch), fit=False)
            alone = triosim.simulate(
                trace, system, Plan(batch_size=batch), Fidelity(host="none"), fit=False
            ).iteration_time_s
            first = first or result.iteration_time_s
            counts = launched(trace)
            print(
                f"  {road:18}{result.iteration_time_s * 1e3:9.3f} ms{result.iteration_time_s / first - 1:+11.1%}"
                f"{alone * 1e3:10.3f} ms{result.devices[0].host_cpu_s * 1e3:8.2f} ms{counts.total():10}"
            )
            figures[name][road] = {
                "iteration_time_s": result.iteration_time_s, "without_host_s": alone, "launches": counts.total(),
            }  # fmt: skip
            more, fewer = counts - usual, usual - counts
            for word, found in (("more", more), ("fewer", fewer)):
                if found and options.launches:
                    print(f"    {word}: " + ", ".join(f"{count} {what}" for what, count in found.most_common(8)))
    command.write(options.json, figures)


if __name__ == "__main__":
    command.run(main)
