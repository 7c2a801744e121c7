# ruff: noqa: RUF001
"""The report: its numbers against slow loops, and the page as a browser shows it."""

import logging
import math
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats

from bayesadam.tables.report import charts, headline, numbers, verdict, write_report
from bayesadam.tables.report.palette import PALETTE
from bayesadam.tables.report.predicted import predicted
from bayesadam.tables.report.scores import confusion, scores
from bayesadam.tables.report.write import VERSION
from chromium import contrast, load, screen, start, theme, until

NASTY = "<script>alert(1)</script>"
TAGS = (NASTY, "<img src=x onerror=alert(1)>", "</script><b>", "$$x^2$$", "a&b\"'\u2028", r"\[x\]", "Größe")
CHARTS = {"regression": {"predictions", "coverage"}, "classification": {"reliability"}}
SHARED = {"error-by-uncertainty"}
SHARED |= {f"dependence-{i}" for i in range(3)}


def shared(task, rows):
    names = ["area", "a very long name of a column " * 3]
    curves = [{"label": None, "mean": [150, 260], "bands": [[[110, 200], [190, 320]], [[140, 242], [160, 278]]]}]
    if task == "classification":
        curves = [{"label": c, "mean": [0.2, 0.4], "bands": [[[0.1, 0.3], [0.3, 0.5]]]} for c in (0, 1)]
    kinds = {"number": (["1", "2"], [1.0, 2.0]), "date": (["2024-01-01", "2024-05-01"], [0.0, 121.0])}
    kinds |= {"category": (["Rome", "Oslo"], None)}
    part = {"name": "area", "values": "1 to 2", "rows": 50, "right": 30, "expected": 47.5}
    return {
        "version": VERSION,
        "task": task,
        "unit": "",
        "created": "2026-01-02T03:04:05",
        "data": {
            "file": "houses.csv",
            "place": "line",
            "rows": 5 * rows,
            "train_rows": 4 * rows,
            "held_out_rows": rows,
            "held_out_how": "a fifth at random, seed 0",
            "columns": [{"name": name, "kind": "numeric", "missing": 0.021, "summary": "12 to 310"} for name in names],
            "left_out": {"id": "an identifier"},
            "notes": ["3 rows without a target were left out"],
        },
        "explained": {
            "about": "Computed on the held-out rows.",
            "importance": [{"name": n, "gain": 0.4, "error": 0.1} for n in (*names, "sold")],
            "dependence": [
                {"name": kind, "kind": kind, "at": at, "order": order, "curves": curves}
                for kind, (at, order) in kinds.items()
            ],
            "groups": [part if task == "regression" else part | {"expected": 45.0}],
        },
        "surprises": [{"row": 1234, "values": {"area": "0.5", "year": "2021"}, "y": "7", "predicted": "4 (3 to 5)"}],
        "margins": {},
        "unseen": None,
        "epistemic_error": None,
        "reproduce": {
            "config": {"method": "vadam", "hidden": [50]},
            "versions": {"bayesadam": "1.0"},
            "seconds": {"training": 12.41, "baselines": 0.051},
        },
    }


def houses(rows=120):
    """A regression whose standard deviations are right: errors are normal with the variance that is predicted."""
    rng = np.random.default_rng(0)
    mean = rng.normal(200, 40, rows)
    std = np.exp(rng.normal(1.5, 0.8, rows))
    y = mean + std * rng.normal(size=rows)
    data = shared("regression", rows) | {"target": "price", "classes": []}
    data["held_out"] = regression_rows(y, mean, std)
    data["metrics"] = {
        "bayesadam": {"NLL": 2.9, "RMSE": 6.0, "CRPS": 3.0, "coverage 95%": 0.96, "fit seconds": 12.4},
        "linear model": {"NLL": 3.1, "RMSE": 6.0, "CRPS": None, "coverage 95%": 0.93, "fit seconds": 0.01},
        "gradient boosting": {"NLL": 2.8, "RMSE": 7.0, "CRPS": None, "coverage 95%": 0.9, "fit seconds": 1.2},
    }
    return data


