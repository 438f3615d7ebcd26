"""A plan as SVG: the positions of boxes, lines and labels, and the text in them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from procession import Pipeline
from procession.planner.drawing import BOX_HEIGHT, BOX_WIDTH, COLOURS, LETTERS_MAX, SINK_COLOUR, as_svg
from procession.planner.rules import make_plan
from tests.planner.pipelines import PIPELINES


def test_a_name_is_escaped_in_the_picture() -> None:
    # Names are validated and reasons are constants, but all text in the picture is escaped anyway.
    picture = as_svg(make_plan(PIPELINES["diamond"]().graph()))
    assert "×" in picture
    assert "tasks' outputs" not in picture
    assert "tasks&#x27; outputs" in picture


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", PIPELINES)
def test_no_arrowhead_and_no_label_covers_a_label(name: str) -> None:
    picture = ElementTree.fromstring(as_svg(make_plan(PIPELINES[name]().graph())))
    (marker,) = picture.iter(f"{SVG}marker")
    # Otherwise it would grow with the width of the line.
    assert marker.get("markerUnits") == "userSpaceOnUse"
    size = int(marker.get("markerWidth", ""))
    arrows = [path.get("d", "") for path in picture.iter(f"{SVG}path") if path.get("marker-end")]
    ends = [re.findall(r"-?\d+", path)[-2:] for path in arrows if "V" not in path]
    heads = [(int(x) - size, int(y) - size // 2, int(x), int(y) + size // 2) for x, y in ends]
    labels = []
    for text in picture.iter(f"{SVG}text"):
        if text.get("paint-order"):
            x, y, half = int(text.get("x", "")), int(text.get("y", "")), 7 * len(text[0].tail or "") // 2
            labels.append((x - half, y - 11, x + half, y + 3))
    assert labels
    for number, label in enumerate(labels):
        for other in [*heads, *labels[:number]]:
            is_apart = label[0] >= other[2] or other[0] >= label[2] or label[1] >= other[3] or other[1] >= label[3]
            assert is_apart, (label, other)


def test_the_dead_letters_have_an_arrow() -> None:
    picture = ElementTree.fromstring(as_svg(make_plan(PIPELINES["diamond"]().graph())))
    (group,) = (group_ for group_ in picture.iter(f"{SVG}g") if "dead-letter" in "".join(group_.itertext()))
    (box,) = group.iter(f"{SVG}rect")
    left, top, width = (int(box.get(name, "")) for name in ("x", "y", "width"))
    assert any(
        path.get("d", "").startswith(f"M{left + width // 2} ") and path.get("d", "").endswith(f"V{top}")
        for path in picture.iter(f"{SVG}path")
        if path.get("marker-end")
    )


def drawn(pipeline: Pipeline) -> ElementTree.Element:
    return ElementTree.fromstring(as_svg(make_plan(pipeline.graph())))


def boxes(picture: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """Return the box of each stage, by the beginning of its title."""
    groups = [group for group in picture.iter(f"{SVG}g") if group.find(f"{SVG}rect") is not None]
    return {(group[0].text or "").split(" ")[0]: group[1] for group in groups}


@pytest.mark.parametrize("name", PIPELINES)
def test_no_two_boxes_overlap_and_all_are_inside_the_picture(name: str) -> None:
    picture = drawn(PIPELINES[name]())
    width, height = (int(picture.get(size, "")) for size in ("width", "height"))
    places = [(int(box.get("x", "")), int(box.get("y", ""))) for box in boxes(picture).values()]
    for number, (x, y) in enumerate(places):
        assert 0 <= x <= width - BOX_WIDTH
        assert 0 <= y <= height - BOX_HEIGHT
        assert all(abs(x - left) >= BOX_WIDTH or abs(y - top) >= BOX_HEIGHT for left, top in places[:number])


def test_a_box_has_the_colour_of_its_chain_and_a_sink_its_own() -> None:
    pipeline = Pipeline("p", parallelism=2)
    pipeline.source("in").map(str, name="a").rebalance(len, parallelism=3, name="b").sink(
        "out", to="file:out", codec="json"
    )
    found = {name: box.get("fill") for name, box in boxes(drawn(pipeline)).items()}
    assert found == {"in": COLOURS[0], "a": COLOURS[0], "b": COLOURS[1], "out": SINK_COLOUR}


def test_a_long_name_is_cut_in_the_box_and_whole_in_the_title() -> None:
    name = "n" * (LETTERS_MAX + 1)
    pipeline = Pipeline("p")
    pipeline.source("in").map(str, name=name).map(str, name=name[1:]).sink("out", to="file:out", codec="json")
    texts = [text.text for text in drawn(pipeline).iter(f"{SVG}text")]
    assert f"{name[: LETTERS_MAX - 1]}…" in texts
    assert name not in texts
    assert name[1:] in texts
    assert name in boxes(drawn(pipeline))


def test_an_edge_past_a_stage_crosses_no_box() -> None:
    pipeline = Pipeline("p")
    source = pipeline.source("in")
    source.map(str, name="a").map(str, name="b").merge(source.map(str, name="c")).sink(
        "out", to="file:out", codec="json"
    )
    picture = drawn(pipeline)
    tops = {int(box.get("y", "")) + BOX_HEIGHT // 2 for box in boxes(picture).values()}
    straight = [path.get("d", "") for path in picture.iter(f"{SVG}path") if "H" in path.get("d", "")]
    assert straight, "the edge from c to the merge passes the column of b"
    for path in straight:
        assert int(re.findall(r" (\d+)H", path)[0]) not in tops - {int(re.findall(r" (\d+)C", path)[0])}


def test_only_an_exchange_has_a_wide_line() -> None:
    pipeline = Pipeline("p", parallelism=2)
    pipeline.source("in").map(str).rebalance(len, parallelism=3).sink("out", to="file:out", codec="json")
    plan = make_plan(pipeline.graph())
    widths = [path.get("stroke-width") for path in ElementTree.fromstring(as_svg(plan)).iter(f"{SVG}path")]
    assert [width for width in widths if width] == ["3" if edge.is_exchange else "1" for edge in plan.edges]
