"""Kernels of networks that infer, as eager PyTorch calls them."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice

import pytest

torch = pytest.importorskip("torch")

from triosim.operators import kind  # noqa: E402
from triosim.sources.record import inference  # noqa: E402
from triosim.sources.record.cases import Rates, SizeDraws  # noqa: E402
from triosim.sources.record.inference import inference_cases  # noqa: E402
from triosim.sources.runtimes.draws import Draws  # noqa: E402
from triosim.sources.runtimes.kernels import RuntimeRates, kernels  # noqa: E402

RATES = Rates({torch.float32: 50e9}, 10e9)


def test_pytorch_makes_what_the_network_says() -> None:
    """The same kernels as those that ONNX Runtime is measured by, each with the result that its graph has."""
    sizes = SizeDraws("cpu", RATES, 1e-4)
    drawn = kernels(Draws(1e-4), RuntimeRates(50e9, 10e9))
    graphs = (one.graph for one in drawn if one.graph.network.operators[0].type in inference._CALLS)
    kinds = set()
    with torch.inference_mode():
        for case, graph in islice(zip(inference_cases(sizes), graphs, strict=False), 150):
            result = case.func(*case.make())
            (name,) = graph.network.outputs
            made = result[0] if isinstance(result, tuple) else result
            assert tuple(made.shape) == tuple(graph.network.tensors[name].shape), case
            assert torch.isfinite(made).all() or case.func is torch.ops.aten.sqrt.default, case
            kinds.add(kind(case.func.name()))
    assert {"convolution", "matmul", "linear", "elementwise", "pooling", "reduction", "softmax", "embedding"} <= kinds


def test_kernels_get_shorter_with_what_they_may_take() -> None:
    sizes = SizeDraws("cpu", RATES, 10e-3)
    every = (case for case in inference_cases(sizes) if case.what != "embedding")  # whose table is as large as it is
    long = [_elements(next(every)) for _ in range(200)]
    sizes.longest_s = 20e-6
    assert max(_elements(next(every)) for _ in range(60)) < max(long) / 10


def _elements(case: inference.Case) -> int:
    return sum(x.numel() for x in torch.utils._pytree.tree_leaves(list(case.make())) if isinstance(x, torch.Tensor))


FAULTS = """
import resource, torch
from triosim.sources.record import bench
torch.set_num_threads(1)
{before}
image, weight = torch.ones(1, 64, 112, 112), torch.ones(64, 1, 3, 3)
def run():
    return torch.ops.aten.convolution.default(image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 64)
with torch.inference_mode():
    run(), run()
    began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        run()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other allocators have other thresholds")
def test_what_a_kernel_frees_stays_with_the_process() -> None:
    def faults(before: str) -> int:
        program = FAULTS.format(before=before)
        return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)

    assert faults("bench._keep_memory()") < 100, "pages that the system has to find and clear"
