"""The commands `procession bench NAME`.

As in `cli/main`, a command only parses and prints; the modules of `bench` measure. Each command also prints the
command line that repeats the measurement. Benchmarks of order are in `cli/order_benchmarks`, those of states and
columns in `cli/operator_benchmarks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from procession.cli import operator_benchmarks, order_benchmarks
from procession.cli.bench_options import Json, Rounds, print_figures
from procession.cli.command_options import with_groups
from procession.exit_status import Status

if TYPE_CHECKING:
    from procession.bench.measured_sink import SinkRounds

bench_app = typer.Typer(
    help="Run one benchmark, or without a name all of them. Each prints the command that repeats it.",
    invoke_without_command=True,
)

Directory = Annotated[Path | None, typer.Option("--dir", show_default="memory", help="Directory of the log.")]
MIB = 1024 * 1024
ALL = "all"


@bench_app.callback()
def run_all(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        from procession.bench.repeated_runs import RepeatedRuns

        benchmarks, found = benchmarks_of(context.command), RepeatedRuns()

        def run(name: str) -> dict[str, Any]:
            run_benchmark(benchmarks[name], name)
            return {}  # it has printed its figures

        found.measure(list(benchmarks), 1, run)
        for line in found.failure_lines():
            print(line)
        if found.failures:
            raise typer.Exit(Status.UNCLEAN)


def run_benchmark(command: Any, name: str, *options: str) -> None:
    """Run the command of a benchmark. Raises BenchmarkFailed if it ends with a status other than 0."""
    from procession.bench.repeated_runs import BenchmarkFailed

    status = command.main([*options], prog_name=f"procession bench {name}", standalone_mode=False)
    if status == Status.INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        raise BenchmarkFailed(f"it ended with status {status}")


def benchmarks_of(group: Any) -> dict[str, Any]:
    """Return the commands of the group that each run one benchmark."""
    return {name: command for name, command in group.commands.items() if name != ALL}


for name, command in (order_benchmarks.COMMANDS | operator_benchmarks.COMMANDS).items():
    bench_app.command(name=name)(command)


@bench_app.command(name="epoch-time")
def epoch_time(
    context: typer.Context,
    rounds: Rounds = 3,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Also measure without each performance setting, one at a time.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time of a small epoch, with Spark's default settings and with ours."""
    from procession.bench import epoch_time as bench

    figures = bench.measure(rounds, is_ablating=ablate)
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command(name="control-plane")
def control_plane(
    context: typer.Context,
    sizes: Annotated[
        list[int] | None,
        typer.Option(
            "--size",
            min=1,
            show_default="10, 100, 1000",
            help="Number of gateways, sink connections and tasks (repeatable).",
        ),
    ] = None,
    rounds: Rounds = 3,
    spark_tasks: Annotated[int, typer.Option(min=0, help="Also run this many empty tasks in Spark. 0: none.")] = 0,
    as_json: Json = False,
) -> None:
    """Processor time of leader, offsets, rounds and manifests for many gateways, and which grow faster than these."""
    from procession.bench import control_plane as bench
    from procession.bench.exchange_costs import spark_task_cpu_us

    figures = bench.measure(sizes or bench.SIZES, rounds)
    figures |= {"spark_task_cpu_us": spark_task_cpu_us(spark_tasks)} if spark_tasks else {}
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command()
def cluster(
    context: typer.Context,
    executors: Annotated[
        list[int] | None,
        typer.Option(min=1, max=32, show_default="1, 2, 4", help="Number of executors, each on its own host."),
    ] = None,
    records: Annotated[int, typer.Option(min=800, help="Records per run, of 20 bytes.")] = 1_600_000,
    as_json: Json = False,
) -> None:
    """Processor time and bytes a record by role, on hosts from network namespaces, and small epochs. Root only."""
    from procession.bench import cluster_roles as bench

    figures = bench.measure(executors or (1, 2, 4), records)
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command()
def emitters(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1000, help="Records per run, of 20 bytes.")] = 6_000_000,
    count: Annotated[int, typer.Option("--emitters", min=1, help="Processes that send.")] = 2,
    rounds: Rounds = 2,
    as_json: Json = False,
) -> None:
    """Processor time of the driver for a sink with four connections: without emitters, with emitter processes, and with
    emitters at addresses that fetch from a host service."""
    from procession.bench import emitter_costs as bench

    figures = bench.measure(records, count, rounds)
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command()
def recovery(context: typer.Context, rounds: Rounds = 3, as_json: Json = False) -> None:
    """Time that each process takes to recover from SIGKILL."""
    from procession.bench import recovery_time as bench

    figures = bench.measure(rounds)
    print_figures(context, {"parts": figures}, bench.report_lines(figures))


