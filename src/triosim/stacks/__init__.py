"""Software stacks: what a training framework really runs around a model's own operators, one TOML file each.

A stack is a list of facts, each with its source: kernels that are fused, which attention, what the host costs, in which
type gradients are added up and reduced, whether they are clipped and the loss scaled, to what the vocabulary is padded.
Nothing in it is a factor on a time.  ``--stack NAME`` takes one of :func:`names`, or a file of one's own; what is asked
for beside it beats it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, no_such_file, quoted, says_where, unknown

FOLDER = Path(__file__).parent
ATTENTIONS = ("auto", "unfused", "flash1", "flash2", "flash3", "cudnn")
GRADIENTS = ("parameter", "parameter-fused", "float32", "float32-copied", "float32-fused")
"""Where micro-batches add their gradients up: in the type of the parameters or in float32 *main gradients*; where the
product itself that makes a weight's gradient adds it (``-fused``) there are main gradients of either type.  Those in
float32 are of bfloat16 parameters: frameworks add up float16, whose steps are finer, in its own type.  What is added to
them is the 16-bit gradient, or a float32 copy of it that is made first (``-copied``)."""
ONE_BY_ONE = "one-by-one"
EXPERTS = ("grouped", ONE_BY_ONE)
"""How experts multiply: all in one kernel, or each in one of its own, as each has its own cast, and its own sums and
products of a bias that is weighed."""
ATTENTION_PART, ROUTER_PART, PREPROCESS_PART = "attn", "moe_router", "moe_preprocess"
GRAPHS = (
    "", ATTENTION_PART, f"{ROUTER_PART}+{PREPROCESS_PART}", f"{ATTENTION_PART}+{ROUTER_PART}+{PREPROCESS_PART}",
)  # fmt: skip
"""Parts of a block that are launched as a graph of their own, in Megatron-Core's words."""
COUNTED_BY_HOST = "host"
COUNTS = ("device", COUNTED_BY_HOST)
"""Who reads how many rows each expert has: the kernels, or the host, which waits for it and launches them by it."""
GATHERS = ("block", "module")
"""What is gathered at once where parameters are sharded: a repeated block, or a module with parameters of its own."""
NORMS = ("one", "composed", "wide")
"""How an RMS norm is run: by one kernel, operator by operator in float32, or by one kernel from a float32 copy."""
LOSSES = ("", "fused", "composed", "in-place")
"""How cross entropy is run: by one kernel, operator by operator with a tensor for each step, or in steps that all write
over one float32 copy of the scores."""
FUSIONS = ("", "fused", "composed")
MERGES = ("composed", "fused")
STORED = ("", "float8_e4m3fn")
APART, IN_CONVOLUTIONS = "apart", "in-convolutions"
BATCH_NORMS = (APART, IN_CONVOLUTIONS)
"""Who runs batch norms: kernels of their own, or the convolutions before and behind them."""
_FUSED = {"": None, "fused": True, "composed": False}
REDUCTIONS = ("gradient", "float32", "bfloat16")
NEEDED, NEEDED_AND_SAVED = "needed", "needed-and-saved"
RECOMPUTED = ("block", NEEDED, NEEDED_AND_SAVED)
"""What of a block runs again where all of it is to be: everything, or what its backward needs; in the last, products
that a policy saves stay for the backward although nothing in it reads them."""
BALANCED, EVEN, EVEN_WITH_ENDS = "balanced", "even", "even-with-ends"
CUTS = (BALANCED, EVEN, EVEN_WITH_ENDS)
"""How blocks are divided among pipeline stages where nobody names modules: so that the slowest stage is fast; equally
many to each, what is before the first and after the last of them beside; or these two counted as a block each."""
HOSTS = ("", "eager", "large-model", "compiled", "graph", "none")