def digits(rows=120, classes=("setosa", "versicolor", "virginica")):
    """A classification whose probabilities are right: labels are drawn from them."""
    rng = np.random.default_rng(1)
    probs = rng.dirichlet([0.3] * len(classes), rows)
    label = np.array([rng.choice(len(classes), p=row) for row in probs])
    entropy = -(probs * np.log(probs + 1e-300)).sum(axis=1)
    data = shared("classification", rows) | {"target": "species", "classes": list(classes)}
    data["held_out"] = {
        "label": label.tolist(),
        "probs": probs.tolist(),
        "entropy": entropy.tolist(),
        "mutual_information": (0.25 * entropy).tolist(),
        "row": list(range(2, rows + 2)),
    }
    data["metrics"] = {"bayesadam": {"NLL": 0.3, "accuracy": 0.9}, "linear model": {"NLL": 0.4, "accuracy": 0.95}}
    return data


def hostile():
    """Names and values that try to be more than text, wherever the user has a say."""
    data = digits(60, TAGS)
    data |= {"target": NASTY, "created": NASTY}
    data["data"] |= {"file": NASTY, "held_out_how": TAGS[2], "notes": list(TAGS), "left_out": {NASTY: TAGS[1]}}
    data["data"]["columns"] = [{"name": tag, "kind": tag, "missing": 0.1, "summary": tag} for tag in TAGS]
    data["metrics"] = {"bayesadam": {NASTY: 1.0, "NLL": 1.0}, TAGS[1]: {NASTY: 2.0, "NLL": 2.0}}
    row = {tag: tag for tag in TAGS}
    data["surprises"] = [{"row": 1, "values": row, "y": NASTY, "predicted": TAGS[1]}]
    for entry, tag in zip(data["explained"]["importance"], TAGS, strict=False):
        entry["name"] = tag
    for entry, tag in zip(data["explained"]["dependence"], TAGS, strict=False):
        entry |= {"name": tag, "at": list(TAGS[:2])}
    data["explained"]["groups"] = [data["explained"]["groups"][0] | {"name": NASTY, "values": TAGS[1]}]
    data["reproduce"] = {"config": row, "versions": row, "seconds": {NASTY: 1.0}}
    return data


CUT_OFF = """
const found = [], {right: wide} = document.body.getBoundingClientRect();
for (const chart of document.querySelectorAll(".canvas svg")) {
  const frame = chart.getBoundingClientRect();
  for (const mark of chart.querySelectorAll("use, text")) {
    const box = mark.getBoundingClientRect();
    const room = [box.left - frame.left, frame.right - box.right, box.top - frame.top, frame.bottom - box.bottom];
    if (Math.min(...room) < -1) found.push([chart.parentElement.id, mark.tagName, mark.textContent, ...room]);
  }
}
return found;
"""
"""Marks and texts that are not inside of their charts, with the pixels between them and the sides."""


class Elements(HTMLParser):
    """Tags with their attributes, and the text in each of them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def words(data, tmp_path):
    """The page's text outside of scripts and style."""
    path = tmp_path / "report.html"
    write_report(path, data)
    text = path.read_text(encoding="utf-8")
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return " ".join(" ".join(Elements(body).text).split())


def sentences(task, held_out, margins=None, **more):
    rows = predicted(held_out, task)
    return " ".join(re.sub("<[^>]+>", "", part) for part in headline.headline(rows, rows, margins or {}, **more))


def regression_rows(y, mean, std):
    """Columns of a regression with Gaussian predictions."""
    y, mean, std = (np.asarray(values, dtype=float) for values in (y, mean, std))
    columns = {"y": y, "mean": mean, "std": std, "epistemic_std": 0.5 * std, "pit": stats.norm.cdf(y, mean, std)}
    columns |= {"lower": mean - 1.96 * std, "upper": mean + 1.96 * std, "row": np.arange(len(y)) + 2.0}
    return {name: values.tolist() for name, values in columns.items()}


def channels(name, version):
    """Of a colour of the palette, 0 to 255."""
    return [int(PALETTE[name][version][i : i + 2], 16) for i in (1, 3, 5)]


def rgb(name, version):
    return f"rgb({', '.join(map(str, channels(name, version)))})"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    makers = {"regression": houses, "hostile": hostile}
    for name, make in makers.items():
        write_report(folder / f"{name}.html", make())
    return {name: folder / f"{name}.html" for name in makers}


@pytest.fixture(scope="module")
def browser():
    browser = start()
    yield browser
    browser.quit()


@pytest.fixture(scope="module", params=["regression", "hostile"])
def page(request, browser, pages):
    """Name of the page that is loaded, what the console said meanwhile, and what was asked for; once for all tests."""
    screen(browser)
    return request.param, *load(browser, pages[request.param])


