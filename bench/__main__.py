"""`python -m bench [NAME] [options]`: one benchmark, or all of them."""

from __future__ import annotations

import sys

from bench import credit_window, decode, epoch_time, gateway, memory, recovery

BENCHMARKS = {
    "credits": credit_window.main,
    "decode": decode.main,
    "epoch-time": epoch_time.main,
    "gateway": gateway.main,
    "memory": memory.main,
    "recovery": recovery.main,
}


def main() -> None:
    name, *options = sys.argv[1:] or [""]
    if name and name not in BENCHMARKS:
        sys.exit(f"there is no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}")
    for known, run in BENCHMARKS.items():
        if name in ("", known):
            run(options)


if __name__ == "__main__":
    main()
