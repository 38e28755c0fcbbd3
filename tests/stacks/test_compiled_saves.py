"""What stays for the backward of a compiled block against AOTAutograd's min-cut partitioner, which chooses it.

It makes cheap chains again, as far as that saves bytes, and keeps what products and attention read.  The difference of
three blocks and two is that of a block; views of one tensor are one tensor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sources.models.test_against_torch import BATCH, LENGTH, bytes_of
from tests.sources.models.test_against_transformers import CASES
from triosim.sources.modelling import model
from triosim.stacks import load
from triosim.trace.tables import Category

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._functorch.partitioners import min_cut_rematerialization_partition  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch.nn import functional as F  # noqa: E402

VIEWS = frozenset((
    "view", "permute", "transpose", "alias", "t", "expand", "unsqueeze", "squeeze", "_unsafe_view", "slice", "split",
    "split_with_sizes", "reshape", "detach", "select",
))  # fmt: skip


def origin(node: Any) -> Any:
    """The node that made what a view shows."""
    while node.op == "call_function":
        name = getattr(node.target, "__name__", str(node.target)).split(".")[0]
        if name not in VIEWS and (name != "getitem" or origin(node.args[0]) is node.args[0]):
            break
        node = node.args[0]
    return node


def theirs(model_type: str, configuration: dict[str, Any], layers: int) -> int:
    """Bytes that the compiled forward of a step hands to its backward, parameters and inputs left out."""
    torch._dynamo.reset()
    config = transformers.AutoConfig.for_model(model_type, **{**configuration, "num_hidden_layers": layers})
    net = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(torch.bfloat16).train()
    found: list[int] = []

    def forward(graph: Any, given: Any) -> Any:
        handed = next(node for node in graph.graph.nodes if node.op == "output").args[0][1:]
        made = {origin(node): node for node in handed if hasattr(node, "meta")}
        both = [(first.meta["val"], node.meta["val"]) for first, node in made.items() if first.op != "placeholder"]
        tensors = [whole if isinstance(whole, torch.Tensor) else part for whole, part in both]
        found.append(sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor)))
        return graph.forward

    backend = aot_autograd(
        fw_compiler=forward, bw_compiler=lambda graph, given: graph.forward,
        partition_fn=min_cut_rematerialization_partition, decompositions=select_decomp_table(),
    )  # fmt: skip
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)

    def loss(tokens: Any) -> Any:
        scores = net(tokens, use_cache=False).logits
        return F.cross_entropy(scores.view(-1, scores.shape[-1]).float(), tokens.view(-1))

    torch.compile(loss, backend=backend)(tokens).backward()
    return sum(found)


def ours(model_type: str, configuration: dict[str, Any], layers: int, folder: Path) -> int:
    stack, file = load("torch-compile"), folder / "config.json"
    file.write_text(json.dumps({"model_type": model_type, **configuration, "num_hidden_layers": layers}))
    options = {**stack.model_options, "fused_softmax": stack.fused_softmax}
    step = model(str(file), batch_size=BATCH, sequence_length=LENGTH, precision="bfloat16", **options)
    return bytes_of(step, Category.ACTIVATION)


@pytest.mark.parametrize("case", ["llama", "qwen3", "olmo2", "phi3", "granite", "arcee"])
def test_a_compiled_block_keeps_what_the_partitioner_keeps(case: str, tmp_path: Path) -> None:
    model_type, configuration = CASES[case]
    own = [ours(model_type, configuration, layers, tmp_path) for layers in (2, 3)]
    partitioned = [theirs(model_type, configuration, layers) for layers in (2, 3)]
    assert own[1] - own[0] == partitioned[1] - partitioned[0] > 0
