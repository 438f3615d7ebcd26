"""The work of `procession bench peers` on PyFlink: one task, from a file to files, with exactly-once checkpoints.

It runs in the environment of PyFlink, which `scripts/peers` makes.
"""

import sys
from pathlib import Path

from fields import is_wanted, marked, parted
from pyflink.common import Encoder, Types, WatermarkStrategy
from pyflink.datastream import CheckpointingMode, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink, FileSource, StreamFormat


def is_wanted_line(line: str) -> bool:
    return is_wanted(line.encode())


def first(line: str) -> bytes:
    return parted(line.encode())


def second(record: bytes) -> str:
    return marked(record).decode()


if __name__ == "__main__":
    source, target, work = (Path(given).absolute().as_uri() for given in sys.argv[1:])
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(1)
    environment.set_python_executable(sys.executable)
    environment.enable_checkpointing(1000, CheckpointingMode.EXACTLY_ONCE)
    read = (
        FileSource.for_record_stream_format(StreamFormat.text_line_format(), source).process_static_file_set().build()
    )
    write = FileSink.for_row_format(target, Encoder.simple_string_encoder()).build()
    lines = environment.from_source(read, WatermarkStrategy.no_watermarks(), "lines")
    kept = lines.filter(is_wanted_line).map(first, Types.PICKLED_BYTE_ARRAY())
    kept.map(second, Types.STRING()).sink_to(write)
    environment.execute("peers")
