"""The work of `procession bench peers` on Bytewax: one worker, from a file to a file, with recovery.

It runs in the environment of Bytewax, which `scripts/peers` makes.
"""

import sys
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.connectors.files import FileSink, FileSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main
from fields import is_wanted, marked, parted

if __name__ == "__main__":
    source, target, work = sys.argv[1:]
    recovery = Path(work) / "recovery"
    recovery.mkdir(parents=True)
    init_db_dir(recovery, 1)
    flow = Dataflow("peers")
    lines = op.map("encode", op.input("in", flow, FileSource(source)), str.encode)
    done = op.map("marked", op.map("parted", op.filter("wanted", lines, is_wanted), parted), marked)
    # A file sink takes texts with a key.
    op.output("out", op.map("decode", done, lambda record: ("", record.decode())), FileSink(Path(target)))
    cluster_main(flow, [], 0, epoch_interval=timedelta(seconds=1), recovery_config=RecoveryConfig(str(recovery)))
