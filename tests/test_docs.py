"""Every example in the README and the documentation runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.command import run, spawn
from tests.exploring import EXPLORES
from triosim.hardware import catalog
from triosim.sources import modelling

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8"))):
            if match.group(1) == language:
                found.append(pytest.param(match.group(2), id=f"{page.stem}-{number}"))
    return found


def _commands() -> list[str]:
    """Every command once, on however many pages it stands."""
    lines = [line for block in _blocks("console") for line in block.values[0].splitlines()]
    return list(dict.fromkeys(line[2:] for line in lines if line.startswith("$ triosim")))


FEW = {"--requests": 40, "--budget": 300}
"""Of what a command repeats, as many as show that it runs: the pages' own outputs are made of all."""


def _take_fewer_micro_batches(words: list[str]) -> None:
    """Leave as many, of the same size, as fill the pipeline twice: what follows only repeats those."""
    at = {word: place + 1 for place, word in enumerate(words)}
    if not {"--micro-batches", "--global-batch-size"} <= at.keys() or "--post" in at:
        return
    parts, whole = (int(words[at[name]]) for name in ("--micro-batches", "--global-batch-size"))
    stages = int(words[at["--pp"]]) if "--pp" in at else 1
    fewer = [
        n for n in range(2 * stages, parts) if parts % n == 0 and whole % (parts // n) == 0
        and (parts % stages or n % stages == 0)
    ]  # fmt: skip
    if fewer:
        words[at["--micro-batches"]] = str(fewer[0])
        words[at["--global-batch-size"]] = str(whole * fewer[0] // parts)


def test_the_readme_counts_what_there_is() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    stacks = len(list((ROOT / "src/triosim/stacks").glob("*.toml")))
    for words, count in (
        (r"(\d+) by name, or any Hugging Face", len(modelling.presets())),
        (r"(\d+) ready machines", len(catalog.systems())),
        (r"machines and (\d+) devices", len(catalog.accelerators())),
        (r"`torchtitan` and (\d+) more", stacks - 3),
    ):
        assert [int(found) for found in re.findall(words, text)] == [count], words


def test_the_readme_tells_of_accuracy_what_the_page_does() -> None:
    told = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8").splitlines()
    section = re.search(r"^## How good it is$(.*?)^## ", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    rows = [line for line in section[1].splitlines() if line.startswith("| ")]
    assert len(rows) > 5
    assert set(rows) <= set(told)


@pytest.mark.parametrize("command", _commands(), ids=str)
def test_a_command_of_the_documentation_runs(command: str, tmp_path: Path) -> None:
    if " record " in command:
        pytest.importorskip("torch")
    words = shlex.split(command)[1:]
    for at, word in enumerate(words[1:], start=1):
        if words[at - 1] in ("-o", "--json", "--timeline", "--report") and word != "-":
            words[at] = str(tmp_path / Path(word).name)
        if words[at - 1] in FEW and word.isdigit() and not EXPLORES:
            words[at] = str(min(int(word), FEW[words[at - 1]]))
    if not EXPLORES:
        _take_fewer_micro_batches(words)
    (spawn if " record " in command else run)(*words, cwd=ROOT)


@pytest.mark.parametrize("code", _blocks("python"))
def test_python_of_the_documentation_runs(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", _blocks("toml"))
def test_files_of_the_documentation_are_read(text: str, tmp_path: Path) -> None:
    from triosim.hardware import build
    from triosim.sources import modelling

    file = tmp_path / "example.toml"
    file.write_text(text)
    if re.search(r"^\[+(node|problem|level|constraint|zeros)\b", text, re.MULTILINE):
        from triosim.accelerator.reading import read

        assert read([file])
    elif "[[pool]]" in text:
        from triosim.serving.fleet_file import fleet_file

        assert fleet_file(file).replicas
    elif "family" in text:
        assert len(modelling.from_file(file, sequence_length=64))
    elif "times = " in text:
        from triosim.kernels.external_mapping import load

        assert load(file).times
    elif "wise" in text:
        from triosim.hardware.description import read_table

        assert set(read_table(file).values()) <= {"colwise", "rowwise", "gather", "vocab", "replicate"}
    elif "[devices" not in text and "peak_flops" in text:
        from triosim.hardware.cluster import device_of
        from triosim.hardware.description import read_device

        assert device_of(read_device(file)).priced
    else:
        assert build.load(file).devices


def test_every_public_name_and_every_interface_is_in_the_reference() -> None:
    import triosim

    names = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"heading: triosim\.(\w+)", names) == re.findall(r"toc_label: triosim\.(\w+)", names)
    assert {*triosim.__all__} - {"__version__"} == {*re.findall(r"heading: triosim\.(\w+)", names)}
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    for path in re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE):
        home, _, name = path.rpartition(".")
        if home == "triosim.sources.record" and find_spec("torch") is None:
            continue  # says so when it is asked for
        assert hasattr(import_module(home), name) or find_spec(path), path


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.name != "README.md"}
    assert set(re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE)) == pages


