"use strict";
(function () {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const holders = Array.from(document.querySelectorAll("[data-figure]"));

  // Text and grid follow the page's own colours, so figures change with it.
  function colours(axes) {
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue("--text").trim();
    const line = style.getPropertyValue("--line").trim();
    const change = { "font.color": text };
    for (const axis of axes) {
      for (const part of ["gridcolor", "zerolinecolor", "linecolor"]) change[axis + "." + part] = line;
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
    const axes = Object.keys(holder.layout).filter(function (key) {
      return /^[xy]axis[0-9]*$/.test(key);
    });
    return Plotly.relayout(holder, colours(axes));
  }

  holders.forEach(draw);
{% include "print.js" %}
  dark.addEventListener("change", function () {
    holders.forEach(paint);
  });
})();
