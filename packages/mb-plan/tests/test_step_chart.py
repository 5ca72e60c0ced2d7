"""Chart of the parts of a predicted step."""

from xml.etree import ElementTree

import pytest

from mb_plan.time.step_chart import render_step_chart

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_sorted_and_as_long_as_their_share():
    text = render_step_chart(
        {"memory": 1.0, "fp8": 3.0}, meanings={"fp8": "products in <FP8>"}, title="a & b"
    )
    root = ElementTree.fromstring(text)
    widths = [float(bar.get("width")) for bar in root.iter(f"{SVG}rect") if bar.get("class") == "first"]
    words = ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]
    assert widths == [pytest.approx(315.0), pytest.approx(105.0)]
    assert words == ["a & b", "4 s", "fp8products in <FP8>", "75.0%, 3 s", "memory", "25.0%, 1 s"]
