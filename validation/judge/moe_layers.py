"""One layer of a mixture of experts by itself, forward and backward, against Megatron-LM's performance baselines.

    python -m validation moe_layers --data ../shared/data/training/measured.csv

Eight H100 with the experts divided among them (EP 8), 4,096 tokens each, balanced; the layer is the second of two of a
model with the sizes of the row, in Megatron-Core's operators.  Its times are those of its kernels and of what its
transfers are waited for.  A layer measured by itself has run for less than a second, so *burst* takes kernels as they
are before the governor of the power has seen them, and judges; *trained* takes them as a training of minutes has them
(:mod:`triosim.kernels.sustained`).  Who dispatches (``a2a``, ``deepep``, ``hybridep``) moves the same bytes within a
server, so it changes no prediction.  Nothing is fitted here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from validation import command

import triosim
from triosim import Plan
from triosim.core.errors import InputError
from triosim.kernels.models.physical import PhysicalBaseModel
from triosim.prediction.priced_job import price_job
from triosim.stacks import load
from triosim.trace.tables import Phase

SOURCE = "Megatron-LM MoE layer perf baseline"
STACK = "megatron-core"
LAYER = "model.layers.1.mlp"
MOST = 0.15
"""Mean absolute error that is asked for."""
RECIPES = {"bf16": "none", "fp8 e4m3 blockwise": "fp8-block"}
PASSES = {"forward": (Phase.FORWARD,), "backward": (Phase.BACKWARD, Phase.RECOMPUTE)}


class Layer(NamedTuple):
    """Seconds of a layer's forward and backward."""

    forward: float
    backward: float

    @property
    def whole(self) -> float:
        """Both."""
        return self.forward + self.backward


def main() -> int:
    """Print a line for each row; the exit code tells whether the mean error is within what is asked."""
    parser = command.parser(__doc__, "table of measured training iterations")
    options = parser.parse_args()
    print(f"{'row':6} {'model':13} {'precision':18} {'by':9} {'measured':>9} {'burst':>9} {'trained':>9}   off  "
          "forward backward")  # fmt: skip
    found, errors = [], []
    for row in command.rows(command.find(options.data, "training/measured.csv"), "source", "iter_time_basis"):
        if row["source"] != SOURCE:
            continue
        measured, (burst, trained) = measured_layer(row), predicted(row)
        off = [a / b - 1 for a, b in zip((burst.whole, *burst), (measured.whole, *measured), strict=True)]
        errors.append(off[0])
        by = row["notes"].split(";")[0].removeprefix("dispatcher ")
        name = row["model"].removeprefix("single MoE layer ").removesuffix(" proxy")
        times = (measured.whole, burst.whole, trained.whole)
        print(f"{row['id']:6} {name:13} {row['precision']:18} {by:9} " + " ".join(f"{s * 1e3:6.2f} ms" for s in times)
              + f" {off[0]:+6.1%} {off[1]:+7.1%} {off[2]:+8.1%}", flush=True)  # fmt: skip
        found.append({"id": row["id"], "measured_s": measured, "burst_s": burst, "trained_s": trained})
    if not found:
        raise InputError(f"{options.data}: has no row of {SOURCE}")
    mean, bias = float(np.mean(np.abs(errors))), float(np.mean(errors))
    print(f"{len(errors)} rows: mean absolute error {mean:.1%} ({MOST:.0%} asked), bias {bias:+.1%}")
    command.write(options.json, found)
    return 0 if mean <= MOST else 1


def measured_layer(row: Mapping[str, str]) -> Layer:
    """What a row says, in its own words ``forward N ms + backward N ms``."""
    forward, backward = re.findall(r"(?:forward|backward) ([\d.]+) ms", row["iter_time_basis"])
    return Layer(float(forward) * 1e-3, float(backward) * 1e-3)


def configuration(row: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """A model of two layers whose second is that of a row."""
    sizes = {"num_hidden_layers": 2, "hidden_size": int(row["hidden"]), "num_experts_per_tok": int(row["moe_topk"])}
    experts, inner = int(row["moe_experts"]), int(row["ffn_hidden"])
    if "DeepSeek" in row["model"]:
        own = {"n_routed_experts": experts, "moe_intermediate_size": inner, "first_k_dense_replace": 1}
        return "deepseek-v3", {**sizes, **own, "n_group": 1, "topk_group": 1}
    return "mixtral-8x7b", {**sizes, "num_local_experts": experts, "intermediate_size": inner}


def predicted(row: Mapping[str, str]) -> tuple[Layer, Layer]:
    """The layer by itself, and in a training of minutes."""
    stack, (name, sizes) = load(STACK), configuration(row)
    step = triosim.model(name, sequence_length=int(row["seq_len"]), configuration=sizes, **stack.model_options)
    plan = Plan(
        ep=int(row["ep"]), global_batch_size=int(row["global_batch"]), micro_batches=1, stack=stack,
        quantize=RECIPES[row["precision"]],
    )  # fmt: skip
    machine = triosim.system("dgx-h100", nodes=1)
    result = triosim.simulate(step, machine, plan)
    job = price_job(step, machine, plan)
    operators, times = job.step.trace.operators, job.all_times[job.models[0]].seconds
    alone = PhysicalBaseModel().predict(job.step.trace, machine.models[0]).seconds
    paths = np.array([*job.step.trace.modules.path, ""])
    inside = np.char.startswith(paths, LAYER)[operators.module]
    found = []
    for seconds in (np.minimum(alone, times), times):
        each = []
        for phase, codes in PASSES.items():
            rows = inside & np.isin(operators.phase, codes)
            waits = sum(
                one.exposed_communication_s for one in result.layers
                if one.module.startswith(LAYER) and one.phase == phase
            )  # fmt: skip
            each.append(float(seconds[rows].sum()) + waits)
        found.append(Layer(*each))
    return found[0], found[1]


if __name__ == "__main__":
    command.run(main)
