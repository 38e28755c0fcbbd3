"""Models by name or from a configuration file: the Trace of one step, without PyTorch and without hardware.

``model("llama-3-8b")`` gives the operators, tensors and identities that recording the usual PyTorch implementation on a
CUDA device would give, and no times: those come from an operator model.  What a family of models computes is one
file in :mod:`triosim.sources.models`; the sizes of named models are in ``presets.toml`` beside it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import LONGEST_VALUE, InputError, quoted, unknown
from triosim.core.limits import WEIGHT_BYTES, check_memory
from triosim.core.registry import Registry
from triosim.core.tiling import NotRepeating
from triosim.sources.models._decoder import Decoder, joined, with_layers
from triosim.sources.models._family import Family, Stages, Text, field_type, wrong_value
from triosim.sources.models._family import Images as Images  # for families from outside, as the next two lines
from triosim.sources.models._kernels import LayerKernels
from triosim.sources.models._llama_like import CHUNKED, LAYER_TYPES, LINEAR, SLIDING
from triosim.sources.models._lora import checked
from triosim.sources.models._lora import lora as lora_of
from triosim.sources.models._net import Net
from triosim.sources.models._optimizers import optimize
from triosim.sources.models._tape import Dim
from triosim.sources.models._tape import Tensor as Tensor
from triosim.sources.models._weights import Weights as Weights
from triosim.trace.repeated import UnitRun, lengthened
from triosim.trace.tables import BATCH, Meta, Trace
from triosim.transform.optimizing import optimizer as optimizer_of

SUFFIXES = (".toml", ".yaml", ".yml", ".json")
"""Endings of configuration files."""
CONFIGURATION = "config.json"
"""What Hugging Face calls the file in a folder of a model."""

MODELS = Registry("triosim.sources.models", "triosim.models", "model family", Family)
"""Families of models; a family's class is its configuration."""

PRECISIONS = {
    "float32": "float32", "fp32": "float32", "tfloat32": "tfloat32", "tf32": "tfloat32", "bfloat16": "bfloat16",
    "bf16": "bfloat16", "float16": "float16", "fp16": "float16", "autocast-bfloat16": "autocast-bfloat16",
    "amp-bf16": "autocast-bfloat16",
    "bf16-mixed": "autocast-bfloat16", "autocast-float16": "autocast-float16", "amp-fp16": "autocast-float16",
    "16-mixed": "autocast-float16",
}  # fmt: skip
"""Accepted precisions and what they mean; ``bf16-mixed`` and ``16-mixed`` are PyTorch Lightning's names."""
PRODUCTS_IN_FEW_BITS = "(products in 8 or 4 bits are asked for by quantize, as fp8-delayed)"
"""What is said of a precision of so many bits, which is none of all a model's values."""
ROUNDED = "tfloat32"
"""The precision that is float32 but for its products."""
AUTOCAST = "autocast-"
"""What names of precisions begin with in which float32 parameters are multiplied in 16 bits."""


@dataclass(frozen=True)
class Preset:
    """A model with a name.

    Attributes:
        name: as users type it.
        family: the registered family that builds it.
        parameters: number of parameters, tied weights once.
        source: where the configuration was published.
        configuration: the family's configuration.
    """

    name: str
    family: str
    parameters: int
    source: str
    configuration: Mapping[str, Any]


class _Presets(Mapping[str, Preset]):
    """Named models by name, each of which is read when it is asked for.

    Args:
        text: TOML: one table for each model.
        where: for messages.
    """

    def __init__(self, text: str, where: str) -> None:
        heads = list(_HEAD.finditer(text))
        ends = [*(head.start() for head in heads[1:]), len(text)]
        self._where = where
        self._tables = {head[2]: text[head.start() : end] for head, end in zip(heads, ends, strict=True)}
        self._read: dict[str, Preset] = {}

    def __getitem__(self, name: str) -> Preset:
        if name not in self._read:
            row = guarded.parse_toml(self._tables[name], self._where)[name]
            own = {key: row.pop(key) for key in ("family", "parameters", "source")}
            self._read[name] = Preset(name=name, configuration=row, **own)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __contains__(self, name: object) -> bool:
        return name in self._tables


