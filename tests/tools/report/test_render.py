"""HTML and Markdown: well-formed, self-contained, and deaf to hostile text."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from runtime.config.order import RankFailure
from runtime.records import MetricRecord, append_metric
from tests.fakes.report_material import write
from tools.domain.run_state import RunState
from tools.provenance_report import ReportMaterial
from tools.report.charts import curve_svg
from tools.report.render import duration, escape_markdown, number, size

_VOID = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = "\x1b[2K\x1b[1A<script>alert(1)</script>\u202egnihton\u202c`|**x**[a](http://evil.invalid)\r\n# Verified\x00"


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def _parse(html: str) -> _Balance:
    parser = _Balance()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def test_html_is_balanced_and_fetches_nothing(material: ReportMaterial) -> None:
    html = write(material, "Accuracy was 0.975.").html
    parser = _parse(html)
    assert parser.seen & {"script", "link", "iframe", "object", "img"} == set()
    assert not [a for a in parser.attributes if a[1] in ("src", "href", "onclick", "onload", "style")]
    assert "url(" not in html
    assert "@import" not in html
    assert "prefers-color-scheme:dark" in html
    assert "default-src 'none'" in html


def test_html_has_the_parts_that_a_manager_looks_for(material: ReportMaterial) -> None:
    html = write(material).html
    for part in (
        "headline",
        "not-verified",
        "metrics",
        "curves",
        "approval",
        "deviations",
        "estimate",
        "claims",
        "digests",
    ):
        assert f'id="{part}"' in html, part
    assert "accuracy 0.9750 (95% interval" in html
    assert "majority baseline" in html
    assert "not tamper-proof" in html
    order = [html.index(f'id="{part}"') for part in ("headline", "metrics", "not-verified", "approval", "claims")]
    assert order == sorted(order)


def test_every_svg_is_well_formed(material: ReportMaterial) -> None:
    images = re.findall(r"<svg.*?</svg>", write(material).html, re.DOTALL)
    assert len(images) == 3
    for image in images:
        ElementTree.fromstring(image)


@pytest.mark.parametrize("bare", [False, True], indirect=False)
def test_hostile_text_is_shown_and_never_acts(material: ReportMaterial, bare: bool) -> None:
    append_metric(material.layout.metrics(0), MetricRecord(step=1, name=HOSTILE, value=1.0, rank=0, time_s=1.0))
    assert material.run.result is not None
    assert material.approval is not None
    failure = RankFailure(rank=0, exit_code=1, signal=None, message=HOSTILE, last_lines=(HOSTILE,))
    result = material.run.result.model_copy(update={"failures": (failure,), "reason": HOSTILE})
    run = material.run.model_copy(update={"result": result, "reason": HOSTILE, "state": RunState.FAILED})
    past = run.model_copy(update={"run_id": "run-0000000008"})
    (material.layout.work / "<img src=x>\x1b[0m.txt").write_text("x")
    changed = replace(material, run=run, past_runs=(past,), differences=[HOSTILE], audit_head="" if bare else HOSTILE)
    written = write(changed, f"{HOSTILE} accuracy 0.123")
    _parse(written.html)
    assert "<script" not in written.html
    assert "<img" not in written.html
    assert "&lt;script&gt;" in written.html
    assert "<" not in written.markdown
    assert "http://evil" not in re.sub(r"\\.", "", written.markdown) or "\\[a\\]" in written.markdown
    json_text = (material.layout.report / "report.json").read_text()
    for text in (written.html, written.markdown, json_text):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b-\u200f]", text)
    assert not re.search(r"^# Verified", written.markdown, re.MULTILINE)
    assert "\\x1b" in written.html
    assert written.verify()["ok"]
    assert all("\x1b" not in text for text in (*written.summary.unsupported_claims, *written.ids))


def test_markdown_tables_cannot_be_broken() -> None:
    assert escape_markdown("a|b\nc<d>&e`f`") == "a\\|b\\\\nc&lt;d\\>&amp;e\\`f\\`"


def test_unknown_is_a_word_and_never_zero() -> None:
    assert number(None) == size(None) == duration(None) == escape_markdown(None) == "unknown"
    assert number(0) == "0"
    assert number(1_234_567) == "1,234,567"
    assert size(1536) == "1.5 KiB"
    assert duration(3_725.5) == "1 h 2 min 5.5 s"
    assert duration(0) == "0.0 s"


def test_a_curve_with_nan_is_broken_not_bridged() -> None:
    points = [[1.0, 2.0], [2.0, 1.0], [3.0, None], [4.0, 1.0]]
    svg = str(curve_svg({"name": "loss", "points": points, "by_step": True}))
    assert svg.count("<polyline") == 1
    assert svg.count("<circle") == 1
    ElementTree.fromstring(svg)
    flat = str(curve_svg({"name": "flat", "points": [[1.0, 2.0], [2.0, 2.0]], "by_step": False}))
    ElementTree.fromstring(flat)
    assert "nan" not in flat
    assert "No finite value" in str(curve_svg({"name": "nan", "points": [[1.0, None]], "by_step": True}))
