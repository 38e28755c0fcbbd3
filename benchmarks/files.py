"""How fast large files are read and written: a torch.profiler file of many steps, timelines of a million slices.

    python benchmarks/files.py [--runs 5] [--steps 69] [--json FILE]

The profile is made here: 205 MB, 69 equal steps of 2,900 operators with their launches and kernels, as torch 2.4 writes
them.  The timelines are of GPT-3 175B in a pipeline over 64 A100.  Each case runs in a process of its own: CPU seconds
(median), and the most memory that it had.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

OPERATORS = 2900
CASES = ("profile read", "timeline .json", "timeline .pftrace")


def profile(path: Path, steps: int) -> None:
    """Write a profile of so many steps."""
    operator = (
        '{"ph":"X","cat":"cpu_op","name":"aten::linear","pid":1,"tid":1,"ts":%.3f,"dur":20.5,"args":{"External id":%d,'
        '"Sequence number":%d,"Fwd thread id":0,"Ev Idx":%d,"Input Dims":[[8,1024],[1024,1024],[1024]],'
        '"Input type":["float","float","float"],"Input Strides":[[1024,1],[1024,1],[1]],'
        '"Concrete Inputs":["","",""]}},\n'
        '{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":%.3f,"dur":5.25,"args":'
        '{"External id":%d,"cbid":211,"correlation":%d}},\n'
        '{"ph":"s","id":%d,"pid":1,"tid":1,"ts":%.3f,"cat":"ac2g","name":"ac2g"},\n'
        '{"ph":"X","cat":"kernel","name":"ampere_sgemm_128x64_tn","pid":0,"tid":7,"ts":%.3f,"dur":18.125,"args":'
        '{"External id":%d,"queued":0,"device":0,"context":1,"stream":7,"correlation":%d,"registers per thread":122,'
        '"shared memory":12288,"blocks per SM":0.1,"warps per SM":1.2,"grid":[8,2,1],"block":[128,1,1],'
        '"est. achieved occupancy %%":2}},\n'
    )
    step = (
        '{"ph":"X","cat":"user_annotation","name":"ProfilerStep#%d","pid":1,"tid":1,"ts":%.3f,"dur":%.3f,"args":{}},\n'
    )
    with path.open("w", encoding="utf-8") as out:
        out.write('{"schemaVersion":1,"deviceProperties":[{"id":0,"name":"NVIDIA A100-SXM4-80GB"}],"traceEvents":[\n')
        now, number = 1_700_000_000_000_000.0, 0
        for at in range(steps):
            out.write(step % (at, now, 25.0 * OPERATORS))
            for _ in range(OPERATORS):
                number += 1
                out.write(
                    operator
                    % (
                        now,
                        number,
                        number,
                        number,
                        now + 10,
                        number,
                        number,
                        number,
                        now + 10,
                        now + 30,
                        number,
                        number,
                    )
                )
                now += 25
        out.write('{"ph":"M","name":"process_name","pid":1,"args":{"name":"python"}}]}\n')


def _reading(folder: Path) -> tuple[Callable[[], object], dict[str, float]]:
    from triosim.sources.reading import load

    path = folder / "profile.json"
    return lambda: load(path), {"bytes": path.stat().st_size}


def _writing(ending: str, folder: Path) -> tuple[Callable[[], object], dict[str, float]]:
    import triosim
    from triosim.report import chrome, perfetto

    plan = triosim.Plan(tp=8, pp=8, micro_batches=16)
    timeline = triosim.simulate(triosim.model("gpt3-175b"), triosim.system("dgx-a100", nodes=8), plan).timeline
    path = folder / f"timeline{ending}"
    write = perfetto.write if ending == ".pftrace" else chrome.write
    write(timeline, path, limit=len(timeline.slices))
    slices = len(timeline.slices)
    found = {"slices": slices, "bytes_per_slice": path.stat().st_size / slices}
    return lambda: write(timeline, path, limit=slices), found


def once(case: str, folder: Path, runs: int) -> dict[str, float]:
    """Time one case in this process."""
    if case == "profile read":
        call, found = _reading(folder)
    else:
        call, found = _writing(case.split()[1], folder)
    seconds = []
    for _ in range(runs):
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"cpu_s": statistics.median(seconds), "peak_bytes": peak, **found}


def main() -> None:
    """Time every case and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=69, help="steps of the profile, 3 MB each")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(once(given.case, given.folder, given.runs)))
        return
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        profile(Path(folder) / "profile.json", given.steps)
        for case in CASES:
            command = [sys.executable, __file__, "--case", case, "--folder", folder, "--runs", str(given.runs)]
            rows[case] = row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            what = f"{row['bytes'] / 1e6:.0f} MB" if "bytes" in row else f"{row['bytes_per_slice']:.0f} bytes a slice"
            print(f"{case:20} {row['cpu_s']:8.2f} s {row['peak_bytes'] / 1e6:6.0f} MB   {what}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
