"""Runs the first seeds of the simulator and stops at the first violation, without reducing its plan."""

from __future__ import annotations

import sys

from procession.sim.runner import plan_of, run_plan


def main(runs: int) -> int:
    for seed in range(runs):
        breach = run_plan(plan_of(seed)).breach
        if breach is not None:
            print(f"seed {seed}: {breach}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
