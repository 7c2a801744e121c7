"""A headless Chromium, and questions to a page that are asked in more than one test."""

import json
import shutil
import time

import pytest


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


def load(browser, path):
    """Load a page; gives the console's entries and the addresses asked for."""
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(path.as_uri())
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return browser.get_log("browser"), requests


def until(browser, script, *arguments, seconds=20.0):
    """Wait for a script to return something true."""
    end = time.monotonic() + seconds
    while not browser.execute_script(script, *arguments):
        assert time.monotonic() < end, script
        time.sleep(0.02)


def contrast(one, other):
    """Ratio of two colours ``(r, g, b)`` of 0 to 255, by the Web Content Accessibility Guidelines."""

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)
