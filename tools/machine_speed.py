"""How much slower this machine is than the one whose seconds tools/stages.toml states."""

from __future__ import annotations

import statistics
import subprocess
import sys

REFERENCE_S = 0.55
"""What WORK takes on that machine in each of two processes side by side. Not measured there, but inferred: on
another, on which it takes 1.0 to 1.5 s, stages took 2 to 2.6 times as long as the table's figures imply."""
MAX_SLOWDOWN = 3.0
"""No machine counts as slower: whatever else runs there would stretch the budgets too."""
ROUNDS = 3
WORK = """
import ast, json, re, time
functions = (f"def f{i}(a, b={i}):\\n    return [a + c * {i} for c in b if c]" for i in range(400))
text = "\\n".join(functions)
began = time.perf_counter()
for _ in range(20):
    words = re.findall("[a-z_]+|[0-9]+", ast.unparse(ast.parse(text)))
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    assert json.loads(json.dumps(counts)) == counts
print(time.perf_counter() - began)
"""
"""What tests mostly are: Python that makes and drops small objects. It prints its seconds."""


def slowdown(at_once: int) -> float:
    """How many times as long as there WORK takes here, from 1.0 to MAX_SLOWDOWN: the median of a few rounds, of which
    each has as many processes as stages run at once, since processors share caches, clocks and often cores."""
    ratio = statistics.median(_round_s(at_once) for _ in range(ROUNDS)) / REFERENCE_S
    return min(max(1.0, ratio), MAX_SLOWDOWN)


def _round_s(at_once: int) -> float:
    command = [sys.executable, "-c", WORK]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(at_once)]
    return max(float(process.communicate()[0]) for process in processes)