class TestPage:
    """In Chromium."""

    def test_charts_are_drawn_without_a_complaint_or_a_request(self, browser, pages, page):
        name, console, requests = page
        assert [entry for entry in console if entry["level"] != "INFO"] == []
        assert pages[name].as_uri() in requests
        assert [url for url in requests if not url.startswith(("file:", "about:", "data:", "blob:"))] == []
        assert [url for url in requests if url.startswith("file:") and url != pages[name].as_uri()] == []
        places = browser.find_elements("css selector", ".canvas")
        task = "regression" if name == "regression" else "classification"
        expected = CHARTS[task] | SHARED
        assert {place.get_attribute("id") for place in places} == {f"chart-{chart}" for chart in expected}
        for place in places:
            box, marks = browser.execute_script(
                "const one = arguments[0].querySelector('svg').getBoundingClientRect();"
                "return [[one.width, one.height], arguments[0].querySelectorAll('use > title').length]",
                place,
            )
            assert min(box) > 250
            assert marks >= 2, place.get_attribute("id")

    @pytest.mark.parametrize("page", ["hostile"], indirect=True)
    def test_hostile_names_are_text(self, browser, page):
        assert browser.find_element("tag name", "h1").text == NASTY
        assert browser.find_elements("css selector", "body img, main script, main b") == []
        listed = browser.execute_script(
            "return [...document.querySelectorAll('table.text tbody th')].map((cell) => cell.textContent)"
        )
        assert listed[: len(TAGS)] == list(TAGS)

    @pytest.mark.parametrize("width", [360, 400])
    def test_a_phone_never_scrolls_sideways(self, browser, page, width):
        screen(browser, width=width)
        browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
        assert browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [width, width]
        boxes = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth)"
        assert browser.execute_script(f"return {boxes}.length") > 0

    @pytest.mark.parametrize("width", [400, 1280])
    def test_nothing_is_cut_off(self, browser, page, width):
        screen(browser, width=width)
        assert browser.execute_script(CUT_OFF) == []

    def test_charts_follow_the_theme_while_the_page_is_open(self, browser, page):
        place = browser.find_element("css selector", "#chart-error-by-uncertainty use")
        for version in (0, 1, 0):
            theme(browser, dark=version == 1)
            until(browser, "return getComputedStyle(arguments[0]).fill === arguments[1]", place, rgb("blue", version))

    @pytest.mark.parametrize("dark", [False, True])
    def test_text_stands_out(self, browser, page, dark):
        screen(browser, dark=dark)
        browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
        pairs = browser.execute_script(
            """
            const seen = new Set();
            const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            while (texts.nextNode()) {
              const parent = texts.currentNode.parentElement;
              if (!texts.currentNode.textContent.trim() || parent.closest("style, use")) continue;
              let below = parent;
              while (/, 0\\)$/.test(getComputedStyle(below).backgroundColor)) below = below.parentElement;
              const {fill, color} = getComputedStyle(parent), paper = getComputedStyle(below).backgroundColor;
              seen.add((parent.closest("svg") ? fill : color) + "|" + paper);
            }
            return [...seen];
            """
        )
        assert len(pairs) >= 4
        for pair in pairs:
            text, paper = ([int(part) for part in re.findall(r"\d+", colour)[:3]] for colour in pair.split("|"))
            assert contrast(text, paper) >= 4.5, pair

    def test_everything_has_a_name(self, browser, page):
        problems = browser.execute_script(
            """
            const all = (selector) => [...document.querySelectorAll(selector)];
            const problems = [];
            const ids = all("[id]").map((one) => one.id);
            for (const id of ids) if (ids.filter((other) => other === id).length > 1) problems.push("twice: " + id);
            const named = (one) => (one.getAttribute("aria-label") ??
              document.getElementById(one.getAttribute("aria-labelledby"))?.textContent ?? one.textContent).trim();
            for (const one of all("figure, [role], section, nav, button, a, summary, details .scroll")) {
              const own = one.hasAttribute("aria-label") || one.hasAttribute("aria-labelledby");
              if (named(one) && (own || one.matches("button, a, summary"))) continue;
              problems.push("no name: " + one.outerHTML.slice(0, 99));
            }
            for (const one of all("nav a, .skip")) {
              if (!document.querySelector(one.getAttribute("href"))) problems.push("nowhere: " + one);
            }
            for (const one of all("th")) if (!one.scope) problems.push("no scope: " + one.textContent);
            for (const one of all("table")) {
              if (!one.tHead || !one.tBodies[0].rows.length) problems.push("no rows: " + one.outerHTML.slice(0, 99));
            }
            const levels = all("h1, h2, h3, h4, h5, h6").map((one) => Number(one.tagName[1]));
            if (levels.filter((level) => level === 1).length !== 1 || levels[0] !== 1) problems.push("h1");
            levels.forEach((level, i) => {
              if (i && level > levels[i - 1] + 1) problems.push("skipped to h" + level);
            });
            for (const mark of ["header", "nav", "main", "footer"]) if (all(mark).length !== 1) problems.push(mark);
            if (!document.documentElement.lang || !document.title) problems.push("lang or title");
            for (const one of all(".chart .reading")) if (!one.textContent.endsWith(".")) problems.push("reading");
            return problems;
            """
        )
        assert problems == []
        assert len(browser.find_elements("css selector", "figure [role=img]")) >= 5


