"""The report in a real browser: what a reader sees, not what was written."""

import json
import re
import shutil
import subprocess

import pytest
from compare_made import recorded_figures

from dream.tools.compare import page
from dream.tools.compare.page.pictures import PICTURES

pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
pytest.importorskip("jinja2", reason="the page needs jinja2")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium"),
]
OWN = "not an origin"
"""The initiator of the browser's own requests in its net log."""
LOOK = """
<script>
(function () {
  const seen = {errors: [], sorted: {}};
  window.addEventListener("error", (event) => seen.errors.push(event.message));
  document.addEventListener("securitypolicyviolation", (e) => seen.errors.push(e.blockedURI));
  window.addEventListener("load", () => {
    const table = document.getElementById("rows");
    const headers = Array.from(table.tHead.rows[0].cells);
    const body = table.tBodies[0];
    const column = (index) => Array.from(body.rows, (row) => row.cells[index].innerText);
    headers.forEach((header, index) => {
      const button = header.querySelector("button");
      button.click();
      const up = column(index), first = header.getAttribute("aria-sort");
      button.click();
      seen.sorted[button.innerText] =
        {up: up, down: column(index), first: first, then: header.getAttribute("aria-sort")};
    });
    seen.pictures = Array.from(document.querySelectorAll("figure"), (figure) => {
      const box = figure.querySelector("svg").getBoundingClientRect();
      return {name: figure.id, width: box.width, height: box.height};
    });
    seen.background = getComputedStyle(document.body).backgroundColor;
    seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    seen.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
    const told = document.createElement("pre");
    told.id = "seen";
    told.textContent = JSON.stringify(seen);
    document.body.append(told);
  });
})();
</script>
"""


def look(page_file, tmp_path, *options):
    """What a page says of itself when it is loaded; what the browser logged; what the page asked
    the network for."""
    page_text = page_file.read_text()
    copy = tmp_path / "looked.html"
    copy.write_text(page_text.replace("</body>", LOOK + "</body>"))
    net = tmp_path / "net.json"
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--disable-background-networking", "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={net}",
            *options, "--dump-dom", copy.as_uri(),
        ],
        capture_output=True, text=True, timeout=400, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return json.loads(text), done.stderr, asked(json.loads(net.read_text()))


def asked(net):
    """The addresses that a page had fetched; what the browser wants for itself has no origin."""
    told = [event.get("params", {}) for event in net["events"]]
    return {
        each["url"]
        for each in told
        if each.get("url", "").startswith("http") and each.get("initiator", OWN) != OWN
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("report")
    page.write(made, recorded_figures())
    return made


@pytest.fixture(scope="module")
def seen(folder, tmp_path_factory):
    return look(folder / "report.html", tmp_path_factory.mktemp("look"), "--window-size=1280,1000")


def test_every_picture_is_seen(seen):
    assert [each["name"] for each in seen[0]["pictures"]] == [each.name for each in PICTURES]
    for each in seen[0]["pictures"]:
        assert each["width"] > 300, each
        assert each["height"] > 80, each


def test_every_column_sorts_both_ways(seen):
    assert len(seen[0]["sorted"]) == 16
    for name, each in seen[0]["sorted"].items():
        assert (each["first"], each["then"]) == ("ascending", "descending"), name
    replicas = [int(text) for text in seen[0]["sorted"]["replicas"]["up"]]
    assert replicas == sorted(replicas) != replicas[::-1]
    assert [int(text) for text in seen[0]["sorted"]["replicas"]["down"]] == replicas[::-1]
    told = seen[0]["sorted"]["samples/s"]["down"]
    speeds = [int(text.split()[0].replace(",", "")) for text in told if text]
    assert len(speeds) > 3
    assert speeds == sorted(speeds, reverse=True)
    assert seen[0]["sorted"]["samples/s"]["up"][-1] == "", "what was not read sorts last"
    assert seen[0]["sorted"]["samples/s"]["down"][-1] == ""


def test_nothing_is_complained_about_and_nothing_asked_for(seen):
    told, log, net = seen
    assert told["errors"] == []
    assert told["requests"] == []
    assert "CONSOLE" not in log
    assert net == set()


def test_a_page_that_asks_for_something_and_complains_would_be_seen(folder, tmp_path):
    text = (folder / "report.html").read_text()
    text = re.sub("<meta http-equiv[^>]*>", "", text)
    bad = tmp_path / "bad.html"
    bad.write_text(
        text.replace("<h1>", "<img src='http://127.0.0.1:9/x.png'><script>oops()</script><h1>")
    )
    told, log, net = look(bad, tmp_path)
    assert net == {"http://127.0.0.1:9/x.png"}
    assert told["requests"] == ["http://127.0.0.1:9/x.png"]
    assert "CONSOLE" in log


def test_light_and_dark(seen, folder, tmp_path):
    dark, log, _ = look(folder / "report.html", tmp_path, "--blink-settings=preferredColorScheme=0")
    assert seen[0]["background"] == "rgb(255, 255, 255)"
    assert dark["background"] == "rgb(20, 23, 28)"
    assert "CONSOLE" not in log


def test_it_fits_a_narrow_window(folder, tmp_path):
    narrow, _, _ = look(folder / "report.html", tmp_path, "--window-size=500,900")
    assert narrow["wide"] <= 0
