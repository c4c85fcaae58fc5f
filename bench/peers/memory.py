#!/usr/bin/env python3
"""Speed against memory: Gradus under budgets beside PyTorch's ways to use less, on the same models, in one run.

Gradus trains on a text with `--memory`; the peak is what the system counted for its process, tokenizer and all. PyTorch
computes the same step on random tokens: as it is, with `activation_memory_budget`, and with every block checkpointed; its
peak is that of a process that imports nothing but torch. Prints Markdown.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# By name of torch_step.py: options of `gradus train`, and steps that are enough to see a steady speed.
MODELS = {
    "reference": ("--vocab-size 788 --width 256 --layers 6 --heads 8 --sequence 128 --batch 32", 10),
    "11m": ("--vocab-size 4096 --width 320 --layers 8 --heads 8 --sequence 256 --batch 8", 8),
    "124m-256": ("--preset gpt2 --vocab-size 50257 --tokenizer byte --sequence 256 --batch 4", 4),
    "124kb": ("--vocab-size 257 --tokenizer byte --width 32 --layers 2 --heads 2 --sequence 64 --batch 8", 200),
}
TORCH_MODES = ["eager", "compiled", "compiled:0.5", "compiled:0.05", "eager:checkpoint"]


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a text to train on")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)} [default: all]")
    parser.add_argument("--gradus", type=Path, default=ROOT / "target" / "release" / "gradus")
    parser.add_argument("--python", type=Path, default=os.environ.get("GRADUS_PEERS_PYTHON"),
                        help="a Python that has torch; without one PyTorch is left out")
    parser.add_argument("--budgets", type=int, default=6, help="budgets from the smallest to unlimited [default: 6]")
    parser.add_argument("--choice", action="append", metavar="OPTIONS", help="options of `gradus train` to compare instead,"
                        " such as --choice='--memory 100MB'; may be given again")
    parser.add_argument("--rounds", type=int, default=1, help="runs of Gradus at every budget, in turns [default: 1]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time", type=float, default=6.0, help="seconds of a PyTorch step's measurement [default: 6]")
    return parser.parse_args()


def train(arguments, model, choice, out):
    """Trains and gives the process's peak memory, the speed of the later steps, the account and the weights' sum."""
    flags, steps = MODELS[model]
    command = [arguments.gradus, "train", arguments.text, *flags.split(), "--steps", steps, "--out", out, "--seed", 1,
               "--threads", arguments.threads, "--validation", 0, "--eval-every", 0, "--sample-every", 0, "--save-every", 0,
               "--quiet", *choice.split()]
    process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                               text=True)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        return None, errors.strip()
    lines = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    times = [line["step_ms"] for line in lines if "step_ms" in line]
    tokens = next(line["tokens"] / line["step"] for line in lines if "tokens" in line)
    account = next((line["account"] for line in reversed(lines) if "account" in line), None)
    weights = subprocess.run(["sha256sum", str(Path(out) / "model" / "model.safetensors")], capture_output=True,
                             text=True).stdout[:12]
    speed = 1e3 * tokens / statistics.median(times[len(times) // 4:])
    return {"peak": usage.ru_maxrss * 1024, "speed": speed, "account": account, "weights": weights}, ""


def budgets(arguments, model, folder):
    """Options: budgets from the smallest that works to none, and the whole batch computed at once."""
    _, refusal = train(arguments, model, "--memory 1MB", f"{folder}/refused")
    found = re.search(r"give --memory (\d+(?:\.\d+)?)MB", refusal)
    if not found:
        sys.exit(f"{model}: no smallest budget in {refusal!r}")
    smallest = float(found.group(1))
    free, _ = train(arguments, model, "", f"{folder}/free")
    most = max(free["peak"] / 1e6 * 1.5, smallest * 1.05)
    steps = arguments.budgets - 1
    sizes = [smallest * (most / smallest) ** (index / (steps - 1)) for index in range(steps)]
    whole_batch = re.search(r"--batch (\d+)", MODELS[model][0]).group(1)
    return [f"--memory {size:.1f}MB" for size in sizes] + ["", f"--micro-batch {whole_batch}"]


def gradus_table(arguments, model):
    print(f"| options | measured peak | predicted | unexplained | tokens/s | weights |\n|---|{'---:|' * 4}---|")
    with tempfile.TemporaryDirectory() as folder:
        choices = arguments.choice or budgets(arguments, model, folder)
        found = {choice: [] for choice in choices}
        for number in range(arguments.rounds):
            for index, choice in enumerate(choices):
                result, error = train(arguments, model, choice, f"{folder}/{number}-{index}")
                if error:
                    sys.exit(f"{model} with {choice}: {error}")
                found[choice].append(result)
    for choice, results in found.items():
        largest = max(results, key=lambda result: result["peak"])
        account = largest["account"]
        share = lambda key: f"{account[key] / 1e6:.1f} MB ({account[key] / largest['peak']:.1%})"
        weights = ", ".join(sorted({result["weights"] for result in results}))
        speed = statistics.median(result["speed"] for result in results)
        print(f"| `{choice}` | {largest['peak'] / 1e6:.1f} MB | {share('predicted')} | {share('unexplained')} |"
              f" {speed:,.0f} | {weights} |", flush=True)


def torch_table(arguments, model):
    print("\n| PyTorch | measured peak | tokens/s |\n|---|---:|---:|")
    environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads))
    for mode in TORCH_MODES:
        command = [arguments.python, HERE / "torch_step.py", f"steps/{model}/f32", mode, arguments.time, arguments.threads]
        done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                result = json.loads(line)
                tokens = result_tokens(model)
                print(f"| {mode} | {result['peak_memory_bytes'] / 1e6:,.0f} MB |"
                      f" {tokens / statistics.median(result['seconds']):,.0f} |", flush=True)


def result_tokens(model):
    flags = MODELS[model][0].split()
    return int(flags[flags.index("--sequence") + 1]) * int(flags[flags.index("--batch") + 1])


def main():
    arguments = options()
    for model in arguments.models or MODELS:
        print(f"\n### {model}\n")
        gradus_table(arguments, model)
        if arguments.python and model != "124kb":
            torch_table(arguments, model)


main()
