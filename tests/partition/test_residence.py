"""What a rule says about gathering, reducing and host memory is placed by a schedule that knows no rule."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import triosim
import triosim.schedule
from triosim import Plan, PlanError
from triosim.prediction.prepare import prepare
from triosim.schedule.program import COLLECTIVES, Op

LAYERS = 3
PER_LAYER = '''
"""Parameters are gathered module by module within each layer, two modules ahead, and kept for the backward."""

from dataclasses import dataclass, replace

from triosim.core.registry import registered
from triosim.partition.residence import GatheredModules
from triosim.partition.rule import Rule


@registered
@dataclass(frozen=True)
class PerLayer(Rule):
    ahead: int = 2
    again: bool = False
    modules: str = "transformer.h.*.attn transformer.h.*.mlp"

    def replicate(self, mesh, placed):
        modules = GatheredModules(tuple(self.modules.split()), self.ahead, self.ahead)
        return replace(placed, states=True, weights=True, regathers=self.again, modules=modules, name="per-layer")
'''


@pytest.fixture
def rule(tmp_path: Path) -> str:
    path = tmp_path / "per_layer.py"
    path.write_text(PER_LAYER)
    return str(path)


def _small() -> triosim.Trace:
    return triosim.model("gpt2", batch_size=1, sequence_length=64, configuration={"n_layer": LAYERS})


def _run(**plan) -> triosim.Result:
    return triosim.simulate(_small(), triosim.system("dgx-a100"), Plan(**plan))


def _sent(result: triosim.Result, kind: str) -> tuple[int, int]:
    """Collectives of a kind, and their bytes."""
    rows = [row for row in result.collectives if row.kind == kind]
    return sum(row.count for row in rows), sum(row.bytes * row.count for row in rows)


def test_a_rule_in_a_file_gathers_by_modules_of_its_own(rule: str) -> None:
    """Two modules a layer and the rest once each; the same bytes as whole blocks, but for what rounds up."""
    result, blocks = _run(parallelism=(rule,)), _run(zero=2)
    gathers, gathered = _sent(result, "all_gather")
    scatters, scattered = _sent(result, "reduce_scatter")
    assert gathers == scatters == 2 * LAYERS + 1
    assert (gathered, scattered) == (_sent(blocks, "all_gather")[1], _sent(blocks, "reduce_scatter")[1])
    assert _sent(blocks, "all_gather")[0] == LAYERS + 1


def test_its_backward_gathers_again_where_it_says_so(rule: str) -> None:
    """All but the rest, which stays for the backward as it does with ``fully_shard``."""
    again = _run(parallelism=(rule,), parallelism_options={"again": True})
    assert _sent(again, "all_gather")[0] == 2 * (2 * LAYERS + 1) - 1


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_modules_are_gathered_so_far_ahead(rule: str, ahead: int) -> None:
    """In the forward so many are launched before the one in use has been copied out, and no more."""
    plan = Plan(parallelism=(rule,), parallelism_options={"ahead": ahead})
    (program,) = prepare(_small(), triosim.system("dgx-a100"), plan).programs
    gather = COLLECTIVES.index("all_gather")
    launched, copied, most = list[int](), list[int](), 0
    first_scatter = next(n for n in range(len(program)) if program.op[n] == Op.COLLECTIVE and program.what[n] != gather)
    for n in range(first_scatter):
        if program.what[n] == gather:
            rows = launched if program.op[n] == Op.COLLECTIVE else copied
            rows.append(int(program.operator[n]))
            most = max(most, len(launched) - len(copied))
    assert len(launched) == len(copied) == 2 * LAYERS + 1
    assert most == max(ahead, 1)
    early = sum(at < needed for at, needed in zip(launched, copied, strict=True))
    assert early == (2 * LAYERS if ahead else 0)  # all but the first of the forward


def _prefetching(**options: int | str) -> dict[str, Any]:
    return {"zero": 3, "parallelism": ("prefetch",), "parallelism_options": options}


def test_prefetch_as_fully_shard_does_of_its_own_accord_changes_nothing() -> None:
    plain, same = _run(zero=3), _run(**_prefetching(forward=0, backward=1))
    assert same.iteration_time_s == plain.iteration_time_s
    assert same.memory == plain.memory


def test_what_is_gathered_further_ahead_takes_more_memory() -> None:
    results = [_run(**_prefetching(forward=ahead, backward=ahead)) for ahead in (0, 1, 2)]
    sent = [_sent(result, "all_gather") for result in results]
    assert sent[0] == sent[1] == sent[2]
    assert results[1].iteration_time_s <= results[0].iteration_time_s
    assert results[1].memory.allocated_bytes <= results[2].memory.allocated_bytes


def test_prefetch_of_modules() -> None:
    by_modules = _run(**_prefetching(modules="transformer.h.*.attn + transformer.h.*.mlp"))
    assert _sent(by_modules, "all_gather")[0] == 2 * (2 * LAYERS + 1) - 1
    with pytest.raises(PlanError, match="no parameters are gathered: give --zero 2 or 3 before"):
        _run(parallelism=("prefetch",), zero=1)


def test_a_module_that_does_not_exist_is_a_sentence(rule: str) -> None:
    with pytest.raises(PlanError, match=r"'layers\.\*' to be gathered: none is called so; there are transformer"):
        _run(parallelism=(rule,), parallelism_options={"modules": "layers.*"})


def test_a_tied_weight_stays_with_the_rest(rule: str) -> None:
    """The token table is read by the head too: gathered with its own module it would be gone by then."""
    result = _run(parallelism=(rule,), parallelism_options={"modules": "transformer.wte transformer.h.*"})
    assert _sent(result, "all_gather")[0] == LAYERS + 1


STAYING = """
from dataclasses import dataclass, replace