@bench_app.command()
def kafka(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1, help="Messages per round, of 100 bytes.")] = 1_000_000,
    rounds: Rounds = 3,
    as_json: Json = False,
) -> None:
    """Kafka to Kafka, exactly once, compared with a loop that consumes, transforms and produces in transactions."""
    from procession.bench import kafka_throughput as bench
    from procession.deployment.settings import load_settings

    figures = bench.measure(records, rounds, load_settings())
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command()
def decode(
    context: typer.Context,
    frames: Annotated[int, typer.Option(min=1, help="Number of frames with payloads of 50 bytes.")] = 1_000_000,
    rounds: Rounds = 7,
    as_json: Json = False,
) -> None:
    """Decoding of MESSAGE frames into columns, compared with a loop over `struct`."""
    from procession.bench import decode as bench

    figures = bench.measure(frames, rounds)
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command()
def gateway(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=8, help="Records per round.")] = 4_000_000,
    rounds: Rounds = 5,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Throughput of a gateway, compared with loopback TCP."""
    from procession.bench import gateway_throughput as bench

    figures = bench.measure(records, rounds, directory)
    print_figures(context, {"producers": figures}, bench.report_lines(figures))


@bench_app.command()
def producers(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=64, help="Records per round.")] = 4_000_000,
    rounds: Rounds = 3,
    connections: Annotated[int, typer.Option(min=1, help="Number of idle connections.")] = 1_000,
    streams_each: Annotated[int, typer.Option(min=1, help="Streams per idle connection.")] = 10,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Throughput of a gateway with 1, 8 and 64 producers, and the memory of an idle connection."""
    from procession.bench import producers as bench

    figures = bench.measure(records, rounds, connections, streams_each, directory)
    print_figures(context, {"producers": figures}, bench.report_lines(figures))


