#!/usr/bin/env python3
"""The example `cartpole` beside the same agent in PyTorch and Gymnasium (torch_ppo.py), in one run on one machine: same network, same
settings, learning included. They take turns; the medians of the rounds are compared.

usage: bench/peers/agents.py --python PYTHON [--rounds N]        (PYTHON has torch and gymnasium)
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def peer(python, threads, steps):
    command = [python, ROOT / "bench/peers/torch_ppo.py", "--threads", str(threads), "--steps", str(steps)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["steps_per_second"]


def ours(program, threads, steps):
    command = [program, "--speed", "--threads", str(threads), "--steps", str(steps)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(told.split(" steps/s")[0].split()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python that has torch and gymnasium")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-steps", type=int, default=10_240, help="steps of a round in PyTorch")
    parser.add_argument("--steps", type=int, default=102_400, help="steps of a round in the example")
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/examples/cartpole")
    asked = parser.parse_args()
    if not asked.program.exists():
        parser.error(f"there is no {asked.program}; build it: cargo build --release --example cartpole")
    contenders = {
        "Gradus, 1 thread": lambda: ours(asked.program, 1, asked.steps),
        "Gradus, 2 threads": lambda: ours(asked.program, 2, asked.steps),
        "PyTorch, 1 thread": lambda: peer(asked.python, 1, asked.peer_steps),
        "PyTorch, 2 threads": lambda: peer(asked.python, 2, asked.peer_steps),
    }
    rounds = {name: [] for name in contenders}
    for _ in range(asked.rounds):
        for name, run in contenders.items():
            rounds[name].append(run())
    best = max(statistics.median(figures) for name, figures in rounds.items() if name.startswith("PyTorch"))
    print("| | steps/s, median of %d rounds | lowest to highest | times the better of PyTorch |\n|---|---|---|---|" % asked.rounds)
    for name, figures in rounds.items():
        median = statistics.median(figures)
        print(f"| {name} | {median:,.0f} | {min(figures):,.0f} to {max(figures):,.0f} | {median / best:.1f} |")


if __name__ == "__main__":
    main()