_HEAD = re.compile(r'^\[("?)([^]"]+)\1\]$', re.MULTILINE)
"""The line that begins the table of a model."""


@functools.lru_cache(maxsize=1)
def presets() -> Mapping[str, Preset]:
    """All named models, in the order of the data file; imports no family."""
    file = Path(__file__).parent / "models" / "presets.toml"
    return _Presets(file.read_text(encoding="utf-8"), file.name)


def _plain(name: str) -> str:
    """A name without case and separators: ``ResNet-50`` is ``resnet50``."""
    return name.strip().lower().replace("-", "").replace("_", "").replace(" ", "")


@functools.lru_cache(maxsize=1)
def _by_plain_name() -> Mapping[str, str]:
    return {_plain(name): name for name in presets()}


_TUNED = r"(?i)^meta-|-(?:instruct|chat|hf|it|base|pt|v\d(?:\.\d)?)(?=-|$)"
"""What a hub's name says of a model beside its sizes: what its weights were trained for, and in which form they are."""


def preset(name: str) -> Preset | None:
    """The named model that a text stands for, whatever its case and separators; None for no such model.

    A hub's name (``meta-llama/Meta-Llama-3-8B-Instruct``) stands for the model of those sizes.
    """
    owner, slash, own = name.rpartition("/")
    of_hub = slash and owner.strip(".~") and "/" not in owner
    tries = (name, own, own.removesuffix("-uncased"), re.sub(_TUNED, "", own)) if of_hub else (name,)
    plain = _by_plain_name()
    return next((presets()[plain[_plain(one)]] for one in tries if _plain(one) in plain), None)


def names() -> list[str]:
    """What :func:`model` takes as a name: all presets, then all families."""
    return [*presets(), *MODELS.names()]


def is_named(name: str) -> bool:
    """Whether a text is the name of a preset or of a family."""
    return preset(name) is not None or name in MODELS


# --- building ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepSpec:
    """How one step of a model runs; what each attribute means is said at :func:`model`, whose arguments they are."""

    batch_size: int = 1
    sequence_length: int | None = None
    image_size: int | None = None
    precision: str | None = None
    training: bool = True
    optimizer: str | None = None
    fused_optimizer: bool | None = None
    kernels: LayerKernels = LayerKernels()
    vocabulary_multiple: int = 1
    lora: str = ""
    adapters: bool = True
    scored: bool = False
    value_head: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> StepSpec:
        """From the keywords of :func:`model`, those of kernels among them."""
        names = {one.name for one in dataclasses.fields(LayerKernels)}
        kernels = {name: value for name, value in options.items() if name in names}
        return cls(kernels=LayerKernels(**kernels), **{name: one for name, one in options.items() if name not in names})

    def check(self, title: str, family: Family) -> None:
        """Refuse what makes no sense, or none for this family, before anything is built.

        Raises:
            InputError: it does.
        """
        for key in ("batch_size", "sequence_length", "image_size"):
            value = getattr(self, key)
            if value is not None and (type(value) is not int or value < 1):
                raise InputError(
                    f"{key} of model {quoted(title)} must be a whole number of at least 1, not {quoted(value)}"
                )
        for key in ("sequence_length", "image_size"):
            if getattr(self, key) is not None and key != family.sized_by:
                raise InputError(
                    f"model {quoted(title)} reads {family.reads}: {key} has no meaning for it, leave it out"
                )
        if self.precision is not None and self.precision not in PRECISIONS:
            few = re.search(r"(?<!\d)[48](?!\d)", str(self.precision)) is not None
            raise unknown("precision", self.precision, PRECISIONS, PRODUCTS_IN_FEW_BITS if few else "")
        optimizer_of(self.optimizer or family.optimizer)
        self.kernels.check()


