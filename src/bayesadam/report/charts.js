"use strict";
(async () => {
  const read = (name) => JSON.parse(document.getElementById(name).textContent);
  const darkOf = new Map(Object.entries(read("palette")));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const coloured = []; // [model, attribute, light colour]
  const views = new Map();

  function collect(view) {
    for (const model of view.model.references()) {
      for (const property of model) {
        if (!property.attr.endsWith("_color")) continue;
        const value = property.is_unset ? null : property.get_value();
        const light = typeof value === "string" ? value : value?.value;
        if (darkOf.has(light)) coloured.push([model, property.attr, light]);
      }
    }
  }

  function paint(toDark) {
    for (const [model, attribute, light] of coloured) {
      model.setv({ [attribute]: toDark ? darkOf.get(light) : light });
    }
  }

  function quieten(view) {
    // A chart reacts to the pointer only; what it shows is in the table below it, so that Tab need not stop here.
    view.canvas_view.events_el.tabIndex = -1;
    for (const tool of view.tool_views?.values() ?? []) {
      for (const tooltip of tool.ttmodels?.values() ?? []) {
        tooltip.setv({
          styles: {
            "--tooltip-color": "var(--raised)",
            "--tooltip-text": "var(--ink)",
            "--tooltip-border": "var(--line)",
            "border-radius": "6px",
            "font-size": "13px",
          },
          stylesheets: [".bk-tooltip-row-label { color: var(--muted); padding-right: 6px; }"],
        });
      }
    }
  }

  for (const item of read("charts")) {
    const place = document.getElementById(item.target_id);
    const [view] = await Bokeh.embed.embed_item(item);
    collect(view);
    quieten(view);
    views.set(place, view);
  }
  paint(dark.matches);
  dark.addEventListener("change", () => paint(dark.matches));

  // Paper is white, and has another width: print pictures of the charts.
  let pictures = [];
  addEventListener("beforeprint", () => {
    paint(false);
    for (const [place, view] of views) {
      view.paint?.();
      const picture = new Image();
      picture.src = view.export("png").canvas.toDataURL();
      picture.className = "printed";
      picture.alt = "";
      place.after(picture);
      pictures.push(picture);
    }
  });
  addEventListener("afterprint", () => {
    for (const picture of pictures) picture.remove();
    pictures = [];
    paint(dark.matches);
  });

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }
  document.documentElement.dataset.ready = String(views.size);
})();
