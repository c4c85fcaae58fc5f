#!/usr/bin/env python3
"""Gradus beside PyTorch, burn, candle, gemm and faer on the same work, in one run on one machine.

Prints Markdown: the median of each, how many times as fast Gradus is as the best other by the medians and by the best
rounds of both, its share of the machine's limit, and peak memory. Programs take turns, round after round, so that
whatever disturbs the machine disturbs all of them alike.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CONFIGURATIONS = ["reference", "11m", "124m-64", "124m-256"]
STEPS = [f"steps/{configuration}/{precision}" for configuration in CONFIGURATIONS for precision in ("f32", "bf16")]
FAMILIES = ["matmul", "linear", "adamw", "layer-norm", "cross-entropy", "attention", "conv"]
VISION = ["steps/resnet18/f32", "steps/vit-s/f32"]
TORCH_MODES = ["eager", "compiled"]
VISION_MODES = [*TORCH_MODES, "channels-last", "channels-last compiled"]
# Of the others, each is one call of a kernel that is compiled already.
KERNEL_MODES = {"cross-entropy": TORCH_MODES, "conv": ["eager", "channels-last"]}
RUST_PEERS = ["burn", "candle"]
PRODUCT_CRATES = ["gemm", "faer"]


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="NAME", help="steps, vision, kernels, a family of kernels, or the"
                        " beginning of a step's name, such as steps/reference [default: all]")
    parser.add_argument("--quick", action="store_true", help="leave the Rust peers out")
    parser.add_argument("--rounds", type=int, default=3, help="turns that every program takes [default: 3]")
    parser.add_argument("--time", type=float, default=6.0, help="seconds of a step in a turn; a kernel has a twelfth"
                        " [default: 6]")
    parser.add_argument("--threads", type=int, default=2, help="threads of every program [default: 2]")
    parser.add_argument("--folder", type=Path, default=ROOT / "target" / "peers", help="where PyTorch and the Rust"
                        " peers are put [default: target/peers]")
    parser.add_argument("--python", type=Path, default=os.environ.get("GRADUS_PEERS_PYTHON"), help="a Python that has"
                        " torch [default: $GRADUS_PEERS_PYTHON, or one that is set up in the folder]")
    parser.add_argument("--gradus", type=Path, help="the gradus program [default: built from this folder]")
    parser.add_argument("--json", type=Path, help="also write every round's figures to this file")
    return parser.parse_args()


def told(text):
    print(text, file=sys.stderr, flush=True)


def python_with_torch(given, folder):
    if given:
        return Path(given)
    python = folder / "venv" / "bin" / "python"
    has_torch = lambda: subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0
    if not (python.exists() and has_torch()):
        told(f"setting up PyTorch in {folder / 'venv'}")
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "torch", "numpy", "timm"], check=True)
    return python


def built(project, binary, target, native):
    """Builds a Cargo project in release mode and gives its program."""
    told(f"building {binary}")
    environment = dict(os.environ, CARGO_TARGET_DIR=str(target))
    if native:
        environment["RUSTFLAGS"] = "-C target-cpu=native"
    arguments = ["cargo", "build", "--release", "--quiet", "--manifest-path", project / "Cargo.toml"]
    subprocess.run([*arguments, "--bin", binary], check=True, env=environment)
    return target / "release" / binary


class Runner:
    """Starts programs with the same threads and keeps what they find, by name and contender."""

    def __init__(self, threads):
        self.threads = str(threads)
        names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS"]
        self.environment = dict(os.environ, **{name: self.threads for name in names})
        self.found = {}
        self.about = {}
        self.limits = {}

    def start(self, contender, arguments):
        told(f"  {contender}: {' '.join(str(argument) for argument in arguments[1:])}")
        done = subprocess.run([str(argument) for argument in arguments], env=self.environment, stdout=subprocess.PIPE,
                              text=True)
        if done.returncode != 0:
            told(f"  {contender} failed with {done.returncode}; its figures are left out")
            return None
        return done.stdout

    def keep(self, name, contender, seconds, memory=None):
        rounds = self.found.setdefault(name, {}).setdefault(contender, [])
        rounds.append({"seconds": seconds, "peak_memory_bytes": memory})

    def peer(self, contender, arguments):
        for line in (self.start(contender, arguments) or "").splitlines():
            if line.startswith("{"):
                result = json.loads(line)
                median = statistics.median(result["seconds"])
                self.keep(result["name"], contender, median, result.get("peak_memory_bytes"))

    def gradus(self, program, name, seconds):
        printed = self.start("gradus", [program, "bench", name, "--json", "--threads", self.threads, "--time", seconds])
        for result in json.loads(printed)["results"] if printed else []:
            if result["group"] == "limits":
                best = result["rate"] * result["seconds"]["median"] / result["seconds"]["best"]
                self.limits.setdefault(result["name"], []).append((best, result["unit"]))
            else:
                median = result["seconds"]["median"]
                self.keep(result["name"], "gradus", median, result.get("peak_memory_bytes"))
                self.about[result["name"]] = {
                    "amount": result["rate"] * median,
                    "unit": result["unit"],
                    "share": result.get("share_of_limit"),
                }


def step_turn(name, arguments, programs, runner):
    """The programs that take turns at a training step."""
    seconds, torch_step = arguments.time, [programs["python"], HERE / "torch_step.py"]
    yield lambda: runner.gradus(programs["gradus"], name, seconds)
    for mode in TORCH_MODES:
        yield partial(runner.peer, f"torch {mode}", [*torch_step, name, mode, seconds, arguments.threads])
    for peer in RUST_PEERS:
        # They compute in f32 alone.
        if peer in programs and name.endswith("/f32"):
            yield partial(runner.peer, peer, [programs[peer], name, seconds])


def vision_turn(name, arguments, programs, runner):
    """The programs that take turns at a training step of a model of images."""
    yield lambda: runner.gradus(programs["gradus"], name, arguments.time)
    for mode in VISION_MODES:
        command = [programs["python"], HERE / "torch_vision.py", name, mode, arguments.time, arguments.threads]
        yield partial(runner.peer, f"torch {mode}", command)


def kernel_turn(family, arguments, programs, runner):
    """The programs that take turns at a family of kernels."""
    seconds, torch_kernels = arguments.time / 12, [programs["python"], HERE / "torch_kernels.py"]
    yield lambda: runner.gradus(programs["gradus"], family, seconds)
    for mode in KERNEL_MODES.get(family, ["eager"]):
        yield partial(runner.peer, f"torch {mode}", [*torch_kernels, family, mode, seconds, arguments.threads])
    if family == "matmul" and "products" in programs:
        for crate in PRODUCT_CRATES:
            yield partial(runner.peer, crate, [programs["products"], crate, seconds, arguments.threads])


def turns(arguments, *others):
    """What is to be measured in one round: for each work, a list of programs to take turns."""
    for name in STEPS:
        if is_wanted(name, "steps", arguments.what):
            yield list(step_turn(name, arguments, *others))
    for name in VISION:
        if is_wanted(name, "vision", arguments.what):
            yield list(vision_turn(name, arguments, *others))
    for family in FAMILIES:
        if is_wanted(family, "kernels", arguments.what):
            yield list(kernel_turn(family, arguments, *others))


def is_wanted(name, group, beginnings):
    return not beginnings or group in beginnings or any(name.startswith(beginning) for beginning in beginnings)


def refuse_unknown(beginnings):
    """Ends the program if a name chooses nothing, before hours are spent on the others."""
    for beginning in beginnings:
        names = STEPS + VISION + FAMILIES
        if beginning not in ("kernels", "vision") and not any(name.startswith(beginning) for name in names):
            sys.exit(f"error: {beginning!r} chooses nothing; give steps, vision, kernels, one of {', '.join(FAMILIES)},"
                     f" or the beginning of one of {', '.join(STEPS + VISION)}")


def table(heading, names, runner, contenders):
    """A Markdown table of rates by the median of the rounds, with the ratios to the best other."""
    columns = ["work", "unit", *contenders, "gradus / best other", "in the best rounds", "gradus, of limit"]
    lines = [f"### {heading}", "", row(columns), row(["---", "---", *["---:"] * (len(columns) - 2)])]
    for name in names:
        results, about = runner.found[name], runner.about.get(name, {})
        seconds, best = ({contender: of(round["seconds"] for round in rounds) for contender, rounds in results.items()}
                         for of in (statistics.median, min))
        cells = [cell(about.get("amount"), seconds.get(contender), results.get(contender)) for contender in contenders]
        share = f"{about['share']:.0%}" if about.get("share") else ""
        lines.append(row([name, about.get("unit", ""), *cells, ratio_to_best_other(seconds), ratio_to_best_other(best), share]))
    return "\n".join(lines) + "\n"


def ratio_to_best_other(seconds):
    others = [seconds[contender] for contender in seconds if contender != "gradus"]
    return f"{min(others) / seconds['gradus']:.2f}" if others and "gradus" in seconds else ""


def row(cells):
    return "| " + " | ".join(cells) + " |"


def cell(amount, seconds, rounds):
    """A rate, and the peak memory where it was told."""
    if seconds is None or amount is None:
        return ""
    rate = amount / seconds
    text = f"{rate:.3g}" if rate >= 1e6 else f"{rate:,.0f}" if rate >= 1000 else f"{rate:.1f}"
    memory = [round["peak_memory_bytes"] for round in rounds if round["peak_memory_bytes"]]
    return text + (f" ({max(memory) / 1e6:,.0f} MB)" if memory else "")


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def report(arguments, runner, versions):
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, {processor()}, {arguments.threads} threads, {versions}."
          f" Medians of {arguments.rounds} rounds of {arguments.time:g} s; a step's peak memory in brackets.\n")
    for name, rates in sorted(runner.limits.items()):
        print(f"- {name}: {max(rate for rate, _ in rates):.1f} {rates[0][1]} at best")
    print()
    for heading, is_step in (("Training steps", True), ("Kernels", False)):
        names = [name for name in runner.found if name.startswith("steps/") == is_step]
        known = {contender for name in names for contender in runner.found[name]}
        order = ["gradus", *(f"torch {mode}" for mode in VISION_MODES), *RUST_PEERS, *PRODUCT_CRATES]
        if names:
            print(table(heading, names, runner, [contender for contender in order if contender in known]))


def measure(arguments, programs, runner):
    for number in range(arguments.rounds):
        told(f"round {number + 1} of {arguments.rounds}")
        for contenders in turns(arguments, programs, runner):
            # Whoever comes first may find a cooler machine, so that the order moves on from round to round.
            first = number % len(contenders)
            for contender in contenders[first:] + contenders[:first]:
                contender()


def main():
    arguments = options()
    refuse_unknown(arguments.what)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    python = python_with_torch(arguments.python, arguments.folder)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    programs = {"python": python, "gradus": arguments.gradus or built(ROOT, "gradus", target, native=False)}
    if not arguments.quick:
        steps = any(is_wanted(name, "steps", arguments.what) for name in STEPS)
        products = is_wanted("matmul", "kernels", arguments.what)
        for peer in (RUST_PEERS if steps else []) + (["products"] if products else []):
            programs[peer] = built(HERE / peer, f"gradus-peer-{peer}", arguments.folder / peer, native=True)
    torch_version = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], check=True, text=True,
                                   stdout=subprocess.PIPE).stdout.strip()
    runner = Runner(arguments.threads)
    try:
        measure(arguments, programs, runner)
    except KeyboardInterrupt:
        told("stopped: these are the figures so far")
    report(arguments, runner, f"PyTorch {torch_version}")
    if arguments.json:
        figures = {"limits": runner.limits, "rounds": runner.found, "about": runner.about}
        arguments.json.write_text(json.dumps(figures, indent=1))


main()