class TestText:
    def test_nothing_of_the_users_becomes_markup(self, pages):
        text = pages["hostile"].read_text(encoding="utf-8")
        elements = Elements(text)
        tags = [tag for tag, _ in elements.tags]
        assert {"script", "img", "b"}.isdisjoint(tags)
        assert not [attrs for _, attrs in elements.tags if any(name.startswith("on") for name in attrs)]
        assert {name for _, attrs in elements.tags for name, a in attrs.items() if "://" in str(a)} == {
            "xmlns",
            "xmlns:xlink",
        }
        assert "Größe" in text

    def test_size_and_a_log_without_complaints(self, tmp_path, caplog):
        with caplog.at_level(logging.WARNING):
            write_report(tmp_path / "r.html", houses(1000))
        assert caplog.records == []
        assert (tmp_path / "r.html").stat().st_size < 1e6

    def test_the_words_and_tables_of_a_page(self, tmp_path):
        text = words(houses(30), tmp_path)
        for part in (
            "Regression of price · houses.csv · 2026-01-02 03:04",
            "area numeric 2.1% 12 to 310",
            "id an identifier",
            "held out 30, a fifth at random, seed 0",
            "line price predicted area year 1234 7 4 (3 to 5) 0.5 2021",
            "training 12.4 baselines 0.1",
            '{ "method": "vadam", "hidden": [ 50 ] }',
            "Most surprising rows",
            "area 1 to 2 50 60% 95%",
            "error added (price) area 0.400 ± 0.200",
        ):
            assert part in text, part

    @pytest.mark.parametrize("make", [houses, digits])
    def test_no_number_for_machines(self, make, tmp_path):
        data = make(300)
        for name in ("y", "mean", "lower", "upper", "std", "epistemic_std"):
            if name in data["held_out"]:
                data["held_out"][name] = (1e5 / 3 * np.array(data["held_out"][name])).tolist()
        data["metrics"]["bayesadam"]["NLL"] = 77036.123456
        text = words(data, tmp_path)
        assert re.search(r"\d\.\d+e[+-]?\d", text) is None
        assert re.search(r"\d{8}|\.\d{7}", text) is None
        assert "77,040" in text

    @pytest.mark.parametrize("make", [houses, digits])
    def test_few_rows(self, make, tmp_path):
        for rows in (1, 2):
            text = words(make(rows) | {"explained": {}, "surprises": []}, tmp_path)
            assert "On 1 held-out row," in text if rows == 1 else "On 2 held-out rows" in text
            assert "knows when it is wrong:" not in text
            assert "What it depends on" not in text
            assert "Most surprising rows" not in text

    @pytest.mark.parametrize("make", [houses, digits])
    def test_gaps_and_degenerate_numbers(self, make, tmp_path):
        data = make(30)
        for name, column in data["held_out"].items():
            column[3] = [None] * 3 if name == "probs" else None
        data["metrics"]["bayesadam"] = dict.fromkeys(data["metrics"]["bayesadam"])
        text = words(data, tmp_path)
        assert "On 29 held-out rows" in text
        assert "nan" not in text.lower()

    def test_a_predictive_without_a_standard_deviation(self, tmp_path):
        """Student's t with few degrees of freedom has intervals only."""
        data = houses(40)
        data["held_out"] |= {name: [None] * 40 for name in ("std", "epistemic_std")}
        for entry in data["explained"]["dependence"]:
            entry["curves"][0] |= {"bands": [[[None, None]] * 2] * 2}
        text = words(data, tmp_path)
        assert "On 40 held-out rows, the typical error of bayesadam" in text
        assert "Interval coverage" in text
        assert "Error against predicted uncertainty" not in text

    def test_a_missing_package_is_named(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        message = r'^the report needs matplotlib: pip install "bayesadam\[report\]"$'
        with pytest.raises(ImportError, match=message):
            write_report(tmp_path / "r.html", houses(3))
        assert list(tmp_path.iterdir()) == []

    def test_data_of_another_version(self, tmp_path):
        with pytest.raises(ValueError, match="^version must be 3, got 1$"):
            write_report(tmp_path / "r.html", {"version": 1, "task": "regression"})
        assert list(tmp_path.iterdir()) == []


class TestHeadline:
    def test_regression_by_hand(self):
        error = np.array([1.0, -1.0] * 10 + [7.0, -7.0] * 10)
        held_out = regression_rows(np.zeros(40), error, [1.0] * 20 + [4.0] * 20)
        held_out["pit"] = ((np.arange(40) + 0.5) / 40).tolist()
        margins = {"linear model": [1.0, 0.6], "gradient boosting": [-0.5, 0.1], "forest": None}
        width = 2 * 1.96 * (1.0 + 4.0) / 2
        recipes = {"gradient boosting": "make_pipeline(TableEncoder(drop=['a']), HistGradientBoostingRegressor())"}
        assert sentences("regression", held_out, margins, recipes=recipes) == (
            "The gradient boosting is better here: use it. The difference is beyond chance (negative log-likelihood "
            "of the held-out rows). It is make_pipeline(TableEncoder(drop=[&#39;a&#39;]), "
            "HistGradientBoostingRegressor()), with from bayesadam.sklearn import TableEncoder and the rest from "
            "scikit-learn. "
            "On 40 held-out rows, the typical error of bayesadam (root mean square) is 5.00, and its 95% intervals are "
            f"typically {width:.2f} wide (0 if they ignored the inputs). Of 40 rows that its networks had not seen, "
            "the intervals cover 100%, as they should. "
            "It knows when it is wrong: the error is 1.00 on the half it is surest of, 7.00 on the other half."
        )

    @pytest.mark.parametrize(
        ("margins", "advice"),
        [
            (
                {"linear model": [0.1, 0.06], "gradient boosting": [0.5, 0.1]},
                "The linear model is as good here: use it, as it is simpler. The difference between it and bayesadam",
            ),
            ({"linear model": [0.2, 0.05], "gradient boosting": [0.1, 0.1]}, "The gradient boosting is as good here"),
            (
                {"linear model": [0.2, 0.05], "gradient boosting": [0.5, 0.1]},
                "Use this model: it is better than the linear model and the gradient boosting, beyond chance",
            ),
        ],
    )
    def test_advice(self, margins, advice):
        assert sentences("regression", regression_rows([0.0, 1.0], [0.0, 1.0], [1.0, 1.0]), margins).startswith(advice)

    @pytest.mark.parametrize(
        ("gains", "advice"),
        [
            (
                (-0.1, 0.0, 0.2),
                "Whether any model is better than a constant cannot be told from these rows (negative log-",
            ),
            ((-0.1, None, 0.2), "Whether any model is better than a constant cannot be told"),
            ((-0.1, 0.0, -0.2), "No model is better than a constant here (negative log-likelihood of"),
            ((0.5, 0.5, 0.2), "The linear model is as good here"),
            ((0.5, 0.2, 0.5), "The gradient boosting is as good here"),
            ((0.5, 0.2, 0.2), "Use this model: no other one is better than a constant, beyond chance (negative"),
            ((None, None, None), "The linear model is as good here"),
        ],
    )
    def test_a_model_that_is_no_better_than_a_constant_is_not_advised(self, gains, advice):
        rows = predicted(regression_rows([0.0, 1.0], [0.0, 1.0], [1.0, 1.0]), "regression")
        models = ("bayesadam", "linear model", "gradient boosting")
        over = {model: None if gain is None else [gain, 0.1] for model, gain in zip(models, gains, strict=True)}
        margins = {model: [0.01, 0.1] for model in models[1:]}
        text = re.sub("<[^>]+>", "", " ".join(headline.headline(rows, rows, margins, gains=over)))
        assert text.startswith(advice)
        assert ("add inputs that tell more" in text) == (advice.startswith(("Whether any", "No model")))
        assert "constant" not in text.replace("better than a constant", "")
        assert ("its difference from the linear model and the gradient boosting may be" in text) == (
            "Use this" in advice
        )
        worse = {"linear model": [-0.5, 0.1], "gradient boosting": [0.3, 0.1]}  # better than ours, but not than nothing
        over = {"bayesadam": [0.5, 0.1], "linear model": [0.1, 0.1], "gradient boosting": [0.5, 0.1]}
        assert "better than the gradient boosting, beyond" in headline.headline(rows, rows, worse, gains=over)[0]

    def test_cautions_come_first(self):
        text = sentences("regression", regression_rows([0.0, 1.0], [0.0, 1.0], [1.0, 1.0]), cautions=["-999 is <far>"])
        assert text.startswith("Look at the target first: -999 is &lt;far&gt;. On 2 held-out rows")

    @pytest.mark.parametrize("kept", [False, True])
    def test_the_last_rows_are_unlike_those_before(self, kept):
        rows = predicted(regression_rows([0.0, 1.0], [0.0, 1.0], [1.0, 1.0]), "regression")
        over = {"gains": {"bayesadam": [-0.2, 0.1]}, "time": "<day>", "kept": kept}
        text = headline.headline(rows, rows, {}, **over)[0]
        assert "are the last ones by &lt;day&gt;, and may differ from those before" in text
        assert ("such as &lt;day&gt; itself" in text) != kept

    def test_recall_and_precision_of_a_rare_class_by_hand(self):
        """Ten of 100 rows leave; the network says so of two, one rightly; six more are above 0.3, among ten alarms."""
        probability = np.array([0.6, 0.6] + [0.35] * 8 + [0.1] * 90)
        leaves = np.array([1, 0] + [1] * 6 + [0] * 2 + [1] * 3 + [0] * 87)
        columns = {"label": leaves.tolist(), "probs": np.stack([1 - probability, probability], 1).tolist()}
        columns |= dict.fromkeys(("entropy", "mutual_information", "row"), [0.0] * 100)
        rows = predicted(columns, "classification")
        text = " ".join(
            re.sub("<[^>]+>", "", s) for s in headline.headline(rows, rows, {}, classes=["stays", "leaves"])
        )
        assert (
            "Of 100 rows that its networks had not seen, 10.0% are leaves (AUROC 0.83). If the most probable class is "
            "predicted, 10% of them are found (recall), and 50% of the rows predicted as this class are right "
            "(precision). If this class is predicted from a probability of 35% on, the recall is 70% and the precision "
            "70%; this threshold was chosen on these rows, so expect less of both for new rows."
        ) in text

    def test_units(self):
        rows = predicted(regression_rows(np.zeros(40), np.ones(40), np.ones(40)), "regression")
        text = str(headline.headline(rows, rows, {}, unit="€")[0])
        assert "<strong>1.00\N{NO-BREAK SPACE}€</strong>" in text
        assert text.count("€") == 3

    def test_the_verdict_is_about_all_rows_and_the_error_about_those_held_out(self):
        rng = np.random.default_rng(0)
        held_out = predicted(regression_rows(np.full(30, 2.0), np.zeros(30), np.full(30, 2.0)), "regression")
        unseen = predicted(regression_rows(rng.normal(size=400), np.zeros(400), np.full(400, 0.5)), "regression")
        text = " ".join(headline.headline(held_out, unseen, {}))
        assert "On 30 held-out rows, the typical error of bayesadam (root mean square) is <strong>2.00</strong>" in text
        fitted = (
            "Of 400 rows that its networks had not seen (most of them also determine the scale of its uncertainty), "
        )
        assert fitted in text
        assert "determine" not in " ".join(headline.headline(unseen, unseen, {}))
        assert re.search(
            r"Of 400 rows .* cover <strong>6\d%</strong>, less than they promise: they are too narrow", text
        )

    @pytest.mark.parametrize(
        ("sure", "verdict"), [(0.99, "too sure"), (0.8, "which says little"), (0.55, "more careful")]
    )
    def test_classification_by_hand(self, sure, verdict):
        held_out = {"label": [0] * 80 + [1] * 20, "probs": [[sure, 1.0 - sure]] * 100}
        held_out |= dict.fromkeys(("entropy", "mutual_information", "row"), [0.0] * 100)
        assert sentences("classification", held_out).startswith(
            "On 100 held-out rows, bayesadam is right in 80.0% (80.0% if it always named the most frequent class). On "
            f"100 rows that its networks had not seen, it is {100 * sure:.1f}% sure on average, and right in 80.0%, "
            f"{verdict}"
        )


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_effects_of_dates_are_single_marks(task):
    """A date has a season and a day of the week besides, so that a line would not be a trend."""
    for entry in shared(task, 10)["explained"]["dependence"]:
        chart = charts.effect(entry, "x", task, "price", ("a", "b"))
        lines = [line for line in chart.axes.lines if line.get_linestyle() != "None"]
        assert len(lines) == (len(entry["curves"]) if entry["kind"] == "number" else 0)
        assert ("Each mark is one date" in chart.reading) == (entry["kind"] == "date")


@pytest.mark.parametrize("make", [houses, digits])
def test_weights_are_numbers_of_copies(make):
    """All numbers are those of a table in which every row occurs as often as its weight says."""
    data, weight = make()["held_out"], np.random.default_rng(0).integers(1, 5, 120)
    task = "regression" if make is houses else "classification"
    rows = np.repeat(np.arange(120), weight)
    copies = predicted({name: np.array(values)[rows] for name, values in data.items()}, task)
    once = predicted({**data, "weight": weight}, task)
    assert predicted(data, task).weight is None
    numbers_of = [
        re.findall(r"<strong>(.*?)</strong>", str(headline.headline(part, part, {})[0])) for part in (once, copies)
    ]
    assert numbers_of[0][0] == numbers_of[1][0]
    assert verdict.epistemic(once, 0.1) == verdict.epistemic(copies, 0.1)
    if make is digits:
        shares = [
            [[share for _, share in cells] for _, cells in confusion(part, list("abc"))["rows"]]
            for part in (once, copies)
        ]
        np.testing.assert_allclose(shares[0], shares[1], rtol=1e-12)
    chart = charts.coverage if make is houses else charts.reliability
    both = [chart(part).numbers["reached" if make is houses else "right"] for part in (once, copies)]
    assert both[0] == both[1]
    one, other = (
        verdict._largest_gap(np.abs(values), share)
        for values, share in (
            (once.errors[1] / once.errors[1].max(), weight),
            (copies.errors[1] / copies.errors[1].max(), np.ones(len(rows))),
        )
    )
    assert one == pytest.approx(other, rel=1e-12)


def test_a_verdict_is_about_the_rows_that_count():
    """The heavy rows have errors four times as large as predicted, the others half as large."""
    rng = np.random.default_rng(0)
    error, heavy = rng.normal(size=400), np.arange(400) % 4 == 0
    data = regression_rows(np.where(heavy, 4.0, 0.5) * error, np.zeros(400), np.ones(400))
    assert "too narrow" in verdict.verdict(predicted({**data, "weight": np.where(heavy, 1.0, 1e-3)}, "regression"))
    assert "too wide" in verdict.verdict(predicted({**data, "weight": np.where(heavy, 1e-3, 1.0)}, "regression"))
    part = {"name": "a", "values": "b", "rows": 400, "right": 20.0, "expected": 28.5}
    assert verdict.failures([part | {"effective": 30.0}], "regression")["rows"] == [("a", "b", "400", "67%", "95%")]
    assert verdict.failures([part | {"effective": 30.0, "right": 28.0}], "regression")["rows"] == []


class TestNumbers:
    @pytest.mark.parametrize(
        ("function", "texts"),
        [
            (numbers.number, {None: "–", math.nan: "–", math.inf: "–", 0: "0", 77036.12: "77,000", 0.012345: "0.0123"}),
            (numbers.number, {-1.5: "−1.50", 99.96: "100.0", 1.234e9: "1,230,000,000", 1.2e-12: "1.20e−12"}),
            # Percentages do not round to all or nothing.
            (lambda share: numbers.percent(share, 1), {0.9996: "99.9%", 1.0: "100.0%", 1e-5: "<0.1%", 0.0: "0.0%"}),
        ],
    )
    def test_formats(self, function, texts):
        assert [function(value) for value in texts] == list(texts.values())

    def test_columns_have_the_same_decimals(self):
        assert numbers.column([1.7e9, 1.7e9 + 1000.0]) == ["1,700,000,000", "1,700,001,000"]
        assert numbers.column([0.1, 3.0, math.nan]) == ["0.100", "3.000", "–"]
        assert numbers.column([77036.1, 1_234_567.0]) == ["77,000", "1,235,000"]
        assert numbers.column([5.0, 5.0]) == ["5.000", "5.000"]
        assert numbers.column([0.0, 0.0]) == ["0", "0"]
        assert numbers.same_decimals([77036.123, 111801.0]) == ["77,000", "111,800"]

    def test_scores(self):
        columns = {name: cells for name, _, cells in scores(houses()["metrics"])}
        assert next(iter(columns)) == "RMSE"
        best = {name: [m for m, (_, mark) in cells.items() if mark] for name, cells in columns.items()}
        assert best == {
            "NLL": ["gradient boosting"],
            "RMSE": ["bayesadam", "linear model"],
            "CRPS": [],
            "coverage 95%": ["bayesadam"],
            "fit seconds": [],
        }
        assert [text for text, _ in columns["CRPS"].values()] == ["3.000", "–", "–"]
        assert [text for text, _ in columns["fit seconds"].values()] == ["12.40", "0.01", "1.20"]
        (_, hint, cells) = scores({"a": {"accuracy": 0.9}, "b": {"accuracy": 0.95}})[0]
        assert hint == "higher is better"
        assert cells == {"a": ("90.0%", False), "b": ("95.0%", True)}

    def test_coverage_counts_rows_in_central_intervals(self):
        rows = predicted(houses()["held_out"], "regression")
        for level, reached, _ in charts.coverage(rows).rows:
            share = float(level.rstrip("%")) / 100
            half = stats.norm.ppf(0.5 + share / 2) * rows.std
            inside = sum(a <= t <= b for a, t, b in zip(rows.mean - half, rows.y, rows.mean + half, strict=True))
            assert float(reached.rstrip("%")) == pytest.approx(100 * inside / len(rows), abs=0.051), level

    def test_error_by_uncertainty(self):
        held_out = houses()["held_out"]
        rows = sorted(zip(held_out["std"], held_out["y"], held_out["mean"], strict=True))
        chart = charts.error_by_uncertainty(predicted(held_out, "regression"), "price")
        assert len(chart.rows) == 10
        for i, (shown, actual, *_) in enumerate(chart.rows):
            part = rows[12 * i : 12 * (i + 1)]
            assert shown == numbers.number(math.sqrt(sum(s * s for s, _, _ in part) / 12))
            assert actual == numbers.number(math.sqrt(sum((y - m) ** 2 for _, y, m in part) / 12))

    def test_epistemic_share(self):
        text = verdict.epistemic(predicted(digits()["held_out"], "classification"), None)
        assert text.startswith(
            "Of the uncertainty of the predictions (entropy), 25% is there because few rows are like"
        )
        rows = predicted(houses()["held_out"], "regression")
        for error, bounds in (
            (None, "25% is"),
            (0.1, "25% (20% to 31% is possible) is"),
            (0.5, "9% to 68%"),
        ):
            assert bounds in verdict.epistemic(rows, error)

    def test_confusion_and_reliability(self):
        data = digits(300)
        held_out, names = data["held_out"], data["classes"]
        rows = predicted(held_out, "classification")
        counts = {}
        for label, row in zip(held_out["label"], held_out["probs"], strict=True):
            key = (names[label], names[row.index(max(row))])
            counts[key] = counts.get(key, 0) + 1
        table = confusion(rows, names)
        cells = {(a, p): cell for a, row in table["rows"] for p, cell in zip(table["names"], row, strict=True)}
        assert {key: int(text) for key, (text, _) in cells.items() if text} == counts
        assert [sum(share for _, share in row) for _, row in table["rows"]] == pytest.approx([1.0] * 3)
        chart = charts.reliability(rows)
        bins = {}
        for label, row in zip(held_out["label"], held_out["probs"], strict=True):
            bins.setdefault(math.ceil(10 * max(row)), []).append((max(row), row.index(max(row)) == label))
        assert [int(row[2]) for row in chart.rows] == [len(bins[b]) for b in sorted(bins)]
        for (confidence, right, *_), number in zip(chart.rows, sorted(bins), strict=True):
            part = bins[number]
            assert confidence == numbers.percent(sum(c for c, _ in part) / len(part), 1)
            assert right == numbers.percent(sum(r for _, r in part) / len(part), 1)
