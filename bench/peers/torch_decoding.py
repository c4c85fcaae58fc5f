#!/usr/bin/env python3
"""Tokens a second that transformers decodes, as `gradus generate MODEL --prompt the --count N` does: 128 tokens after the first, two threads.

    torch_decoding.py MODEL [--count 64] [--precision f32|bf16] [--gradus BINARY]

With --gradus, the program takes turns with it; a run of one token is taken off, so that loading a model is not in it.
"""
import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

TOKENS = 128
ROUNDS = 3


def of_transformers(model, count, precision):
    """One run, in a process of its own: its speed and its peak memory in MB."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(2)
    type_ = {"f32": torch.float32, "bf16": torch.bfloat16}[precision]
    network = AutoModelForCausalLM.from_pretrained(model, dtype=type_).eval()
    prompt = AutoTokenizer.from_pretrained(model)(["the"] * count, return_tensors="pt")
    options = dict(do_sample=True, temperature=0.8, top_k=0, pad_token_id=0, eos_token_id=None)

    def seconds(tokens):
        begin = time.perf_counter()
        with torch.inference_mode():
            written = network.generate(**prompt, max_new_tokens=tokens, **options)
        assert written.shape[1] == prompt["input_ids"].shape[1] + tokens
        return time.perf_counter() - begin

    first = seconds(1)
    return count * TOKENS / (seconds(TOKENS + 1) - first), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 * 1.024


def of_gradus(binary, model, count, precision):
    command = [binary, "generate", model, "--prompt", "the", "--device", "cpu", "--threads", "2", "--count", str(count)]

    def seconds(tokens):
        begin = time.perf_counter()
        child = subprocess.Popen(command + ["--precision", precision, "--max-tokens", str(tokens)], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        assert status == 0
        return time.perf_counter() - begin, used.ru_maxrss / 1e3 * 1.024

    first, _ = seconds(1)
    rest, peak = seconds(TOKENS + 1)
    return count * TOKENS / (rest - first), peak


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model")
    arguments.add_argument("--count", type=int, default=64)
    arguments.add_argument("--precision", default="f32", choices=["f32", "bf16"])
    arguments.add_argument("--gradus", metavar="BINARY")
    arguments.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    args = arguments.parse_args()
    if args.alone:
        print(*of_transformers(args.model, args.count, args.precision))
        return
    found = {"transformers": []} | ({"gradus": []} if args.gradus else {})
    for _ in range(ROUNDS):
        if args.gradus:
            found["gradus"].append(of_gradus(args.gradus, args.model, args.count, args.precision))
        own = [sys.executable, __file__, args.model, "--count", str(args.count), "--precision", args.precision, "--alone"]
        printed = subprocess.run(own, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        found["transformers"].append(tuple(map(float, printed.split()[-2:])))
    for name, rounds in found.items():
        speeds = [speed for speed, _ in rounds]
        each = " ".join(f"{speed:.0f}" for speed in speeds)
        print(f"{name}: {statistics.median(speeds):.1f} tokens/s ({each}), {max(peak for _, peak in rounds):.0f} MB")


if __name__ == "__main__":
    main()
