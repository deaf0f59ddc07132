"use strict";
(function () {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const holders = Array.from(document.querySelectorAll("[data-figure]"));
  const axes = ["xaxis", "yaxis", "yaxis2"];

  // Text and grid follow the page's own colours, so figures change with it.
  function colours() {
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue("--text").trim();
    const line = style.getPropertyValue("--line").trim();
    const change = { "font.color": text };
    for (const axis of axes) {
      change[axis + ".gridcolor"] = axis === "yaxis2" ? "rgba(0,0,0,0)" : line;
      change[axis + ".zerolinecolor"] = line;
      change[axis + ".linecolor"] = line;
    }
    return change;
  }

  function draw(holder) {
    const figure = JSON.parse(document.getElementById(holder.dataset.figure).textContent);
    const layout = figure.layout;
    layout.font = Object.assign({ family: "system-ui, sans-serif", size: 13 }, layout.font);
    const options = { responsive: true, displaylogo: false, displayModeBar: "hover" };
    return Plotly.newPlot(holder, figure.data, layout, options).then(function () {
      paint(holder);
    });
  }

  function paint(holder) {
    const change = colours();
    for (const axis of axes) {
      if (!(axis in holder.layout)) {
        for (const key of Object.keys(change)) {
          if (key.startsWith(axis + ".")) delete change[key];
        }
      }
    }
    return Plotly.relayout(holder, change);
  }

  holders.forEach(draw);
  dark.addEventListener("change", function () {
    holders.forEach(paint);
  });
})();