@bench_app.command()
def credits(  # noqa: A001  (its name on the command line)
    context: typer.Context,
    rounds: Rounds = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds per round with the slow pipeline.")] = 10.0,
    rate: Annotated[int, typer.Option(min=1, help="Records per second that the slow pipeline commits.")] = 20_000,
    epoch_s: Annotated[float, typer.Option(min=0.001, help="Seconds per epoch of the slow pipeline.")] = 0.1,
    records: Annotated[int, typer.Option(min=1, help="Records per round with the fast pipeline.")] = 2_000_000,
    latency_target_s: Annotated[float, typer.Option(help="Latency target of the adaptive window, in seconds.")] = 1.0,
    lag_max: Annotated[
        int, typer.Option("--lag-bytes-max", min=1, help="Uncommitted bytes above which producers get no credits.")
    ] = 256 * MIB,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Fixed and adaptive credits, with a slow pipeline and with a fast one."""
    from procession.bench import credits as bench

    given = bench.CreditsSetup(rounds, seconds, rate, epoch_s, records, latency_target_s, lag_max, directory)
    figures = bench.measure(given)
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command()
def replication(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1, help="Records per round.")] = 2_000_000,
    rounds: Rounds = 3,
    pipeline_records: Annotated[
        int, typer.Option(min=0, help="Records per round of a whole pipeline; 0: only a gateway and a file.")
    ] = 2_000_000,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Cost of two replicas on this machine: of a gateway, of a durable file, and of a whole pipeline at three loads."""
    from procession.bench import replicated_pipeline, replication

    figures = replication.measure(records, rounds, directory)
    lines = list(replication.report_lines(figures))
    if pipeline_records:
        figures["pipeline"] = replicated_pipeline.measure(pipeline_records, rounds, directory)
        lines += replicated_pipeline.report_lines(figures["pipeline"])
    print_figures(context, figures, lines)


@bench_app.command()
def memory(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1, help="Number of records of the demo.")] = 2_000_000,
    as_json: Json = False,
) -> None:
    """Memory of each process early and late in the demo."""
    from procession.bench import memory as bench

    figures = bench.measure(records)
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command()
def loop(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1, help="Records in the file.")] = 6_000_000,
    rounds: Rounds = 3,
    epoch_records: Annotated[
        int, typer.Option(min=0, help="Records per epoch; 0 means an adaptive size, which is the default.")
    ] = 0,
    warm_records: Annotated[int, typer.Option(min=1, help="Records sent before the measurement.")] = 300_000,
    warm_s: Annotated[float, typer.Option(min=0, help="Seconds over which they are sent, to warm up the JVM.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Throughput of a file through a pipeline, with per-record and columnar functions, compared with a plain loop."""
    from procession.bench import loop as bench
    from procession.deployment.settings import load_settings

    settings = load_settings(epoch_records_max=epoch_records, epoch_target_s=0.0) if epoch_records else load_settings()
    figures = bench.measure(records, rounds, settings, warm_records=warm_records, warm_s=warm_s)
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command(name="epoch-sizes")
def epoch_sizes(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1, help="Records in the file.")] = 6_000_000,
    rounds: Rounds = 3,
    size: Annotated[list[int] | None, typer.Option(min=1, help="Fixed size to compare with. Can be repeated.")] = None,
    rate: Annotated[int, typer.Option(min=1, help="Records per second of the small load.")] = 2_000,
    rate_s: Annotated[float, typer.Option(min=0.1, help="Seconds of the small load.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Epochs of adaptive size, compared with epochs of fixed sizes: throughput, and latency of a small load."""
    from procession.bench import epoch_sizes as bench

    figures = bench.measure(records, rounds, size or bench.SIZES, rate, rate_s)
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command()
def peers(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1, help="Records per round.")] = 2_000_000,
    rounds: Rounds = 3,
    peer: Annotated[
        list[str] | None, typer.Option(help="Measure only this program. Can be repeated.", show_default="all")
    ] = None,
    environments: Annotated[Path, typer.Option(help="Directory in which `scripts/peers` has installed them.")] = Path(
        ".make/peers"
    ),
    as_json: Json = False,
) -> None:
    """Bytewax, PyFlink, Pathway and plain PySpark, compared with Procession: the same functions from file to file."""
    from procession.bench import peer_systems as bench

    figures = bench.measure(records, rounds, peer or list(bench.PEERS), environments)
    print_figures(context, figures, bench.report_lines(figures))


@dataclass(frozen=True, kw_only=True)
class SinkSizes:
    """Options of the benchmarks that compare a sink with a plain loop."""

    records: Annotated[int, typer.Option(min=1, help="Records per round.")] = 400_000
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs for these records.")] = 4
    rounds: Rounds = 5
    as_json: Json = False

    def load(self) -> SinkRounds:
        from procession.bench.measured_sink import SinkRounds

        return SinkRounds(self.records, self.epochs, self.rounds)


@bench_app.command()
@with_groups
def postgres(context: typer.Context, *, sizes: SinkSizes) -> None:
    """Throughput of the PostgreSQL sink, compared with plain COPY of the same rows."""
    from procession.bench import postgres_throughput as bench

    figures = bench.measure(sizes.load())
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command()
@with_groups
def delta(context: typer.Context, *, sizes: SinkSizes) -> None:
    """Throughput of the Delta sink, compared with plain deltalake writes of the same rows."""
    from procession.bench import delta_throughput as bench

    figures = bench.measure(sizes.load())
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command()
def start(context: typer.Context, rounds: Rounds = 3, as_json: Json = False) -> None:
    """Time from `procession run` to the first committed record, and the processor time of each part."""
    from procession.bench import start_time as bench

    figures = bench.measure(rounds)
    print_figures(context, figures, bench.report_lines(figures))


@bench_app.command()
def growth(
    context: typer.Context,
    sizes: Annotated[
        list[int] | None,
        typer.Option(
            "--records", min=1, show_default="1, 10 and 100 million", help="Number of records. Can be repeated."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Time and memory of each process for 1, 10 and 100 million records."""
    from procession.bench import growth as bench

    figures = bench.measure(sizes or bench.SIZES)
    print_figures(context, figures, bench.report_lines(figures))