def model(
    name: str,
    *,
    batch_size: int = 1,
    sequence_length: int | None = None,
    image_size: int | None = None,
    precision: str | None = None,
    training: bool = True,
    optimizer: str | None = None,
    fused_optimizer: bool | None = None,
    vocabulary_multiple: int = 1,
    lora: str = "",
    adapters: bool = True,
    scored: bool = False,
    value_head: bool = False,
    configuration: Mapping[str, Any] | None = None,
    **kernels: Any,
) -> Trace:
    """The trace of one step of a named model on one device, without times.

    A training step is forward, mean cross entropy over all positions in float32, backward, and the optimizer.
    With ``training=False`` it is the forward alone, without loss, dropout and statistics.

    In a 16-bit ``precision`` weights, activations and gradients have that type (batch-norm weights stay in float32)
    and the optimizer keeps a float32 master copy of each weight beside its float32 states: with AdamW 16 bytes per
    parameter in all.  See :func:`triosim.sources.models._optimizers.optimize`.  Loss scaling and gradient
    clipping are left out.

    Args:
        name: a preset (``triosim models`` lists them), a family (then ``configuration`` gives all of its sizes), or
            a configuration file (see :func:`from_file`).
        batch_size: samples in the step.
        sequence_length: tokens per sample; by default what the model was made for, at most 8192.
        image_size: height and width for models that read images; 224 by default.
        precision: ``float32``, ``bfloat16`` or ``float16``; by default bfloat16 for text and float32 for images.
            ``tfloat32`` is float32 whose matrix products are rounded where a device multiplies TF32 faster
            (``torch.set_float32_matmul_precision("high")``, and what NVIDIA's containers set).
            ``autocast-bfloat16`` and ``autocast-float16`` are PyTorch's automatic mixed precision: float32 parameters,
            copied for products in 16 bits (:mod:`triosim.sources.models._autocast`).
        training: whether gradients and the optimizer are part of the step.
        optimizer: ``adamw``, ``adam``, ``sgd`` (with momentum and weight decay) or another file of
            :mod:`triosim.transform.optimizers`, with options as ``"muon,steps=6"``; by default what is usual.
        fused_optimizer: one fused operator instead of PyTorch's ``_foreach`` list; by default with ``fused`` and where
            there are master copies.
        vocabulary_multiple: the vocabulary is padded to a multiple of it.
        lora: adapters of low rank beside frozen weights, as ``"16"`` or ``"16,targets=q_proj+v_proj,base=nf4"``
            (:class:`triosim.sources.models._lora.Lora`).
        adapters: whether they are called; off leaves the frozen weights alone, for a forward.
        scored: with ``training=False``: the loss too, which takes the log-probabilities of the labels.
        value_head: a decoder with one number for each token instead of scores of the vocabulary.
        configuration: values that replace those of the preset, such as ``{"num_hidden_layers": 4}``.
        kernels: which are called for the layers, by the fields of
            :class:`~triosim.sources.models._kernels.LayerKernels`: ``fused=True`` for the fused operators of
            large-model frameworks, ``attention="flash2"``, ``norms`` and others; FlashAttention and cuDNN take 16-bit
            types only, so float32 runs what PyTorch runs unless attention is ``unfused``.

    Raises:
        InputError: an unknown name or key, or a value that makes no sense.
        TypeError: a keyword that nobody knows.
    """
    spec = StepSpec(
        batch_size=batch_size, sequence_length=sequence_length, image_size=image_size, precision=precision,
        training=training, optimizer=optimizer, fused_optimizer=fused_optimizer, kernels=LayerKernels(**kernels),
        vocabulary_multiple=vocabulary_multiple, lora=lora,
        adapters=adapters, scored=scored, value_head=value_head,
    )  # fmt: skip
    if _is_file(name):
        return _of_path(Path(name), configuration, spec)
    return _build(name, configured(name, configuration), (), spec)


def _is_file(name: str) -> bool:
    return not is_named(name) and (Path(name).suffix.lower() in SUFFIXES or is_model_folder(Path(name)))


def is_model_folder(path: Path) -> bool:
    """Whether a folder has the configuration of a model of Hugging Face."""
    return os.path.isfile(path / CONFIGURATION)  # False for names that are too long


def configured(name: str | Path, configuration: Mapping[str, Any] | None = None) -> Family:
    """The configuration of a named model, a family or a configuration file, every value checked.

    Args:
        name: as of :func:`model`; a path is a configuration, whatever else is called so.
        configuration: values that replace those of the preset or the file.

    Raises:
        InputError: as of :func:`model`.
    """
    if isinstance(name, Path) or _is_file(name):
        return _of_file(Path(name), configuration)[0]
    family, table = _named(name)
    return _configure(family, {**table, **(configuration or {})}, f"model {quoted(name)}")


