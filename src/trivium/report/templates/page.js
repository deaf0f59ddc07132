"use strict";
(function () {
  const holders = Array.from(document.querySelectorAll("[data-figure]"));

  // Text and grid follow the page's own colours, so figures change with it.
  function colours(axes) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const change = {
      "font.color": colour("--text"),
      "hoverlabel.bgcolor": colour("--page"),
      "hoverlabel.bordercolor": colour("--line"),
      "hoverlabel.font.color": colour("--text"),
    };
    for (const axis of axes) {
      for (const part of ["gridcolor", "zerolinecolor", "linecolor"]) change[axis + "." + part] = colour("--line");
    }
    return change;
  }

  function paint(holder) {
    const axes = Object.keys(holder.layout).filter((key) => /^[xy]axis[0-9]*$/.test(key));
    return Plotly.relayout(holder, colours(axes));
  }

  // A figure in a closed part of the page has no width, so it is drawn when the part is opened.
  function draw(holder) {
    if (holder.layout || holder.closest("details:not([open])")) return;
    const figure = JSON.parse(document.getElementById(holder.dataset.figure).textContent);
    const layout = Object.assign(figure.layout, { font: { family: "system-ui, sans-serif", size: 12 } });
    const options = { responsive: true, displaylogo: false, displayModeBar: false };
    delete layout.height; // the least height of its box, which its neighbours may stretch
    Plotly.newPlot(holder, figure.data, layout, options).then(() => paint(holder));
  }

  holders.forEach(draw);
  document.addEventListener("toggle", () => holders.forEach(draw), true);
{% include "print.js" %}
  addEventListener("beforeprint", () => holders.forEach(draw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    holders.filter((holder) => holder.layout).forEach(paint);
  });
})();
