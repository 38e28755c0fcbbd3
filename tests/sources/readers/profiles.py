"""Writing small profiles as torch.profiler does, in any of its dialects."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD = 100, 200
SCALARS = ("aten::ones_like",)


class Profile:
    """Collects events; times are given in microseconds, numbers or text as the file shall have them."""

    def __init__(self, **top: Any) -> None:
        self.top = {"schemaVersion": 1, **top}
        self.events: list[dict] = []
        self.correlation = 1000
        self.external = 0

    def add(self, name: str, category: str, ts: Any, dur: Any, pid: Any = 7, tid: Any = MAIN, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def op(
        self,
        name: str,
        ts: Any,
        dur: Any,
        *,
        tid: Any = MAIN,
        dims: Sequence | None = None,
        types: Sequence[str] | None = None,
        concrete: Sequence[str] | None = None,
        seq: int | None = None,
        fwd: int | None = None,
        category: str = "cpu_op",
        **args: Any,
    ) -> int:
        """One call; returns its External id."""
        self.external += 1
        args = {"External id": self.external, **args}
        if dims is not None:
            args["Input Dims"] = list(dims)
            args["Input type"] = list(types) if types else ["float" if d else "" for d in dims]
        if concrete is not None:
            args["Concrete Inputs"] = list(concrete)
        if seq is not None:
            args["Sequence number"] = seq
            args["Fwd thread id"] = 0 if fwd is None else fwd
        self.add(name, category, ts, dur, tid=tid, **args)
        return self.external

    def mark(self, name: str, ts: Any, dur: Any, tid: Any = MAIN) -> None:
        self.add(name, "user_annotation", ts, dur, tid=tid)

    def kernel(
        self,
        name: str,
        ts: Any,
        dur: Any,
        *,
        launch: Any = None,
        tid: Any = MAIN,
        call: str = "cudaLaunchKernel",
        launch_category: str = "cuda_runtime",
        category: str = "kernel",
        stream: Any = 7,
        device: Any = 0,
        launch_dur: Any = 1,
        **args: Any,
    ) -> int:
        """One kernel and, with ``launch``, the call that launched it; returns the correlation."""
        self.correlation += 1
        if launch is not None:
            self.add(call, launch_category, launch, launch_dur, tid=tid, correlation=self.correlation)
        self.add(
            name, category, ts, dur, pid=device, tid=stream,
            **{"correlation": self.correlation, "stream": stream, "device": device, **args},
        )  # fmt: skip
        return self.correlation

    def data(self) -> dict:
        return {**self.top, "traceEvents": self.events}

    def write(self, path: Path, *, zipped: bool = False, bare: bool = False) -> Path:
        text = json.dumps(self.events if bare else self.data()).encode()
        path.write_bytes(gzip.compress(text) if zipped else text)
        return path


def mlp(profile: Profile | None = None, start: float = 0, *, shapes: bool = True, optimizer: str = "sgd") -> Profile:
    """One training step of linear(8->16), relu, linear(16->16), residual add, loss, on a batch of 4.

    Forward on the main thread, backward on autograd's, one 10 us kernel for each of the 15 operators that work.  Where
    the gradients of relu's output, which is read twice, come together, autograd adds them up.
    """
    p = profile or Profile(deviceProperties=[{"id": 0, "name": "Test GPU"}])
    t, g = start, start + 500

    def call(name: str, dims: Sequence, seq: int | None = None, *, tid: Any = MAIN, fwd: int | None = None,
             works: bool = True) -> None:  # fmt: skip
        nonlocal t, g
        types = ["float" if d or name in SCALARS else "Scalar" for d in dims]
        p.op(name, t, 10, tid=tid, dims=dims if shapes else None, types=types, seq=seq, fwd=fwd)
        if works:
            p.kernel(f"kernel of {name}", g, 10, launch=t + 2, tid=tid)
            g += 20
        t += 20

    call("aten::linear", [[4, 8], [16, 8], [16]], 1)
    call("aten::relu", [[4, 16]], 2)
    call("aten::linear", [[4, 16], [16, 16], [16]], 3)
    call("aten::add", [[4, 16], [4, 16], []], 4)
    call("aten::mse_loss", [[4, 16], [4, 16], []], 5)
    call("aten::ones_like", [[]])

    def node(name: str, seq: int, gradient: Sequence[int], inside: Sequence[tuple[str, Sequence, bool]],
             after: Sequence[tuple[str, Sequence, bool]] = ()) -> None:  # fmt: skip
        nonlocal t
        begin = t
        t += 2
        for kind, dims, works in inside:
            call(kind, dims, tid=AUTOGRAD, works=works)
        middle = t
        for kind, dims, works in after:
            call(kind, dims, tid=AUTOGRAD, works=works)
        p.op(f"autograd::engine::evaluate_function: {name}", begin, t - begin, tid=AUTOGRAD, seq=seq, fwd=1)
        dims = [list(gradient)] if shapes else None
        p.op(name, begin + 1, middle - begin - 1, tid=AUTOGRAD, seq=seq, fwd=1, dims=dims, types=["float"])
        t += 2

    def accumulate(shape: Sequence[int]) -> None:
        nonlocal t
        begin = t
        t += 2
        call("aten::detach", [shape], tid=AUTOGRAD, works=False)
        p.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", begin, t - begin, tid=AUTOGRAD)
        p.op(
            "torch::autograd::AccumulateGrad", begin + 1, t - begin - 2, tid=AUTOGRAD, dims=[shape] if shapes else None
        )
        t += 2

    node("MseLossBackward0", 5, [], [("aten::mse_loss_backward", [[1], [4, 16], [4, 16], []], True)])
    node("AddBackward0", 4, [4, 16], [])
    products = [("aten::t", [[16, 16]], False), ("aten::mm", [[4, 16], [16, 16]], True), ("aten::t", [[4, 16]], False),
                ("aten::mm", [[16, 4], [4, 16]], True), ("aten::t", [[16, 16]], False)]  # fmt: skip
    node("AddmmBackward0", 3, [4, 16], products,
         [("aten::sum", [[4, 16], [], [], []], True), ("aten::add_", [[4, 16], [4, 16], []], True)])  # fmt: skip
    accumulate([16])
    accumulate([16, 16])
    node("ReluBackward0", 2, [4, 16], [("aten::threshold_backward", [[4, 16], [4, 16], []], True)])
    products = [("aten::t", [[4, 16]], False), ("aten::mm", [[16, 4], [4, 8]], True), ("aten::t", [[16, 8]], False)]
    node("AddmmBackward0", 1, [4, 16], products, [("aten::sum", [[4, 16], [], [], []], True)])
    accumulate([16])
    accumulate([16, 8])

    begin = t
    t += 2
    if optimizer == "sgd":
        p.op(
            "aten::_foreach_add_", t, 10, dims=[[], [], []] if shapes else None, types=["TensorList", "TensorList", ""]
        )
        p.kernel("kernel of sgd", g, 10, launch=t + 2)
        t += 20
    p.mark("Optimizer.step#SGD.step", begin, t - begin)
    return p