def from_file(path: str | Path, *, configuration: Mapping[str, Any] | None = None, **options: Any) -> Trace:
    """The trace of one step of the model that a TOML, YAML or JSON file describes.

    The file says ``family = "llama"`` and all of the family's sizes, or ``preset = "llama-3-8b"`` and the values
    that replace those of the preset, or it is a ``config.json`` of Hugging Face with a ``model_type`` that a
    family reads, its own or that of its ``text_config``; the trace's notes name what is passed over.

    Args:
        path: the file, or a folder that has its ``config.json``.
        configuration: values that replace those of the file.
        options: as of :func:`model`.

    Raises:
        InputError: the file cannot be read, or does not describe a model.
    """
    return _of_path(Path(path), configuration, StepSpec.of(options))


def _of_path(path: Path, configuration: Mapping[str, Any] | None, spec: StepSpec) -> Trace:
    return _build(path.name if path.is_dir() else path.stem, *_of_file(path, configuration), spec)


def _of_file(path: Path, configuration: Mapping[str, Any] | None) -> tuple[Family, tuple[str, ...]]:
    """What a configuration file describes, and what of it is passed over; see :func:`from_file`."""
    path = path / CONFIGURATION if path.is_dir() else path
    table = _read(path)
    where, notes = str(path), tuple[str, ...]()
    layer_types: Any = None
    if "model_type" in table or "_class_name" in table:
        family, table, notes, layer_types = _hugging_face(table, where)
    elif ("family" in table) == ("preset" in table):
        raise InputError(f'{where}: say which family the model is of (family = "llama") or which preset it starts from')
    else:
        key = "family" if "family" in table else "preset"
        if not isinstance(table[key], str):
            raise InputError(f"{where}: {key} must be a name, not {quoted(table[key])}")
        try:
            name = table.pop(key)
            family, base = (name, {}) if key == "family" and name in MODELS else _named(name)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        table = {**base, **table}
    made = _configure(family, {**table, **(configuration or {})}, where)
    if layer_types is not None and isinstance(made, Decoder) and not configuration:
        _check_layer_types(made, layer_types, where)
    return made, notes


def _check_layer_types(family: Decoder, layer_types: Any, where: str) -> None:
    """Compare what a file says of each layer's attention with what the family builds.

    Raises:
        InputError: they differ.
    """
    if not isinstance(layer_types, list) or len(layer_types) != family.depth:
        raise InputError(f"{where}: layer_types must be a list of the {family.depth} layers, one for each")
    linear = [getattr(family.attention(layer), "linear", False) for layer in range(family.depth)]
    known = LAYER_TYPES if any(linear) else LAYER_TYPES[:-1]
    for layer, kind in enumerate(layer_types):
        if kind not in known:
            raise InputError(f"{where}: layer_types[{layer}] {quoted(kind)} is not supported, only {', '.join(known)}")
        if (kind == LINEAR) != linear[layer]:
            raise InputError(
                f"{where}: layer_types[{layer}] is {quoted(kind)}, but in this family that layer has "
                f"{'linear attention' if linear[layer] else 'attention to tokens'}: only the usual order of layers is "
                "supported"
            )
        window = getattr(family.attention(layer), "window", 0)
        if kind != CHUNKED and (kind == SLIDING) != (window > 0):
            seen = f"a window of {window} tokens" if window else "all tokens"
            raise InputError(
                f"{where}: layer_types[{layer}] is {quoted(kind)}, but in this family that layer sees {seen}: only the "
                "usual order of layers is supported"
            )


def parameters(family: str, configuration: Mapping[str, Any]) -> int:
    """Number of parameters of a configuration, tied weights once.

    Raises:
        InputError: as :func:`model`.
    """
    return _configure(family, configuration, f"model {quoted(family)}").weights().count()


