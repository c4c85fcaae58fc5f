#!/usr/bin/env python3
"""Optimizers beside each other: validation loss against steps, and what a step takes.

    run.py race --gradus PROGRAM --data FOLDER --out FILE [--parallel N] [--seconds S] [--device cuda] [--precision bf16]
    run.py losses JOBS --gradus PROGRAM --data FOLDER --out FILE ...
    run.py times --gradus PROGRAM --data FOLDER --out FILE ...

`race` searches each optimizer's learning rate with one seed, then AdamW's beta2 and decay at its best rate, repeats the best settings with
three seeds, and looks with three seeds for shorter runs, with a learning rate that falls by their own end, that reach AdamW's loss.
JOBS is a file of lines `case optimizer rate steps seed [option=value ...]`: an option in capitals is put into the environment, others are
options of `gradus train`. FOLDER holds english.txt and tinyshakespeare.txt. Several runs share a device while losses are found, for they do not
depend on that; steps are timed one run at a time (`times`, medians and means). Results are appended to FILE, a line of JSON each.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HELD_OUT = 300_000
CASES = {
    "reference": "--layers 6 --width 256 --heads 8 --sequence 128 --batch 32",
    "shakespeare": "--config {repository}/recipes/shakespeare-char.toml",
}
# The recipe states AdamW's betas: those of others are their own.
BETAS = {"muon": "--beta1 0.95", "soap": "--beta1 0.95 --beta2 0.95", "sophia": "--beta1 0.96"}
STEPS = {"reference": 1000, "shakespeare": 2000}
RATES = {
    "adamw": "5e-4 1e-3 1.5e-3 2e-3 3e-3 4e-3 6e-3 8e-3",
    "muon": "2e-3 4e-3 6e-3 8e-3 1.2e-2 1.6e-2",
    "soap": "1e-3 2e-3 3e-3 4e-3 6e-3 8e-3",
    "sophia": "5e-5 1e-4 2e-4 3e-4 5e-4 1e-3",
}
# Tried at AdamW's best rate, besides what each case has.
OF_ADAMW = [["beta2=0.95"], ["beta2=0.98"], ["beta2=0.99"], ["beta2=0.999"], ["weight-decay=0"], ["weight-decay=0.1"], ["weight-decay=0.3"]]
SEEDS = ["1", "2", "3"]
SHARES = {"muon": [0.4, 0.5, 0.6], "soap": [0.5, 0.6, 0.7]}


def prepared(gradus, data, work):
    """The text of the reference case, the last part held out, and its tokenizer."""
    text = (data / "english.txt").read_bytes()
    (work / "train.txt").write_bytes(text[:-HELD_OUT])
    (work / "held-out.txt").write_bytes(text[-HELD_OUT:])
    tokenize = [gradus, "tokenize", work / "train.txt", "--vocab-size", "788", "--out", work / "tokenizer.json"]
    subprocess.run(tokenize, check=True, capture_output=True)


def command(args, work, out, case, optimizer, rate, steps, seed, options):
    texts = {
        "reference": [work / "train.txt", "--validation", work / "held-out.txt", "--tokenizer", work / "tokenizer.json"],
        "shakespeare": [args.data / "tinyshakespeare.txt"],
    }[case]
    line = [args.gradus, "train", *texts, *CASES[case].format(repository=args.repository).split()]
    line += ["--optimizer", optimizer, "--steps", str(steps), "--seed", str(seed), "--out", out]
    line += ["--learning-rate", rate] if rate != "usual" else []
    line += BETAS.get(optimizer, "").split() if case == "shakespeare" else []
    line += f"--device {args.device} --precision {args.precision} --threads {args.threads} --health off --quiet".split()
    evaluations = 1 if args.what == "times" else 20
    line += f"--eval-every {max(int(steps) // evaluations, 1)} --sample-every 0 --save-every 0".split()
    for option in options:
        name, value = option.split("=")
        line += [] if name.isupper() else [f"--{name}", value]
    return [str(part) for part in line]


def run(args, work, job):
    case, optimizer, rate, steps, seed, *options = job
    with tempfile.TemporaryDirectory(dir=work) as folder:
        environment = dict(os.environ, **dict(option.split("=") for option in options if option.split("=")[0].isupper()))
        line = command(args, work, f"{folder}/run", case, optimizer, rate, steps, seed, options)
        ended = subprocess.run(line, capture_output=True, text=True, env=environment)
        metrics = Path(folder) / "run/metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    found = dict(case=case, optimizer=optimizer, rate=rate, steps=int(steps), seed=int(seed), options=options)
    found["losses"] = [[line["step"], line["validation_loss"]] for line in lines if line.get("validation_loss") is not None]
    # The first steps find caches cold; what is done once in ten steps is in the mean.
    warm = [line["step_ms"] for line in lines[min(20, int(steps) // 6):]] or [0.0]
    found["step_ms"], found["mean_ms"] = statistics.median(warm), statistics.mean(warm)
    if ended.returncode != 0 or not found["losses"]:
        found["error"] = ended.stderr[-400:]
    with args.out.open("a") as out:
        out.write(json.dumps(found) + "\n")
    last = found["losses"][-1][1] if found["losses"] else found.get("error")
    print(*job, "->", last, f"{found['step_ms']:.3f} ms", flush=True)
    return found


def last_loss(found):
    """What a run ended at; one that failed, or lost its way, ended nowhere good."""
    return found["losses"][-1][1] if found["losses"] and "error" not in found else float("inf")


def race(args, work):
    """All runs of the race, a few at a time; none begins after `args.seconds`."""
    ends = time.time() + args.seconds

    def raced(jobs):
        def one(job):
            return run(args, work, job) if time.time() < ends else None

        with ThreadPoolExecutor(args.parallel) as pool:
            return [found for found in pool.map(one, jobs) if found]

    def steps_of(case):
        return max(int(STEPS[case] * args.scale), 20)

    def job(case, name, rate, seed="1", options=(), share=1.0):
        return [case, name, rate, str(round(steps_of(case) * share)), seed, *options]

    found = raced([job(case, name, rate) for case in CASES for name, rates in RATES.items() for rate in rates.split()])
    best = {}
    for one in sorted(found, key=last_loss):
        best.setdefault((one["case"], one["optimizer"]), one)
    for one in sorted(raced([job(case, "adamw", best[case, "adamw"]["rate"], options=options) for options in OF_ADAMW
                             for case in CASES]), key=last_loss):
        if last_loss(one) < last_loss(best[one["case"], "adamw"]):
            best[one["case"], "adamw"] = one
    again = [job(case, name, one["rate"], seed, one["options"]) for seed in SEEDS[1:] for (case, name), one in best.items()]
    shorter = [job(case, name, one["rate"], seed, share=share) for seed in SEEDS for (case, name), one in best.items()
               for share in SHARES.get(name, [])]
    raced(again + shorter)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["race", "losses", "times"])
    parser.add_argument("jobs", nargs="?", type=Path)
    parser.add_argument("--gradus", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repository", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--parallel", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200, help="steps that are timed")
    parser.add_argument("--optimizers", default="adamw muon soap sophia")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which a race begins no other run")
    parser.add_argument("--scale", type=float, default=1.0, help="of a race's steps, to try it out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prepared(args.gradus, args.data, work)
        started = time.time()
        if args.what == "race":
            race(args, work)
        elif args.what == "times":
            for case in CASES:
                for optimizer in args.optimizers.split():
                    run(args, work, [case, optimizer, "usual", str(args.steps), "1"])
        else:
            jobs = [line.split() for line in args.jobs.read_text().splitlines() if line.strip() and line[0] != "#"]
            with ThreadPoolExecutor(args.parallel) as pool:
                list(pool.map(lambda job: run(args, work, job), jobs))
        print(f"{time.time() - started:.1f} s")


main()
