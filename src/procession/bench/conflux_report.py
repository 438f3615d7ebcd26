"""The report of `procession bench conflux`: one self-contained HTML page with plots, next to the paper's figures.

Invariant: everything on the page comes from the figures, which are also at its end as JSON. The plots are those of the
paper's figures 7 to 12. Upstream: `bench/conflux`; drawn by `bench/svg_plot`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from procession.bench.svg_plot import bars, cdf, curves

LABELS = {
    "lanes": "lanes, merged",
    "blocks": "lanes of blocks, merged",
    "ordered": "ordered sink",
    "unordered": "no order",
    "sequential": "one task",
    "baseline": "window sort",
}
MS = "milliseconds"

STYLE = """
body { font: 15px/1.55 system-ui, sans-serif; margin: 2em auto; max-width: 1180px; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2.2em; }
table { border-collapse: collapse; margin: 1em 0; }
td, th { padding: .2em .9em; text-align: right; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; }
.plots { display: flex; flex-wrap: wrap; gap: 1.5em; } figure { margin: 0; }
figcaption { max-width: 540px; font-size: .92em; }
pre { background: #f6f6f6; padding: 1em; overflow: auto; max-height: 30em; font-size: 12px; }
"""

DIFFERENCES = (
    "The paper used 20 virtual machines with two cores each: 15 for Flink, 3 for Kafka, one for the merger. Here"
    " everything runs on one machine: source, gateway, Spark, sink, broker and reader share its cores. So compare"
    " ratios, not absolute figures.",
    "The paper's pipelines run on Flink, record by record. Ours run on Spark, by epochs; the baseline's windows have"
    " the same size as our epochs.",
    "The paper's operators count to 1,000 in a loop that a compiler may remove. Ours use a stated processor time per"
    " record and stage.",
    "The paper's Listing 1 has 30 queues, one for each path. Here a task merges what it receives, so the last stage has"
    " one sorted path per task, and as many lanes.",
    "Our pipelines are exactly once: a record is visible to the reader after a two-phase commit. The paper's evaluation"
    " does not say which guarantee was on. The baseline here publishes without transactions.",
    "The paper's emission is when the merger sends a record back to Kafka. Here it is when the reading service has the"
    " record in order. For the baseline that includes reading it from the topic.",
    "A message of the topic has one record, as in the paper; in lanes of blocks it has many, which only mergers read.",
    "The source creates a record when it may send it. At most two epochs of records wait for their commit, for every"
    " contestant.",
)

STAMPS = (
    ("creation", "The source creates the record."),
    ("process", "The last stage of the pipeline has finished it."),
    ("sink", "The broker has appended it to the topic (LogAppendTime, in milliseconds)."),
    ("consume", "The reader's client has returned it."),
    ("emit", "The reader has it in order."),
)


def write_report(path: Path, figures: Mapping[str, Any]) -> None:
    path.write_text(page(figures), encoding="utf-8")


def write_plots(directory: Path, figures: Mapping[str, Any]) -> None:
    """Write the plots of each workload as files, such as `listing1-figure-7.svg`."""
    for workload, result in figures["workloads"].items():
        for name, (_, drawing) in plots(result).items():
            (directory / f"{workload}-{name}.svg").write_text(drawing, encoding="utf-8")


def page(figures: Mapping[str, Any]) -> str:
    title = "Order at scale: the evaluation of Conflux on Procession"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    body = "\n".join(_body(title, figures))
    return f"<!doctype html><html lang=en><head>{head}</head><body>\n{body}\n</body></html>\n"


def _body(title: str, figures: Mapping[str, Any]) -> Iterator[str]:
    pace = f"{figures['rate']:,.0f} records/s" if figures["rate"] else "as fast as the pipeline takes them"
    yield f"<h1>{escape(title)}</h1>"
    yield (
        f"<p>{figures['records']:,} records of {figures['record_bytes']} bytes per run, {pace};"
        f" {figures['burn_ns']:,} ns of processor time burned per record and stage; epochs and windows of at most"
        f" {figures['epoch_records']:,} records; {figures['rounds']} rounds by turns; medians. Each contestant is warm:"
        " it has a long run first and a short one before each run that counts. In each run all expected records came"
        " out, once, and in order.</p>"
    )
    if command := figures.get("command"):
        yield f"<p>Repeat it: <code>{escape(str(command))}</code></p>"
    for workload, result in figures["workloads"].items():
        tasks = " → ".join(map(str, result["tasks"]))
        yield f"<h2>Workload {escape(workload)}: tasks {tasks}, {result['lanes']} lanes</h2>"
        yield _table(result, figures["paper"])
        yield '<div class="plots">'
        for caption, drawing in plots(result).values():
            yield f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"
        yield "</div>"
    yield "<h2>The five times of a record</h2><table>"
    yield from (f"<tr><td>{name}</td><td style='text-align:left'>{text}</td></tr>" for name, text in STAMPS)
    yield "</table><h2>What differs from the paper</h2><ul>"
    yield from (f"<li>{escape(text)}</li>" for text in DIFFERENCES)
    yield f"</ul><h2>Figures</h2><pre>{escape(json.dumps(figures, indent=1))}</pre>"


def _table(result: Mapping[str, Any], paper: Mapping[str, Any]) -> str:
    rows = [
        "<table><tr><th></th><th>records/s</th><th>completion, s</th><th>mean, ms</th><th>p99, ms</th>"
        "<th>processor time, µs/record</th><th>throughput to window sort</th><th>mean to window sort</th>"
        "<th>p99 to window sort</th></tr>"
    ]
    for name, row in result["contestants"].items():
        latency = row["latency"]["end_to_end"]
        cells = [
            f"{row['records_per_second']:,.0f}",
            f"{row['completion_s']:.1f}",
            f"{latency['mean_ms']:,.0f}",
            f"{latency['p99_ms']:,.0f}",
            f"{row['cpu_us_per_record']:.2f}",
            *_ratio_cells(result["ratios_to_baseline"].get(name)),
        ]
        rows.append(_row(LABELS[name], cells))
    for name, label in (("lanes", "the paper's Conflux"), ("baseline", "the paper's window sort")):
        row = paper[name]
        cells = [
            f"{row['records_per_second']:,.0f}",
            f"{row['completion_s']:.0f}",
            f"{row['mean_ms']:,.0f}",
            f"{row['p99_ms']:,.0f}",
            "",
            *_ratio_cells(paper["ratios"] if name == "lanes" else None),
        ]
        rows.append(_row(label, cells))
    return "".join([*rows, "</table>"])


def _ratio_cells(ratios: Mapping[str, float] | None) -> list[str]:
    names = ("throughput", "mean_latency", "p99_latency")
    return ["", "", ""] if ratios is None else [f"{ratios[name]:.2f}" for name in names]


def _row(label: str, cells: list[str]) -> str:
    return f"<tr><td>{escape(label)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def plots(result: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the paper's figures 7 to 12 from our data: caption and drawing, by the name of a file."""
    found = result["contestants"]
    labelled = {LABELS[name]: row for name, row in found.items()}
    made = {
        "figure-7": (
            "Figure 7: distribution of end-to-end latency, from creation to emission in order.",
            cdf("End-to-end latency", MS, {name: _cdf(row, "end_to_end") for name, row in labelled.items()}),
        ),
        "figure-8": (
            "Figure 8: mean and p99 of the end-to-end latency.",
            bars(
                "Mean and p99 latency",
                MS,
                {
                    text: {name: row["latency"]["end_to_end"][figure] for name, row in labelled.items()}
                    for text, figure in (("mean", "mean_ms"), ("p99", "p99_ms"))
                },
            ),
        ),
        "figure-9": (
            "Figure 9: throughput over a sliding window of 3 seconds. The paper's Conflux has 250,000 records/s, its"
            " baseline 140,000 to 150,000.",
            curves(
                "Throughput",
                "seconds since the first record",
                "records/s",
                {name: row["throughput"] for name, row in labelled.items()},
            ),
        ),
    }
    if "lanes" not in found:
        return made
    lanes = found["lanes"]
    shown = {
        "source to process": "source_to_process",
        "source to sink": "source_to_sink",
        "source to merger": "source_to_merger",
        "end to end": "end_to_end",
    }
    waiting, merger = lanes["latency"]["sink_to_merger"], lanes["latency"]["merger"]
    return made | {
        "figure-10": (
            "Figure 10: the latencies of a pipeline with lanes, from creation to each point.",
            cdf("Latencies with lanes", MS, {text: _cdf(lanes, name) for text, name in shown.items()}),
        ),
        "figure-11": (
            f"Figure 11: from the sink to the merger. Mean {waiting['mean_ms']:.1f} ms, p99 {waiting['p99_ms']:.1f} ms;"
            " the paper has 16.31 and 163 ms. Here it contains the commit of the lane's transaction.",
            cdf("Sink to merger", MS, {"sink to merger": _cdf(lanes, "sink_to_merger")}),
        ),
        "figure-12": (
            f"Figure 12: from the merger's queues to emission. Mean {merger['mean_ms']:.1f} ms, p99"
            f" {merger['p99_ms']:.1f} ms; the paper has 620.28 and 1,259 ms.",
            cdf("In the merger", MS, {"in the merger": _cdf(lanes, "merger")}),
        ),
    }


def _cdf(row: Mapping[str, Any], latency: str) -> list[float]:
    values: list[float] = row["latency"][latency]["cdf_ms"]
    return values