def _named(name: str) -> tuple[str, dict[str, Any]]:
    """Family and configuration of a preset or, without configuration, of a family."""
    found = preset(name)
    if found is not None:
        return found.family, dict(found.configuration)
    if name in MODELS:
        return name, {}
    if os.path.exists(name):
        raise InputError(
            f"{name} does not describe a model: give a model's name (triosim models), or its configuration "
            f"({', '.join(SUFFIXES)}, or a folder with {CONFIGURATION})"
        )
    raise unknown("model", name, names())


def _build(title: str, family: Family, notes: tuple[str, ...], spec: StepSpec) -> Trace:
    if spec.value_head:
        from triosim.sources.models._value_head import valued

        family = valued(family, title)
    spec.check(title, family)
    asked = PRECISIONS[spec.precision or family.precision]
    autocast = asked.removeprefix(AUTOCAST) if asked.startswith(AUTOCAST) else ""
    precision = "float32" if autocast or asked == ROUNDED else asked
    optimizer = spec.optimizer or family.optimizer
    training, multiple = spec.training, spec.vocabulary_multiple
    if multiple > 1 and isinstance(family, Text):
        padded = -(-family.vocab_size // multiple) * multiple
        family = type(family)(**{**vars(family), "vocab_size": padded})
    family = family if training else family.untrained()
    if spec.kernels.joined_products and isinstance(family, Decoder):
        family = joined(family)
    low_rank = lora_of(spec.lora) if spec.lora else None
    batch, size = Dim(spec.batch_size, BATCH), getattr(spec, family.sized_by) if family.sized_by else None

    def step(family: Family) -> Trace:
        narrow: list[str] = []
        if low_rank is not None and low_rank.base == "nf4":  # which layers are linear is known once they are called
            probe = Net(family.weights(), precision, False, spec.kernels, low_rank, autocast=autocast)
            family.forward(probe, family.inputs(probe, batch, size)[0])
            narrow = [path for path in probe.linears if low_rank.meets(path)]
        net = Net(family.weights(), precision, training, spec.kernels, low_rank, narrow, spec.adapters, autocast)
        x, labels = family.inputs(net, batch, size)
        scores = family.forward(net, x)
        checked(net, title)
        if not training and spec.scored:
            family.loss(net, scores, labels)
        if training:
            net.backward(family.loss(net, scores, labels), net.parameters.values())
            optimize(net, optimizer, spec.fused_optimizer)
        said = (title, family.extent(x), asked, spec.lora and f"LoRA {spec.lora}")
        meta = Meta(
            made_by="triosim.model",
            workload=", ".join(part for part in said if part),
            batch_size=spec.batch_size,
            sequence_length=int(x.shape[1]) if isinstance(family, Text) else None,
            float32_products=ROUNDED if asked == ROUNDED else "",
            symbols="model",
            notes=notes,
        )
        return net.builder.build(meta)

    return _of_few_blocks(family, step) or step(family)


def _of_few_blocks(family: Family, step: Callable[[Family], Trace]) -> Trace | None:
    """The step of a decoder of many equal blocks, from that of a few of them; None where it is not made so."""
    if not isinstance(family, Decoder):
        return None
    check_memory(WEIGHT_BYTES * family.depth, "a model of so many layers", "use fewer layers")
    run = UnitRun.of(family.kinds())
    if run is None:
        return None
    few = with_layers(family, run.kept(family.depth))
    parameters = few.weights().parameters
    inside = [name for name in parameters if name.startswith(f"{family.path(run.begin)}.")]
    more = len(inside) * run.dropped * run.period
    check_memory(WEIGHT_BYTES * (len(parameters) + more), "a model of so many layers", "use fewer layers")
    try:
        return lengthened(step(few), run, [family.path(layer) for layer in range(family.depth)])
    except NotRepeating:
        return None


# --- configurations ---------------------------------------------------------------------------------------------------


def _configure(name: str, table: Mapping[str, Any], where: str) -> Family:
    """The family's configuration from a table, every value checked."""
    cls = MODELS.get(name)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key, value in table.items():
        if key not in fields:
            raise InputError(f"{where}: {unknown(f'{name} key', key, fields)}")
        if problem := wrong_value(fields[key], value):
            raise InputError(f"{where}: {key} must be {problem}, not {quoted(value)}")
        if field_type(fields[key]) == Stages:
            check_memory(WEIGHT_BYTES * sum(value), f"{where}: {sum(value)} layers of {key}", "use fewer layers")
    missing = [k for k, f in fields.items() if f.default is dataclasses.MISSING and k not in table]
    if missing:
        raise InputError(f"{where}: family {quoted(name)} also needs {', '.join(missing)}")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    family: Family = cls(**values)
    if problem := family.problem():
        raise InputError(f"{where}: {problem}")
    return family


LACKING = {
    "rwkv rwkv7 xlstm recurrent_gemma": "their recurrences",
}  # fmt: skip
"""Model types of published models that no family reads, and what would have to be stated for them."""

_OWN = ("model_type", "_class_name", "_diffusers_version", "layer_types")


def _hugging_face(table: dict[str, Any], where: str) -> tuple[str, dict[str, Any], tuple[str, ...], Any]:
    """Family and configuration of a ``config.json``: the keys that the family has, nulls left out; what is not read;
    and what it says of each layer's attention.

    Files of ``diffusers`` name a class instead of a model type.  Of one with a ``text_config`` that a family reads it
    is the text model, whose head the whole file ties to its embedding or not.
    """
    families = {kind: name for name in MODELS.names() for kind in MODELS.get(name).model_types}
    kind, notes = table.get("model_type", table.get("_class_name")), []
    text = table.get("text_config")
    of_text = text.get("model_type") if isinstance(text, dict) else None
    if isinstance(text, dict) and "model_type" in text and (kind not in [*families] or of_text in [*families]):
        others = [key for key in table if key.endswith("_config") and key != "text_config"]
        without = f", without {_listed(others)}" if others else ""
        notes.append(f"{where}: of model_type {quoted(kind)} the text model alone (text_config){without}")
        table = {**text, **{key: table[key] for key in ("tie_word_embeddings",) if key in table}}
        kind = of_text
    if not isinstance(kind, str) or kind not in families:
        near = difflib.get_close_matches(str(kind)[:LONGEST_VALUE], families, 3, 0.6)
        hint = f" (the nearest: {', '.join(near)})" if near else f", only {', '.join(sorted(families, key=str.lower))}"
        lacks = next((what for kinds, what in LACKING.items() if kind in kinds.split()), "")
        hint = f": what it lacks is {lacks}" if lacks else hint
        raise InputError(
            f"{where}: no family reads model_type {quoted(kind)}{hint}; any PyTorch model can be recorded without its "
            "hardware or its weights: triosim trace record --fake"
        )
    cls = MODELS.get(families[kind])
    table = cls.reworded(table)
    for key, supported in cls.fixed.items():
        allowed = supported if isinstance(supported, tuple) else (supported,)
        if table.get(key, allowed[0]) not in allowed:
            values = " or ".join(json.dumps(a) for a in allowed)
            raise InputError(f"{where}: {key} {json.dumps(table[key])} is not supported, only {values}")
    named = table.get("architectures")
    for name in named if isinstance(named, list) else ():
        table = {**table, **(cls.architectures.get(name, {}) if isinstance(name, str) else {})}
    keys = {f.name for f in dataclasses.fields(cls)}
    renamed = {cls.other_names[key]: value for key, value in table.items() if key in cls.other_names}
    table = {**cls.left_out, **renamed, **{key: v for key, v in table.items() if key not in cls.other_names}}
    if isinstance(rotary := table.get("rope_parameters"), dict):  # where newer files have what concerns them
        table = {**{key: value for key, value in rotary.items() if key in keys}, **table}
    of_layers = table.get("layer_types")
    passed_over = [key for key in table if key not in keys and key not in cls.fixed and key not in _OWN]
    if passed_over:
        notes.append(f"{where}: passed over {_listed(passed_over)}")
    known = {k: v for k, v in table.items() if k in keys and v is not None}
    return families[kind], known, tuple(notes), of_layers


def _listed(keys: list[str]) -> str:
    """Keys of a file for a note, all that stand in a line of it."""
    more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    return ", ".join(quoted(key).strip("'") for key in keys[:8]) + more


def _read(path: Path) -> dict[str, Any]:
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: a model's configuration is a .toml, .yaml or .json file")
    return guarded.document(path, "keys and values, such as family and its sizes")
