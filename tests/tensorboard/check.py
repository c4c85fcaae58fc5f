"""Checks that TensorBoard reads the event files of a run, and that every number and sample is the run's own.

usage: python tests/tensorboard/check.py RUN [EVENTS]        (needs tensorboard)

RUN is the folder of a run, EVENTS that of its event files: RUN/tensorboard by default. Each figure of each line of
metrics.jsonl must be there once, at its step, in single precision, and nothing else; a null is not a number there.
The exit code is 0 if all is the same.
"""

import json
import math
import sys
from pathlib import Path

import numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

# What a line has besides figures that are shown.
NOT_SHOWN = {"step", "account"}


def expected(run):
    """Every figure by key and step."""
    figures = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        for key, value in line.items():
            if key not in NOT_SHOWN and not isinstance(value, (dict, list, str)):
                figures.setdefault(key, {})[line["step"]] = math.nan if value is None else value
        for key, value in gradient_figures(line):
            figures.setdefault(key, {})[line["step"]] = math.nan if value is None else value
    return figures


def gradient_figures(line):
    """The figures of each weight's gradient, by the tags that they are shown by."""
    for weight, norm in line.get("gradients", {}).items():
        yield f"gradients/{weight}", norm
    for weight, others in line.get("health", {}).items():
        for key, value in others.items():
            yield f"{key}/{weight}", value


def compare(key, figures, scalars):
    """Every difference between the figures of a key and what TensorBoard has of it."""
    steps = [scalar.step for scalar in scalars]
    if steps != sorted(figures):
        yield f"{key}: {len(steps)} steps there, {len(figures)} in metrics.jsonl: {steps[:5]}.. and {sorted(figures)[:5]}.."
        return
    for scalar in scalars:
        value, own = numpy.float32(scalar.value), numpy.float32(figures[scalar.step])
        if value != own and not (numpy.isnan(value) and numpy.isnan(own)):
            yield f"{key} of step {scalar.step}: {value} there, {own} in metrics.jsonl"


def compare_samples(run, events):
    own = {int(path.stem.removeprefix("step-")): path.read_bytes().decode() for path in (run / "samples").glob("step-*.txt")}
    there = {}
    if "sample" in events.Tags()["tensors"]:
        for event in events.Tensors("sample"):
            text = tensor_util.make_ndarray(event.tensor_proto).item().decode()
            there[event.step] = "\n".join(line.removeprefix("    ") for line in text.split("\n"))
    if there != own:
        yield f"samples of steps {sorted(there)} there, {sorted(own)} in samples/, or another text"


def main():
    run = Path(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else run / "tensorboard"
    # 0: everything is kept.
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    figures = expected(run)
    tags = set(events.Tags()["scalars"])
    problems = [f"{key} is only in one of them" for key in sorted(tags ^ set(figures))]
    for key in sorted(tags & set(figures)):
        problems += compare(key, figures[key], events.Scalars(key))
    problems += compare_samples(run, events)
    print("\n".join(problems) or f"the same: {sum(map(len, figures.values()))} figures of {len(figures)} kinds, and all samples")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
