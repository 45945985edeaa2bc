"""The page in a real browser, where there is one."""

import html
import json
import re
import shutil
import subprocess

import pytest

from cls_jax.report.page import render_page
from tests.report.pages import create_run
from tests.report.test_page import HOSTILE, ROWS

BROWSERS = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
BROWSER = next(filter(None, BROWSERS), "")
# The page in a frame of a phone's width. What it measures of itself becomes the outer page's text.
PROBE = """<!DOCTYPE html><meta charset="utf-8"><title>probe</title>
<iframe width="{width}" height="844" style="border:0" srcdoc="{page}"></iframe><pre></pre>
<script>
onload = () => {{
  const view = document.querySelector("iframe").contentWindow, page = view.document;
  const images = [...page.images], chart = page.querySelector("svg[data-traces]");
  const box = chart.getBoundingClientRect();
  chart.dispatchEvent(new view.PointerEvent("pointermove", {{ clientX: box.left + box.width }}));
  document.querySelector("pre").textContent = JSON.stringify({{
    width: page.documentElement.clientWidth,
    needed: page.documentElement.scrollWidth,
    images: images.length,
    broken: images.filter((image) => image.naturalWidth === 0).map((image) => image.alt),
    readout: page.querySelector(".readout").textContent,
  }});
}};
</script>"""


def open_page(text, width, tmp_path):
    """What the page measures of itself, and the lines of the browser's console."""
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(width=width, page=html.escape(text)))
    # A phone lays its scroll bars over the page. The browser itself is to ask nobody for anything.
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    options += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    options += ["--enable-logging=stderr", f"--user-data-dir={tmp_path}/profile"]
    outcome = subprocess.run(
        [BROWSER, *options, "--dump-dom", probe.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    (found,) = re.findall(r"<pre>(.*?)</pre>", outcome.stdout, flags=re.DOTALL)
    console = [line for line in outcome.stderr.splitlines() if ":CONSOLE" in line]
    return json.loads(html.unescape(found)), console


@pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("width", "options"),
    [
        (1200, {"num_classes": 40, "side": 120}),
        (390, {"class_names": (*HOSTILE[:3], "long " * 40, "w" * 300)}),
    ],
)
def test_it_opens_whole_and_without_an_error(width, options, tmp_path):
    measured, console = open_page(render_page(create_run(rows=ROWS, **options)), width, tmp_path)
    assert console == []
    assert measured["images"] > 20
    assert measured["broken"] == []
    assert measured["needed"] <= measured["width"] == width
    assert measured["readout"].startswith("step 9: network 1 (EMA) 50.0%")