OTHERS = {
    "--activation-func-fp8-input-store",
    "--clock-control", "--csv", "--window-size", "--cuda-graph-scope", "--format", "--make-vocab-size-divisible-by",
    "--all2all-backend", "--moe-a2a-backend", "--moe-pad-expert-input-to-capacity",
    "--muon-tp-mode", "--overlap-param-gather", "--query-gpu", "--stream-interval",
}  # fmt: skip
"""Options of other programs that pages name."""
SCRIPT = re.compile(r"python (?:-m ((?:validation|tests)[\w.]*)|([\w/]+\.py))([^`\n]*)")


def _options(*words: str) -> set[str]:
    """All options of a command and its commands, as ``--help`` has them."""
    shown = run(*words, "--help").stdout
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", shown))
    if "[OPTIONS] COMMAND" in shown:
        for name in re.findall(r"^  (\w+) {2,}[A-Z]", shown, re.MULTILINE):
            found |= _options(*words, name)
    return found


def test_options_that_pages_name_are_there() -> None:
    known = _options() | OTHERS
    assert len(known) > 80
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        own = "".join(_taken(*match[:2]) for match in SCRIPT.findall(text))
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", SCRIPT.sub("", text)))
        assert {option for option in named - known if f'"{option}"' not in own} == set(), page.name


def _script(module: str, path: str) -> Path:
    """File of ``python -m MODULE`` or ``python PATH``."""
    named = ROOT / (path or module.replace(".", "/"))
    found = [f for f in (named, named.with_suffix(".py"), named / "__main__.py") if f.is_file()]
    assert found, f"there is no {module or path}"
    return found[0]


def _taken(module: str, path: str) -> str:
    """Text of a script in which every option that it takes stands in quotes."""
    own = _script(module, path).read_text(encoding="utf-8")
    judges = "command.parser(" in own  # with what all of them take
    return own + '"--json"' * judges + '"--data"' * ("command.parser(__doc__, " in own)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_files_and_scripts_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for module, path, rest in SCRIPT.findall(text):
        own = _taken(module, path)
        missing = [option for option in re.findall(r"--[a-z][a-z0-9-]+", rest) if f'"{option}"' not in own]
        assert not missing, f"{module or path} {rest}"
    for path in re.findall(r"`((?:src|tests|validation|docs|examples|benchmarks|native)/[\w./-]*)`", text):
        assert (ROOT / path).exists() or "NAME" in path, path
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), link


def test_the_architecture_page_tells_what_really_happens() -> None:
    done = subprocess.run(
        [sys.executable, "docs/make_architecture.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, f"run python docs/make_architecture.py: {done.stdout}{done.stderr}"


def test_the_picture_of_the_road_shows_packages_that_exist() -> None:
    text = (ROOT / "docs" / "road.svg").read_text(encoding="utf-8")
    packages = " ".join(re.findall(r'xml:space="preserve">([a-z ]+)<', text)).split()
    assert len(packages) > 10
    for name in packages:
        assert find_spec(f"triosim.{name}"), name
