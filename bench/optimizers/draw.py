#!/usr/bin/env python3
"""Draws what run.py found, and prints a table: `draw.py LOSSES TIMES SVG`.

LOSSES are lines of run.py; of several settings those with most seeds count, and of these the one with the lowest loss at the end. TIMES is a JSON object of milliseconds a
step, by case and optimizer. Lines are means over seeds, of runs as long as two arguments after SVG say, by case; 1000 and 2000 steps if there are none.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

COLOURS = {"adamw": "#555", "muon": "#c33", "soap": "#36c", "sophia": "#393"}
WIDTH, HEIGHT, LEFT, TOP, GAP = 400, 240, 56, 34, 80


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def mean(numbers):
    return sum(numbers) / len(numbers)


def curves(runs, steps):
    """By case and optimizer: the best rate, and (step, mean loss) of it."""
    by_rate = defaultdict(list)
    for run in runs:
        if run["steps"] == steps[run["case"]] and run["losses"]:
            settings = " ".join([run["rate"], *run.get("options", [])])
            by_rate[run["case"], run["optimizer"], settings].append(dict(map(tuple, run["losses"])))
    found = {}
    for (case, optimizer, rate), seeds in by_rate.items():
        curve = [(step, mean([seed[step] for seed in seeds])) for step in sorted(seeds[0])]
        best = found.get((case, optimizer))
        if best is None or (-len(seeds), curve[-1][1]) < (-best[2], best[1][-1][1]):
            found[case, optimizer] = (rate, curve, len(seeds))
    return found


def reached(curve, loss):
    """The step at which a curve falls to a loss, between two of its points; None if it does not."""
    for (before, high), (after, low) in zip(curve, curve[1:]):
        if low <= loss:
            return after if high <= low else before + (after - before) * min(1.0, (high - loss) / (high - low))
    return None


def axis(svg, x, y, low, high, left, right, title, unit):
    for share in range(5):
        loss, along = low + (high - low) * share / 4, left + (right - left) * share / 4
        svg.append(f'<text x="{x - 6}" y="{y + HEIGHT * (1 - share / 4) + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        svg.append(f'<text x="{x + WIDTH * share / 4:.1f}" y="{y + HEIGHT + 16}" text-anchor="middle">{along:.4g}</text>')
        svg.append(f'<path d="M{x} {y + HEIGHT * share / 4:.1f}h{WIDTH}" stroke="#ddd"/>')
    svg.append(f'<text x="{x + WIDTH / 2}" y="{y - 10}" text-anchor="middle">{title}, {unit}</text>')


def drawn(found, times):
    svg = []
    cases = sorted({case for case, _ in found})
    for row, case in enumerate(cases):
        own = {name: found[case, name][1] for name in COLOURS if (case, name) in found}
        last = [curve[-1][1] for curve in own.values()]
        low, high = min(last) - 0.03, min(last) + 0.8
        for column, unit in enumerate(["steps", "seconds of two threads"]):
            x, y = LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP)
            along = {name: 1 if column == 0 else times[case][name] / 1000 for name in own}
            right = max(curve[-1][0] * along[name] for name, curve in own.items())
            axis(svg, x, y, low, high, 0, right, case, unit)
            for place, (name, curve) in enumerate(own.items()):
                at = [(x + WIDTH * step * along[name] / right, y + HEIGHT * (high - loss) / (high - low)) for step, loss in curve]
                path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at if y <= b <= y + HEIGHT)
                svg.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.6"/>')
                svg.append(f'<text x="{x + WIDTH - 70}" y="{y + 16 + 14 * place}" fill="{COLOURS[name]}">{name}</text>')
    width, height = LEFT + 2 * WIDTH + GAP + 20, TOP + len(cases) * (HEIGHT + GAP)
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style}>' + "".join(svg) + "</svg>\n"


def table(found, times):
    print("| Case | Optimizer | Rate | Seeds | Loss | Steps to AdamW's | of its steps | of its time |")
    print("|---|---|---|---|---|---|---|---|")
    for (case, name), (rate, curve, seeds) in sorted(found.items()):
        adamw = found[case, "adamw"][1]
        step = reached(curve, adamw[-1][1])
        share = step / adamw[-1][0] if step else None
        slower = times[case][name] / times[case]["adamw"]
        figures = f"{step:.0f} | {share:.2f} | {share * slower:.2f}" if step else "not reached | |"
        print(f"| {case} | {name} | {rate} | {seeds} | {curve[-1][1]:.4f} | {figures} |")


def main():
    losses, times_of, svg, *steps = sys.argv[1:]
    times = json.loads(Path(times_of).read_text())
    found = curves(lines(losses), dict(zip(["reference", "shakespeare"], map(int, steps or [1000, 2000]))))
    Path(svg).write_text(drawn(found, times))
    table(found, times)


main()