from triosim.core.registry import registered
from triosim.partition.residence import HostStay
from triosim.partition.rule import Rule
from triosim.trace.tables import Category


@registered
@dataclass(frozen=True)
class Staying(Rule):
    ahead: int = 1
    waiting: int = 2

    def replicate(self, mesh, placed):
        return replace(placed, away=(HostStay(Category.ACTIVATION, "activations", self.ahead, self.waiting),))
"""


def test_what_stays_on_the_host_is_placed_as_a_rule_says(tmp_path: Path) -> None:
    path = tmp_path / "staying.py"
    path.write_text(STAYING)
    trace = triosim.model("gpt2", batch_size=8, sequence_length=256, configuration={"n_layer": 8})
    system = triosim.system("dgx-a100")
    built_in = triosim.simulate(trace, system, Plan(offload=("activations",)))

    def mine(**options: int) -> triosim.Result:
        return triosim.simulate(trace, system, Plan(parallelism=(str(path),), parallelism_options=options))

    assert mine().iteration_time_s == built_in.iteration_time_s
    assert mine().memory == built_in.memory
    assert mine(waiting=6).memory.host_bytes * 3 == built_in.memory.host_bytes  # two blocks travel instead of six
    assert mine(ahead=0).iteration_time_s > built_in.iteration_time_s  # called back when needed, and waited for


WORDS = re.compile(r"zero|fsdp|ddp|offload|hsdp|megatron|dataparallel", re.IGNORECASE)


def _words(tree: ast.AST) -> list[str]:
    """Names and strings of a module, without its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    strings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, documented)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in strings:
            found.append(node.value)
        for name in ("id", "attr", "arg", "name", "module"):
            word = getattr(node, name, None)
            found += [word] if isinstance(word, str) else []
    return found


def test_the_schedule_knows_no_rule_by_name() -> None:
    folder = Path(triosim.schedule.__file__).parent
    found = [
        f"{path.name}: {word}"
        for path in folder.rglob("*.py")
        for word in [path.stem, *_words(ast.parse(path.read_text(encoding="utf-8")))]
        if WORDS.search(re.sub("zeros|nonzero|ZeroBubble", "", word))
    ]
    assert found == []
