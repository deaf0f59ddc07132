"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("chart");
  const told = document.getElementById("told");
  const context = canvas.getContext("2d");
  // Okabe and Ito's palette: told apart with any colour vision.
  const KINDS = {
    F: ["forward", "#0072B2"],
    B: ["backward", "#E69F00"],
    I: ["input gradient", "#009E73"],
    W: ["weight gradient", "#CC79A7"],
  };
  const BUBBLE = "rgba(128,128,128,0.18)", MEMORY = "#56B4E9", TRANSFER = "#D55E00";
  const LEFT = 92, AXIS = 26, MOST_TRANSFERS = 4000;
  const many = data.lanes.length > 16;
  const BAR = many ? 14 : 24, HELD = many ? 9 : 16, GAP = many ? 4 : 8, ROW = BAR + HELD + GAP;
  let from = 0, to = data.duration || 1;

  const used = new Set(data.lanes.flatMap((lane) => lane.spans.map((span) => span[0])));
  const entries = Object.keys(KINDS).filter((op) => used.has(op)).map((op) => KINDS[op]);
  entries.push(["bubble", BUBBLE], ["memory", MEMORY]);
  if (data.moved.length) entries.push(["transfer", TRANSFER]);
  for (const [name, colour] of entries) {
    const item = document.createElement("span"), box = document.createElement("i");
    box.style.background = colour;
    item.append(box, name);
    document.getElementById("legend").append(item);
  }

  const seconds = (t) => (t < 1e-3 ? (t * 1e6).toFixed(1) + " us" : t < 1 ? (t * 1e3).toFixed(2) + " ms" : t.toFixed(3) + " s");
  const bytes = (n) => (n >= 2 ** 30 ? (n / 2 ** 30).toFixed(2) + " GiB" : (n / 2 ** 20).toFixed(2) + " MiB");
  const x = (t) => LEFT + ((t - from) / (to - from)) * (width() - LEFT);
  const at = (px) => from + ((px - LEFT) / (width() - LEFT)) * (to - from);
  const width = () => canvas.clientWidth;
  const top = (row) => AXIS + row * ROW;

  // The first entry whose key is above t; keys ascend.
  function after(list, key, t) {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (key(list[middle]) > t) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  function draw() {
    const scale = devicePixelRatio || 1, height = AXIS + data.lanes.length * ROW + 4;
    canvas.style.height = height + "px";
    canvas.width = Math.round(width() * scale);
    canvas.height = Math.round(height * scale);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width(), height);
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue("--text").trim(), line = style.getPropertyValue("--line").trim();
    axis(text, line, height);
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width() - LEFT, height);
    context.clip();
    data.lanes.forEach(lane);
    transfers();
    context.restore();
    context.fillStyle = text;
    context.font = (many ? 11 : 13) + "px system-ui, sans-serif";
    context.textAlign = "left";
    data.lanes.forEach((row, n) => context.fillText(row.name, 4, top(n) + BAR / 2 + 5, LEFT - 8));
  }

  function axis(text, line, height) {
    const step = 10 ** Math.floor(Math.log10((to - from) / 3));
    const tick = [1, 2, 5, 10].map((k) => k * step).find((k) => (to - from) / k <= 10) || step * 10;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "center";
    for (let t = Math.ceil(from / tick) * tick; t <= to; t += tick) {
      context.fillStyle = line;
      context.fillRect(x(t), AXIS - 6, 1, height);
      context.fillStyle = text;
      context.fillText(seconds(t), Math.max(x(t), LEFT + 20), 14);
    }
  }

  function lane(row, n) {
    const y = top(n);
    context.fillStyle = BUBBLE;
    context.fillRect(x(0), y, x(data.duration) - x(0), BAR);
    context.textAlign = "center";
    context.font = (many ? 9 : 11) + "px system-ui, sans-serif";
    for (let i = after(row.spans, (s) => s[4], from); i < row.spans.length && row.spans[i][3] < to; i++) {
      const [op, batch, stage, start, end] = row.spans[i], left = x(start), wide = x(end) - left;
      context.fillStyle = KINDS[op][1];
      context.fillRect(left, y, Math.max(wide - (wide > 3 ? 0.6 : 0), 0.2), BAR);
      if (wide > 26) {
        context.fillStyle = "#000";
        context.fillText(batch + "." + stage, left + wide / 2, y + BAR / 2 + 4, wide - 2);
      }
    }
    context.fillStyle = MEMORY;
    const first = Math.max(after(row.memory, (m) => m[0], from) - 1, 0);
    for (let i = first; i < row.memory.length && row.memory[i][0] < to; i++) {
      const start = row.memory[i][0], end = i + 1 < row.memory.length ? row.memory[i + 1][0] : data.duration;
      const high = HELD * Math.min(row.memory[i][1] / data.limit, 1);
      context.fillRect(x(start), y + BAR + HELD - high, Math.max(x(end) - x(start), 0.2), high);
    }
  }

  function transfers() {
    const seen = data.moved.filter((m) => m[3] > from && m[2] < to);
    if (seen.length > MOST_TRANSFERS) return; // zoomed in further they appear
    context.strokeStyle = TRANSFER;
    context.lineWidth = 1;
    context.beginPath();
    for (const [source, target, sent, arrived] of seen) {
      context.moveTo(x(sent), top(source) + BAR / 2);
      context.lineTo(x(arrived), top(target) + BAR / 2);
    }
    context.stroke();
  }

  function show(start, end) {
    const wide = Math.min(Math.max(end - start, data.duration * 1e-5), data.duration);
    from = Math.min(Math.max(start, 0), data.duration - wide);
    to = from + wide;
    draw();
  }

  function zoom(factor, around) {
    show(around - (around - from) * factor, around + (to - around) * factor);
  }

  function name(event) {
    const box = canvas.getBoundingClientRect(), t = at(event.clientX - box.left);
    const n = Math.floor((event.clientY - box.top - AXIS) / ROW), row = data.lanes[n];
    if (!row || t < 0 || t > data.duration || event.clientX - box.left < LEFT) return "";
    const span = row.spans[after(row.spans, (s) => s[4], t)];
    const held = row.memory[after(row.memory, (m) => m[0], t) - 1];
    const doing = span && span[3] <= t
      ? KINDS[span[0]][0] + " of micro-batch " + span[1] + ", stage " + span[2] + ": " + seconds(span[3]) + " to "
        + seconds(span[4]) + " (" + seconds(span[4] - span[3]) + ")"
      : "bubble";
    return row.name + ", " + seconds(t) + ": " + doing + (held ? "; holds " + bytes(held[1]) : "");
  }

  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => {
    dragged = { x: event.clientX, from, to };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => (dragged = null));
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      const moved = ((event.clientX - dragged.x) / (width() - LEFT)) * (dragged.to - dragged.from);
      show(dragged.from - moved, dragged.to - moved);
    }
    told.textContent = name(event);
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event.clientX - canvas.getBoundingClientRect().left));
  }, { passive: false });
  document.getElementById("in").addEventListener("click", () => zoom(0.5, (from + to) / 2));
  document.getElementById("out").addEventListener("click", () => zoom(2, (from + to) / 2));
  document.getElementById("all").addEventListener("click", () => show(0, data.duration));
  addEventListener("resize", draw);
  for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", draw);
  draw();
{% include "print.js" %}
})();
