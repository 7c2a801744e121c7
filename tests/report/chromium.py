"""A headless Chromium, and questions to a page that are asked in more than one test."""

import json
import shutil
import time

import pytest

WALK = """
const found = [];
(function walk(node) {
  if (node.tagName === "CANVAS") found.push(node);
  for (const child of [...(node.shadowRoot?.children ?? []), ...node.children]) walk(child);
})(arguments[0]);
"""


def start():
    """A browser that logs its console and every request; skips the test where there is none."""
    binary, driver = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("chromium and chromedriver must be on the path")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


def theme(browser, dark):
    """Whether the reader prefers dark pages."""
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def screen(browser, width=1280, dark=False):
    """A screen of this width, in the light or the dark."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    theme(browser, dark)


def view(browser, width=1280, dark=False):
    """The page that is loaded, on another screen."""
    screen(browser, width, dark)
    settle(browser)


def load(browser, path):
    """Load a page and wait for its charts; gives the console's entries and the addresses asked for."""
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(path.as_uri())
    until(browser, "return document.documentElement.dataset.ready !== undefined")
    settle(browser)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return browser.get_log("browser"), requests


def settle(browser):
    """Wait until every chart is drawn and two more frames have passed."""
    until(browser, "return Bokeh.documents.every((one) => one.is_idle)")
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def until(browser, script, *arguments, seconds=20.0):
    """Wait for a script to return something true."""
    end = time.monotonic() + seconds
    while not browser.execute_script(script, *arguments):
        assert time.monotonic() < end, script
        time.sleep(0.02)


def colours(browser, place):
    """Colours of the first canvas in an element, and on how many pixels each is: ``"#0072b2"`` where it is opaque."""
    return browser.execute_script(
        WALK
        + """
        const {width, height} = found[0];
        const {data} = found[0].getContext("2d").getImageData(0, 0, width, height);
        const counts = {};
        for (let i = 0; i < data.length; i += 4) {
          if (data[i + 3] === 0) continue;
          const parts = [...data.slice(i, i + (data[i + 3] === 255 ? 3 : 4))];
          const name = "#" + parts.map((part) => part.toString(16).padStart(2, "0")).join("");
          counts[name] = (counts[name] ?? 0) + 1;
        }
        return counts;
        """,
        place,
    )


def contrast(one, other):
    """Ratio of two colours ``(r, g, b)`` of 0 to 255, by the Web Content Accessibility Guidelines."""

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)