@dataclass(frozen=True)
class Stack:
    """What a framework does around a model's own operators.

    Attributes:
        name: as users type it.
        about: what it is, in a few words.
        attention: its kernels (:data:`ATTENTIONS`).
        fused: whether it calls fused operators (rotary positions, SwiGLU, cross entropy, the optimizer).
        fused_softmax: of an unfused attention: scale, mask and softmax are one kernel.
        added_biases: biases of linear layers are added by kernels of their own, not by the products.
        copied_heads: of an unfused attention: heads are copied to lie one after the other before its products.
        joined_products: queries, keys and values are made by one product, and so are gate and up.
        repeated_heads: keys and values of grouped heads are copied for each head of queries before an attention that
            could read them as they are.
        masters: the optimizer updates float32 copies of 16-bit parameters; otherwise these themselves, with states in
            their type.
        norms: how an RMS norm is run (:data:`NORMS`).
        loss: how cross entropy is run (:data:`LOSSES`); ``""`` is one kernel if ``fused``.
        swiglu: whether SwiGLU is one kernel (:data:`FUSIONS`); ``""`` follows ``fused``.
        gelu: whether GELU by tanh (``gelu_new`` of configurations) is ``composed`` of eight operators; ``""`` and
            ``fused`` are one.
        stored_gate: type in which one SwiGLU kernel keeps what it read for its backward (:data:`STORED`), copied in the
            forward and back in the backward; ``""`` keeps it as it is.
        fused_pointwise: whether chains of elementwise operators, casts and the norm of their rows are one kernel each
            (:mod:`triosim.composition.pointwise`).
        batch_norms: who runs them (:data:`BATCH_NORMS`); convolutions do where ``fused_pointwise`` holds.
        host: what launching costs, a row of the table of hosts; ``""`` follows the devices.
        gathering_host: the same where parameters are gathered anew in each pass (ZeRO 3), if something is called around
            each module there; ``""`` is ``host``.
        gradients: where micro-batches add gradients up (:data:`GRADIENTS`).
        reduce: type in which gradients are reduced (:data:`REDUCTIONS`); ``gradient`` is that of what is added up.
        clip: whether the norm of all gradients is found and they are scaled by it.
        loss_scale: whether 16-bit floats (not bfloat16) are trained with a scaled loss, so that gradients are checked
            and unscaled.
        copied_gradients: whether float16 gradients are copied to float32 before they are checked,
            clipped and given to the optimizer.
        overlap_gradients: whether gradients are reduced beside the backward; otherwise all at once after it, or, where
            parameters are sharded too, each while the backward waits for it.
        overlap_parameters: whether parameters that each rank has updated a part of are gathered beside the next
            forward, which waits for those that it reads; otherwise all after the update.
        bucket_parameters: parameters whose gradients are reduced at once; 0 for as many bytes as the plan says.
        bucket_parameters_per_replica: they are at least so many times the replicas.
        later_buckets: whether gradients are divided into buckets behind the first part of a pipeline too, on later
            stages and in later parts of the first; otherwise all of a part are reduced when the last is made.
        overlap_tensor: whether transfers among tensor-parallel ranks run beside the product that makes a weight's
            gradient; otherwise nothing computes beside them.
        experts: how experts multiply (:data:`EXPERTS`).
        expert_counts: who reads how many rows each expert has (:data:`COUNTS`), unless all are padded to a capacity.
        merges: how results of a ring's blocks are merged (:data:`MERGES`): ``fused`` in one kernel for each in their
            own type, or ``composed`` of operators in float32, which ``fused_pointwise`` joins.
        expert_padding: whether rows of experts are copied to be padded before they are cast to 8 or 4 bits, and back,
            unless all are padded to a capacity.
        graphs: parts of a block that are launched as a graph (:data:`GRAPHS`); the host has a row of its own for a
            graph of the whole iteration.
        gathers: what is gathered at once where parameters are sharded (:data:`GATHERS`); modules are gathered one ahead
            of their use, and those of small parameters are kept.
        whole_parameters: whether ZeRO 2 divides gradients and states only, so that parameters are whole in every pass
            and those of which a rank has updated a part are gathered after the update; otherwise they are gathered in
            each micro-batch, as PyTorch's ``fully_shard`` does without ``reshard_after_forward``.
        listed_collectives: whether parameters in shards are gathered, and their gradients reduced, by collectives that
            take a tensor for each rank (``torch.distributed.all_gather``, ``reduce_scatter``): the host makes a view of
            each rank's part and launches a copy of it (``ProcessGroupNCCL.cpp`` flattens what it is given), so that a
            collective costs it an operator a rank.
        blocking_gathers: whether the host waits, after each gather of parameters in shards, until the device has
            nothing left to do (``torch.cuda.synchronize``).
        blocking_launches: whether the host waits for every kernel that it launches (``CUDA_LAUNCH_BLOCKING=1``).
        blocking_transfers: whether the host waits, after every transfer between pipeline stages, until the device has
            nothing left to do (``torch.cuda.synchronize``); interleaved schedules exchange once after a forward and the
            backward that follows.
        recomputed: what of a block runs again under full recomputation (:data:`RECOMPUTED`).
        stages: how blocks are divided among pipeline stages (:data:`CUTS`).
        own_tokens: whether ranks that divide each expert send the tokens of their own part of the sequence and gather
            what came; otherwise each sends all of them.
        scattered_transfers: whether a tensor-parallel rank sends only its part of a value to the next stage, which
            gathers the parts there; where the sequence is parallel too, ranks have parts anyway.
        vocabulary_multiple: the vocabulary is padded to a multiple of it.
        vocabulary_per_rank: the multiple is of each tensor-parallel rank.
        sources: where each fact is from, by its name.
    """

    name: str = "torch-eager"
    about: str = "PyTorch as it runs operator by operator"
    attention: str = "auto"
    fused: bool = False
    fused_softmax: bool = True
    added_biases: bool = False
    copied_heads: bool = False
    repeated_heads: bool = False
    joined_products: bool = False
    masters: bool = True
    norms: str = "one"
    loss: str = ""
    swiglu: str = ""
    gelu: str = ""
    stored_gate: str = ""
    fused_pointwise: bool = False
    batch_norms: str = APART
    host: str = ""
    gathering_host: str = ""
    gradients: str = "parameter"
    reduce: str = "gradient"
    clip: bool = False
    loss_scale: bool = False
    copied_gradients: bool = False
    overlap_gradients: bool = True
    overlap_parameters: bool = False
    bucket_parameters: int = 0
    bucket_parameters_per_replica: int = 0
    later_buckets: bool = True
    overlap_tensor: bool = True
    experts: str = "grouped"
    expert_counts: str = "device"
    expert_padding: bool = False
    merges: str = "composed"
    graphs: str = ""
    gathers: str = "block"
    whole_parameters: bool = False
    listed_collectives: bool = False
    blocking_gathers: bool = False
    blocking_launches: bool = False
    blocking_transfers: bool = False
    recomputed: str = "block"
    stages: str = BALANCED
    own_tokens: bool = False
    scattered_transfers: bool = False
    vocabulary_multiple: int = 1
    vocabulary_per_rank: bool = False
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def model_options(self) -> dict[str, Any]:
        """What :func:`triosim.model` is told of it; the vocabulary's padding is left to who knows the ranks."""
        return {
            "attention": self.attention, "fused": self.fused, "fused_softmax": self.fused_softmax, "norms": self.norms,
            "loss": self.loss, "fused_gate": _FUSED[self.swiglu], "stored_gate": self.stored_gate,
            "composed_gelu": self.gelu == "composed",
            "added_biases": self.added_biases, "copied_heads": self.copied_heads,
            "repeated_heads": self.repeated_heads, "joined_products": self.joined_products, "masters": self.masters,
            "one_by_one": self.experts == ONE_BY_ONE,
        }  # fmt: skip

    @property
    def context_merges(self) -> str:
        """One of :data:`triosim.operators.context_copies.MERGES`."""
        return "compiled" if self.merges == "composed" and self.fused_pointwise else self.merges

    def vocabulary(self, size: int, ranks: int = 1) -> int:
        """The padded size of a vocabulary, over so many tensor-parallel ranks.

        Example:
            >>> Stack(vocabulary_multiple=128, vocabulary_per_rank=True).vocabulary(50257, 8)
            51200
        """
        multiple = self.vocabulary_multiple * (ranks if self.vocabulary_per_rank else 1)
        return math.ceil(size / multiple) * multiple

    def line(self) -> str:
        """What a result says of it among its sources."""
        clipped = ", clipped" if self.clip else ""
        reduced = "" if self.reduce == "gradient" else f", reduced in {self.reduce}"
        after = "" if self.overlap_gradients else ", reduced after the backward"
        after += ", parameters gathered beside the next forward" if self.overlap_parameters else ""
        if self.bucket_parameters:
            after += f", in buckets of {self.bucket_parameters:,} parameters"
        after += "" if self.overlap_tensor else ", nothing computed beside tensor-parallel transfers"
        waits = "; every launch waits for its kernel" if self.blocking_launches else ""
        waits += "; the host waits for every transfer between stages" if self.blocking_transfers else ""
        waits += "; parameters are gathered module by module" if self.gathers == "module" else ""
        waits += ", each a tensor for each rank" if self.listed_collectives else ""
        waits += "; the host waits for every gather" if self.blocking_gathers else ""
        waits += "; ZeRO 2 leaves parameters whole and gathers them after the update" if self.whole_parameters else ""
        waits += f"; SwiGLU's input kept in {self.stored_gate}" if self.stored_gate else ""
        waits += f"; {self.graphs} of each block launched as a graph" if self.graphs else ""
        waits += "; ranks of a stage send a part each" if self.scattered_transfers else ""
        waits += "" if self.masters else "; 16-bit parameters updated without float32 copies"
        waits += "" if self.stages == BALANCED else f"; stages of equally many blocks ({self.stages})"
        added = f"gradients added up in {self.gradients}{reduced}{after}{clipped}"
        return f"stack {self.name}: {self.about}; {added}{waits}"


