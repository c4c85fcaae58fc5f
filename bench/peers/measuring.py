"""What the PyTorch programs share: timing, memory, and the line that they print."""

import json
import time


def rounds(work, seconds, fewest=5, shortest=0.002):
    """Seconds of one run of `work`, over rounds that take about `seconds` together, after a warm-up."""
    begin, runs = time.perf_counter(), 0
    while runs < 3 or time.perf_counter() - begin < seconds / 10:
        work()
        runs += 1
    begin = time.perf_counter()
    work()
    repeats = max(1, int(shortest / max(time.perf_counter() - begin, 1e-9)))
    found, begin = [], time.perf_counter()
    while len(found) < fewest or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        found.append((time.perf_counter() - start) / repeats)
    return found


def peak_memory():
    """The most bytes that this process ever held."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def tell(name, seconds, **more):
    """Prints one result: a name and the seconds of every round."""
    print(json.dumps({"name": name, "seconds": seconds, **more}), flush=True)
