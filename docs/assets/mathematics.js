// Equations of the pages, from TeX to MathML; without this script they are shown as TeX.
for (const element of document.querySelectorAll(".arithmatex")) {
  const source = element.textContent.trim();
  temml.render(source.slice(2, -2), element, { displayMode: source.startsWith("\\[") });
}