ASSUMED = Stack()
"""What is taken where nobody names a stack."""

_CHOICES = {
    "attention": ATTENTIONS, "gradients": GRADIENTS, "reduce": REDUCTIONS, "host": HOSTS, "gathers": GATHERS,
    "experts": EXPERTS, "expert_counts": COUNTS, "graphs": GRAPHS, "norms": NORMS, "loss": LOSSES, "swiglu": FUSIONS,
    "gelu": FUSIONS, "batch_norms": BATCH_NORMS, "gathering_host": HOSTS, "merges": MERGES,
    "stages": CUTS, "recomputed": RECOMPUTED, "stored_gate": STORED,
}  # fmt: skip


def names() -> list[str]:
    """Stacks that come with the program."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@functools.lru_cache(maxsize=32)
def load(name: str) -> Stack:
    """A stack by name, or the one that a TOML file describes; one source may be of several facts, named side by side.

    Raises:
        InputError: there is no such stack, or the file has an unknown key, a value that makes no sense, or a fact
            without its source.
    """
    if name in names():
        path = FOLDER / f"{name}.toml"
    elif says_where(name, (".toml",)):
        if not os.path.exists(name):
            raise no_such_file(name)
        path = Path(name)
    else:
        raise unknown("stack", name, names())
    table = guarded.parse_toml(path.read_text(encoding="utf-8"), str(path))
    return _checked(table, path)


def _checked(table: Mapping[str, Any], path: Path) -> Stack:
    fields = {f.name: f for f in dataclasses.fields(Stack) if f.name not in ("name", "sources")}
    given = dict(table)
    told = given.pop("sources", {})
    if not isinstance(told, Mapping):
        raise InputError(f"{path}: sources must be a table that says where each fact is from")
    sources = {fact: source for facts, source in told.items() for fact in facts.split()}
    for key, value in given.items():
        if key not in fields:
            raise InputError(f"{path}: {unknown('key', key, [*fields, 'sources'])}")
        kind = type(getattr(ASSUMED, key))
        if type(value) is not kind or (kind is int and value < 1):
            what = {"bool": "true or false", "int": "a whole number of at least 1"}.get(kind.__name__, "a text")
            raise InputError(f"{path}: {key} must be {what}, not {quoted(value)}")
        if key in _CHOICES and value not in _CHOICES[key]:
            raise InputError(f"{path}: {unknown(key, value, _CHOICES[key])}")
        if key != "about" and not (isinstance(sources.get(key), str) and sources[key]):
            raise InputError(f"{path}: {key} has no source: say under [sources] where it is from")
    return Stack(name=path.stem, **given, sources=tuple(sorted(sources.items())))
