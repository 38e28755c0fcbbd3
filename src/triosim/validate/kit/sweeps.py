"""Kernels over sizes: what one operator takes on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from triosim.validate.kit.item import Item, RecordingSetup, kernel

FLOATS = {"float32": torch.float32, "tfloat32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Element types by name; ``tfloat32`` is float32 that tensor cores may round."""


@contextmanager
def rounding(dtype: str) -> Iterator[None]:
    """Whether float32 may be rounded to TF32 while this lasts."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if dtype == "tfloat32" else "highest")
    torch.backends.cudnn.allow_tf32 = dtype == "tfloat32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _random(bench: RecordingSetup, *shape: int, dtype: str, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device=bench.device, dtype=FLOATS[dtype]).requires_grad_(grad)


def _in(dtype: str, item: Item) -> Item:
    """The item with float32 rounded as its element type says."""

    def measure(bench: RecordingSetup) -> Any:
        with rounding(dtype):
            return item.measure(bench)

    return Item(item.kind, {**item.what, "dtype": dtype}, measure)


def ceilings(tiny: bool) -> Iterator[Item]:
    """What memory, links to the host and matrix units can do at best."""
    size = 1 << 22 if tiny else 1 << 31

    def within(bench: RecordingSetup) -> Callable[[], object]:
        source, target = (torch.empty(size, dtype=torch.int8, device=bench.device) for _ in range(2))
        return lambda: target.copy_(source)

    def host(to_device: bool) -> Callable[[RecordingSetup], Callable[[], object]]:
        def make(bench: RecordingSetup) -> Callable[[], object]:
            there = torch.empty(size // 8, dtype=torch.int8, device=bench.device)
            here = torch.empty(size // 8, dtype=torch.int8)
            here = here.pin_memory() if bench.timer.cuda else here
            source, target = (here, there) if to_device else (there, here)
            return lambda: target.copy_(source, non_blocking=True)

        return make

    yield kernel("copy", within, {"bytes": size}, cold=False)
    yield kernel("copy_to_device", host(True), {"bytes": size // 8}, cold=False)
    yield kernel("copy_to_host", host(False), {"bytes": size // 8}, cold=False)
    side = 256 if tiny else 8192
    for dtype in FLOATS:
        yield _linear(side, side, side, dtype)


def _linear(m: int, n: int, k: int, dtype: str) -> Item:
    def make(bench: RecordingSetup) -> Callable[[], object]:
        x, w = _random(bench, m, k, dtype=dtype), _random(bench, n, k, dtype=dtype)
        return lambda: F.linear(x, w)

    return _in(dtype, kernel("linear", make, {"m": m, "n": n, "k": k}))


def gemm(tiny: bool) -> Iterator[Item]:
    """Linear layers of common networks over rows, and batched products of attention."""
    rows = (1, 64) if tiny else (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    layers = ((64, 64),) if tiny else (
        (768, 768), (2304, 768), (3072, 768), (768, 3072), (50257, 768), (512, 512), (2048, 512), (2048, 2048),
        (8192, 2048), (2048, 8192), (128256, 2048), (4096, 4096), (14336, 4096), (4096, 14336), (1000, 2048),
        (4096, 25088),
    )  # fmt: skip
    batched = ((2, 16, 16, 16),) if tiny else ((96, 512, 512, 64), (96, 1024, 1024, 64), (64, 2048, 2048, 128))
    for dtype in ("bfloat16", "tfloat32", "float32"):
        for n, k in layers:
            for m in rows:
                yield _linear(m, n, k, dtype)
        for b, m, n, k in batched:
            yield _batched(b, m, n, k, dtype)


def _batched(b: int, m: int, n: int, k: int, dtype: str) -> Item:
    def make(bench: RecordingSetup) -> Callable[[], object]:
        x, y = _random(bench, b, m, k, dtype=dtype), _random(bench, b, k, n, dtype=dtype)
        return lambda: torch.bmm(x, y)

    return _in(dtype, kernel("bmm", make, {"b": b, "m": m, "n": n, "k": k}))


def convolution(tiny: bool) -> Iterator[Item]:
    """Convolutions of ResNet, VGG and DenseNet: forward, and gradients of input and weight."""
    shapes = ((3, 8, 16, 3, 1),) if tiny else (
        (3, 64, 224, 7, 2), (3, 64, 224, 3, 1), (64, 64, 224, 3, 1), (64, 128, 112, 3, 1), (128, 256, 56, 3, 1),
        (256, 512, 28, 3, 1), (512, 512, 14, 3, 1), (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1),
        (256, 64, 56, 1, 1), (128, 128, 56, 3, 2), (128, 512, 28, 1, 1), (256, 256, 28, 3, 2), (1024, 256, 14, 1, 1),
        (512, 512, 14, 3, 2), (2048, 512, 7, 1, 1), (128, 32, 56, 3, 1), (128, 32, 14, 3, 1),
    )  # fmt: skip
    for dtype in ("tfloat32", "bfloat16", "float32"):
        for batch in (2,) if tiny else (32, 128):
            for shape in shapes:
                for what in ("forward", "input", "weight"):
                    yield _conv(batch, *shape, what, dtype)


def _conv(b: int, inputs: int, outputs: int, side: int, size: int, stride: int, what: str, dtype: str) -> Item:
    def make(bench: RecordingSetup) -> Callable[[], object]:
        backward = what != "forward"
        x = _random(bench, b, inputs, side, side, dtype=dtype, grad=backward)
        w = _random(bench, outputs, inputs, size, size, dtype=dtype, grad=backward)

        def forward() -> Tensor:
            return F.conv2d(x, w, stride=stride, padding=size // 2)

        return _backward(forward, [x if what == "input" else w]) if backward else forward

    sizes = {"batch": b, "in": inputs, "out": outputs, "side": side, "kernel": size, "stride": stride}
    return _in(dtype, kernel(f"conv2d_{what}", make, sizes))


def _backward(forward: Callable[[], Tensor], of: list[Tensor]) -> Callable[[], object]:
    """A call that does only the backward pass."""
    made = forward()
    gradient = torch.randn_like(made)
    return lambda: torch.autograd.grad(made, of, gradient, retain_graph=True)


def attention(tiny: bool) -> Iterator[Item]:
    """Scaled dot-product attention: forward and backward of training, prefill, and one new token."""
    shapes = [(1, 32, 2, 2, 16)] if tiny else [
        (b, s, h, kv, 128) for h, kv in ((32, 32), (32, 8)) for b in (1, 4, 16) for s in (512, 1024, 2048, 4096, 8192)
        if b * s <= 32768
    ] + [(b, s, h, h, 64) for b, h in ((8, 12), (16, 8)) for s in (128, 512, 1024)]  # fmt: skip
    decoding = [(2, 64, 2, 2, 16)] if tiny else [
        (b, s, 32, kv, 128) for kv in (32, 8) for b in (1, 8, 64) for s in (256, 1024, 4096) if b * s * kv <= 1 << 22
    ]  # fmt: skip
    for dtype in ("bfloat16", "float32"):
        for shape in shapes:
            for what in ("forward", "backward"):
                yield _attention(*shape, what, dtype)
    for shape in decoding:
        yield _attention(*shape, "decode", "bfloat16")


def _attention(b: int, s: int, heads: int, kv: int, head: int, what: str, dtype: str) -> Item:
    def make(bench: RecordingSetup) -> Callable[[], object]:
        backward = what == "backward"
        q = _random(bench, b, heads, 1 if what == "decode" else s, head, dtype=dtype, grad=backward)
        k, v = (_random(bench, b, kv, s, head, dtype=dtype, grad=backward) for _ in range(2))

        def forward() -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=what != "decode", enable_gqa=kv != heads)

        return _backward(forward, [q, k, v]) if backward else forward

    sizes = {"batch": b, "length": s, "heads": heads, "kv_heads": kv, "head": head}
    return _in(dtype, kernel(f"attention_{what}", make, sizes))


def memory(tiny: bool) -> Iterator[Item]:
    """What memory binds: elementwise operators, norms, softmax, embeddings, losses, optimizers."""
    elements = (1 << 12,) if tiny else tuple(1 << k for k in (12, 16, 20, 22, 24, 26, 28))
    tables = ((16, 64),) if tiny else ((2048, 768), (8192, 768), (4096, 4096), (16384, 4096), (65536, 1024))
    rows = ((16, 100),) if tiny else ((4096, 32128), (8192, 50257), (4096, 128256))
    for dtype in ("bfloat16", "float32"):
        for name, call in _ELEMENTWISE.items():
            for n in elements:
                yield _elementwise(name, call, n, dtype)
        for name, norm in _ROWS.items():
            for r, c in tables:
                yield _row_by_row(name, norm, r, c, dtype)
        for r, vocabulary in rows:
            yield _looked_up("cross_entropy", r, vocabulary, dtype)
            yield _looked_up("embedding", r, vocabulary, dtype)
    for name in ("sgd", "adamw", "adamw_fused"):
        for n in (1 << 12,) if tiny else (1 << 22, 1 << 25, 1 << 28):
            yield _optimizer(name, n)


_ELEMENTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "relu": lambda x, y: F.relu(x),
    "gelu": lambda x, y: F.gelu(x),
    "silu": lambda x, y: F.silu(x),
    "copy": lambda x, y: y.copy_(x),
    "sum": lambda x, y: x.sum(),
    "dropout": lambda x, y: F.dropout(x, 0.1),
    "cast": lambda x, y: x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float32),
}

_ROWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "layer_norm": lambda x, w: F.layer_norm(x, w.shape, w, w),
    "softmax": lambda x, w: F.softmax(x, -1),
}


def _elementwise(name: str, call: Callable[[Tensor, Tensor], Tensor], n: int, dtype: str) -> Item:
    def make(bench: RecordingSetup) -> Callable[[], object]:
        x, y = (_random(bench, n, dtype=dtype) for _ in range(2))
        return lambda: call(x, y)

    return _in(dtype, kernel("elementwise", make, {"op": name, "n": n}))


def _row_by_row(name: str, call: Callable[[Tensor, Tensor], Tensor], rows: int, columns: int, dtype: str) -> Item:
    def make(bench: RecordingSetup) -> Callable[[], object]:
        x, w = _random(bench, rows, columns, dtype=dtype), _random(bench, columns, dtype=dtype)
        return lambda: call(x, w)

    return _in(dtype, kernel(name, make, {"rows": rows, "columns": columns}))


def _looked_up(name: str, rows: int, vocabulary: int, dtype: str) -> Item:
    def make(bench: RecordingSetup) -> Callable[[], object]:
        at = torch.randint(vocabulary, (rows,), device=bench.device)
        if name == "embedding":
            table = _random(bench, vocabulary, 512, dtype=dtype)
            return lambda: F.embedding(at, table)
        scores = _random(bench, rows, vocabulary, dtype=dtype)
        return lambda: F.cross_entropy(scores, at)

    return _in(dtype, kernel(name, make, {"rows": rows, "vocabulary": vocabulary}))


def _optimizer(name: str, n: int) -> Item:
    def make(bench: RecordingSetup) -> Callable[[], object]:
        parameters = [nn.Parameter(torch.randn(n // 64, device=bench.device)) for _ in range(64)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        if name == "sgd":
            return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True).step
        fused = name == "adamw_fused"
        return torch.optim.AdamW(parameters, foreach=not fused, fused=fused).step

    return kernel("optimizer", make, {"op": name, "n": n, "tensors": 64, "dtype": "float32"}, cold=False)
