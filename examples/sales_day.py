"""Sales as JSON lines: when the file has ended, all sales from the dearest to the cheapest, then each shop's totals."""

from procession import Aggregate, Pipeline, aggregates

# It depends on the order: sales come in that of the file, whatever the parallelism.
last_item = Aggregate(create=str, add=lambda held, sale: sale["item"])

pipeline = Pipeline("sales-day", parallelism=2)
sales = pipeline.source("sales", codec="json")
dearest = sales.sort(lambda sale: sale["cents"], reverse=True, name="dearest-first")
shops = sales.aggregate(
    aggregates.all_of(cents=aggregates.sum_of(lambda sale: sale["cents"]), last_item=last_item),
    key=lambda sale: sale["shop"],
    name="by-shop",
)
dearest.merge(shops).sink("told", to="file:output")
