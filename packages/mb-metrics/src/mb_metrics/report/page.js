"use strict";
/* Draws the charts of the page with uPlot: smoothing, x axis by step, tokens or time, a range shared by all charts. */
(() => {
const STEPS_OF_TIME = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800,
  432000, 864000];
const AXES = { step: "step", tokens: "tokens", samples: "sequences", time: "running time" };
const MARKS = { restart: "restarts", save: "saves", evaluation: "evaluations", anomaly: "anomalies" };
const $ = (id) => document.getElementById(id);
let data = JSON.parse($("data").textContent);
const state = { smoothing: 0, axis: "step", range: null, outliers: false, log: new Set(), hidden: new Set(),
  marks: new Set(Object.keys(MARKS)) };
let charts = [], overview = null, hovered = null;

function short(value) {
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e15)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  for (const [limit, by, unit] of [[1e12, 1e12, " T"], [1e9, 1e9, " G"], [1e6, 1e6, " M"], [1e4, 1e3, " k"]])
    if (size >= limit) return Number((value / by).toPrecision(3)) + unit;
  return String(Number(value.toPrecision(4)));
}

const tick = (value) => (value && Math.abs(value) < 1e-3 ? value.toExponential(2).replace(/\.?0*e/, "e") : short(value));

function duration(seconds) {
  if (seconds === 0) return "0";
  if (seconds < 1e-3) return `${Number((seconds * 1e6).toPrecision(3))} µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  for (const [size, unit, smaller, name] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]])
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / smaller);
      return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${name}` : ""}`;
    }
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shared = (chart) => chart.x === "step";
const written = (chart, x) => !shared(chart) ? duration(x / 1e6) : state.axis === "time" ? duration(x)
  : state.axis === "step" ? Math.round(x).toLocaleString("en") : short(x);

/* Positions of some steps of a run on the chosen x axis, by interpolation. */
function positions(run, steps) {
  if (state.axis === "step") return steps;
  const { step, [state.axis]: other } = data.runs[run].axes;
  return steps.map((at) => {
    let high = step.findIndex((one) => one >= at);
    if (high < 0) high = step.length - 1;
    if (high === 0) high = 1;
    const low = high - 1, span = step[high] - step[low];
    return span ? other[low] + ((other[high] - other[low]) * (at - step[low])) / span : other[low];
  });
}

function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return sum / total;
  });
}

/* Index of the value that is nearest to x in ascending xs. */
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

class ChartView {
  constructor(figure, chart) {
    this.figure = figure;
    this.chart = chart;
    this.plot = figure.querySelector(".plot");
    this.read = figure.querySelector(".read");
    this.note = this.read.textContent;
    this.plot.tabIndex = 0;
    this.plot.addEventListener("keydown", (event) => this.moved(event));
    this.plot.addEventListener("pointerenter", () => { hovered = this; });
    this.plot.addEventListener("pointerleave", () => { hovered = null; this.hide(); });
    this.plot.addEventListener("focus", () => { hovered = this; });
    this.plot.addEventListener("blur", () => { if (hovered === this) hovered = null; this.hide(); });
    for (const kind of ["touchstart", "touchmove"])
      this.plot.addEventListener(kind, (event) => this.touched(event), { passive: true });
    if (chart.log && this.values().some((value) => value > 0)) this.addLog();
    this.legend();
    this.build();
  }

  get key() { return this.chart.title; }
  get isLog() { return state.log.has(this.key); }

  values() { return this.chart.curves.flatMap((curve) => curve.y); }

  isHidden(curve) { return state.hidden.has(`${data.charts.length > 1 && data.runs.length > 1 ? "" : this.key}/${curve.label}`); }

  addLog() {
    const button = element("button", "log", "log");
    button.type = "button";
    button.title = "logarithmic scale";
    button.setAttribute("aria-pressed", String(this.isLog));
    button.addEventListener("click", () => {
      if (this.isLog) state.log.delete(this.key); else state.log.add(this.key);
      button.setAttribute("aria-pressed", String(this.isLog));
      this.build();
    });
    this.figure.querySelector("figcaption").append(button);
  }

  legend() {
    const list = this.figure.querySelector(".legend");
    list.textContent = "";
    if (this.chart.curves.length < 2 && data.runs.length < 2) return;
    for (const curve of this.chart.curves) {
      const item = element("li"), button = element("button", curve.label, this.look(curve));
      button.type = "button";
      button.title = "show or hide";
      button.setAttribute("aria-pressed", String(!this.isHidden(curve)));
      button.addEventListener("click", () => {
        const name = `${data.charts.length > 1 && data.runs.length > 1 ? "" : this.key}/${curve.label}`;
        if (!state.hidden.delete(name)) state.hidden.add(name);
        for (const each of charts) { each.legend(); each.build(); }
      });
      item.append(button);
      list.append(item);
    }
  }

  look(curve) { return `c${curve.colour % 8} d${Math.floor(curve.colour / 8) % 3}${curve.dots ? " dot" : ""}${curve.reference ? " d1" : ""}`; }

  /* Columns for uPlot: the raw and the smoothed values of each curve, and the limits of its range. */
  columns() {
    const curves = this.chart.curves.map((curve) => ({ curve, x: shared(this.chart) ? positions(curve.run, curve.x) : curve.x }));
    this.drawn = curves;
    const all = [...new Set(curves.flatMap(({ x }) => x))].sort((a, b) => a - b);
    const place = new Map(all.map((x, index) => [x, index]));
    const spread = (xs, values) => {
      const column = new Array(all.length).fill(null);
      values.forEach((value, index) => {
        if (!this.isLog || value > 0) column[place.get(xs[index])] = value;
      });
      return column;
    };
    const columns = [all];
    for (const one of curves) {
      const { curve, x } = one;
      const smooth = state.smoothing > 0 && this.chart.smooth && !curve.dots && !curve.reference && curve.y.length > 2;
      one.y = smooth ? smoothed(curve.y, state.smoothing) : curve.y;
      one.isSmooth = smooth;
      columns.push(spread(x, one.y), smooth ? spread(x, curve.y) : new Array(all.length).fill(null));
      if (curve.low) columns.push(spread(x, curve.high), spread(x, curve.low));
    }
    return columns;
  }

  series() {
    const made = [{}], bands = [];
    for (const curve of this.chart.curves) {
      const colour = css(`--c${curve.colour % 8}`), show = !this.isHidden(curve);
      const dash = curve.reference ? [6, 5] : [[], [7, 3], [2, 3]][Math.floor(curve.colour / 8) % 3];
      const few = curve.y.length <= 30 && !curve.reference && shared(this.chart);
      const at = made.length;
      made.push(
        { label: curve.label, show, stroke: colour, width: curve.dots ? (curve.y.length > 40 ? 0 : 1) : 1.8, dash: curve.dots ? [3, 3] : dash, spanGaps: true,
          points: { show: curve.dots || few, size: curve.dots ? (curve.y.length > 60 ? 4 : 7) : 5, fill: colour, stroke: colour, width: 0 } },
        { label: `${curve.label} raw`, show, stroke: `${colour}59`, width: 1, spanGaps: true, points: { show: false } });
      if (curve.low) {
        const limit = { show, stroke: `${colour}40`, width: 0.6, spanGaps: true, points: { show: false } };
        made.push({ ...limit }, { ...limit });
        bands.push({ series: [at + 2, at + 3], fill: `${colour}2e` });
      }
    }
    if (this.chart.fill) bands.push({ series: [3 + (this.chart.curves[0].low ? 2 : 0), 1], fill: `${css("--quiet")}33` });
    return { made, bands };
  }

  build() {
    this.hide();
    this.uplot?.destroy();
    const columns = this.columns(), { made, bands } = this.series();
    const quiet = css("--quiet"), grid = css("--grid");
    const axis = { stroke: quiet, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 5 },
      font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
    const time = shared(this.chart) && state.axis === "time";
    this.uplot = new uPlot({
      width: Math.max(this.plot.clientWidth, 120),
      height: this.plot.clientHeight || 220,
      padding: [10, 22, 0, 0],
      legend: { show: false },
      cursor: { sync: shared(this.chart) ? { key: "steps", scales: ["x", null] } : undefined, y: false,
        drag: { x: shared(this.chart), y: false, setScale: false }, points: { size: 8 } },
      scales: {
        x: { time: false, range: (_, low, high) => (shared(this.chart) ? state.range ?? extent() : padded(low, high)) },
        y: { distr: this.isLog ? 3 : 1, range: (plot, low, high) => this.limits(plot, low, high) },
      },
      axes: [
        { ...axis, label: shared(this.chart) ? AXES[state.axis] : "time of a step", labelSize: 18, labelGap: 0, size: 28, space: time ? 80 : 60,
          ...(time ? { incrs: STEPS_OF_TIME } : shared(this.chart) && state.axis === "step" ? { incrs: wholeSteps() } : {}),
          values: (_, found) => found.map((one) => (state.axis === "step" && shared(this.chart) ? short(one) : written(this.chart, one))) },
        { ...axis, label: this.chart.unit || undefined, labelSize: 16, labelGap: 2, size: 54,
          values: (_, found) => found.map((one) => (one === null ? "" : tick(one))) },
      ],
      series: made,
      bands,
      hooks: {
        draw: [(plot) => this.drawMarks(plot)],
        setCursor: [(plot) => this.pointed(plot)],
        setSelect: [(plot) => this.selected(plot)],
      },
    }, columns, this.plot);
    this.uplot.over.addEventListener("dblclick", () => setRange(null));
    this.tip = element("div", undefined, "tip");
    this.uplot.over.append(this.tip);
    this.read.textContent = this.noteText();
  }

  noteText() {
    const below = this.isLog && this.values().some((value) => value <= 0);
    return `${this.note}${below ? " Zero and negative values are left out." : ""}`.trim();
  }

  /* Range of the y axis: visible values with a margin. */
  limits(plot, low, high) {
    if (low === null || high === null) return this.isLog ? [1, 10] : [0, 1];
    if (state.outliers) {
      const [from, to] = shared(this.chart) ? state.range ?? extent() : [-Infinity, Infinity];
      const seen = this.drawn.filter(({ curve }) => !this.isHidden(curve))
        .flatMap(({ x, y }) => y.filter((value, index) => x[index] >= from && x[index] <= to && (!this.isLog || value > 0)));
      seen.sort((a, b) => a - b);
      if (seen.length > 20) {
        low = seen[Math.floor(0.01 * seen.length)];
        high = seen[Math.ceil(0.98 * seen.length) - 1];
      }
    }
    if (this.isLog) return [low / 1.15, high * 1.15];
    if (this.chart.zero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [this.chart.zero && low === 0 ? 0 : low - margin, high + margin];
  }

  drawMarks(plot) {
    if (!shared(this.chart)) return;
    const { ctx, bbox } = plot, ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const at = (x) => Math.round(plot.valToPos(x, "x", true));
    for (const { curve, ...one } of this.drawn) {
      if (this.isHidden(curve) || !curve.bad.length) continue;
      ctx.fillStyle = css("--bad");
      for (const x of positions(curve.run, curve.bad)) ctx.fillRect(at(x) - ratio, bbox.top, 2 * ratio, 12 * ratio);
    }
    const last = {};
    for (const mark of data.marks) {
      if (!state.marks.has(mark.kind)) continue;
      const x = at(positions(mark.run, [mark.step])[0]), bottom = bbox.top + bbox.height;
      if (x < bbox.left || x > bbox.left + bbox.width || Math.abs(x - last[mark.kind]) < 8 * ratio) continue;
      last[mark.kind] = x;
      ctx.strokeStyle = ctx.fillStyle = css({ restart: "--quiet", save: "--saving", evaluation: "--evaluating", anomaly: "--bad" }[mark.kind]);
      ctx.lineWidth = ratio;
      if (mark.kind === "restart") {
        ctx.setLineDash([5 * ratio, 4 * ratio]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bottom);
        ctx.stroke();
        ctx.setLineDash([]);
      } else if (mark.kind === "anomaly") triangle(ctx, x, bbox.top + 1, 5 * ratio, 8 * ratio);
      else if (mark.kind === "save") triangle(ctx, x, bottom, 4 * ratio, -7 * ratio);
      else ctx.fillRect(x - ratio, bottom - 9 * ratio, 2 * ratio, 9 * ratio);
    }
    ctx.restore();
  }

  selected(plot) {
    const { left, width } = plot.select;
    if (width < 4 || hovered !== this || !shared(this.chart)) return;
    const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    setRange(range);
  }

  moved(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") setRange(null);
    if (!by) return;
    event.preventDefault();
    const xs = this.uplot.data[0], [from, to] = [this.uplot.scales.x.min, this.uplot.scales.x.max];
    const index = this.uplot.cursor.idx ?? nearest(xs, by > 0 ? from : to) - by;
    const next = xs[Math.min(xs.length - 1, Math.max(0, index + by))];
    if (next >= from && next <= to) this.uplot.setCursor({ left: this.uplot.valToPos(next, "x"), top: 10 });
  }

  touched(event) {
    hovered = this;
    const box = this.uplot.over.getBoundingClientRect(), touch = event.touches[0];
    this.uplot.setCursor({ left: touch.clientX - box.left, top: touch.clientY - box.top });
  }

  hide() {
    if (this.tip) this.tip.style.display = "none";
    if (!hovered) for (const each of charts) each.read.textContent = each.noteText();
  }

  /* Show the values at the cursor: in a tip in the chart under the pointer, as text below the others. */
  pointed(plot) {
    const left = plot.cursor.left;
    if (left === null || left === undefined || left < 0) {
      this.hide();
      return;
    }
    const x = plot.posToVal(left, "x"), here = this.valuesAt(x);
    const text = here.map(({ curve, text: value }) => `${here.length > 1 ? `${curve.label} ` : ""}${value}`).join("; ");
    this.read.textContent = hovered === this ? this.noteText() : text ? `${written(this.chart, x)}: ${text}` : "";
    if (hovered !== this) {
      this.tip.style.display = "none";
      return;
    }
    this.tip.textContent = "";
    this.tip.append(element("b", `${shared(this.chart) ? `${AXES[state.axis]} ` : ""}${written(this.chart, here[0]?.x ?? x)}`));
    for (const { curve, text: value } of here) {
      const line = element("div");
      line.append(element("i", undefined, this.look(curve)), element("span", curve.label), element("em", value));
      this.tip.append(line);
    }
    if (shared(this.chart)) {
      const reach = (6 * (plot.scales.x.max - plot.scales.x.min)) / plot.over.clientWidth;
      const near = data.marks.filter((mark) => state.marks.has(mark.kind) && Math.abs(positions(mark.run, [mark.step])[0] - x) <= reach);
      for (const mark of near.slice(0, 4)) this.tip.append(element("small", `step ${mark.step.toLocaleString("en")}: ${mark.text}`, `m-${mark.kind}`));
    }
    this.tip.style.display = "block";
    const width = plot.over.clientWidth, own = this.tip.offsetWidth;
    this.tip.style.left = `${left + 14 + own <= width ? left + 14 : Math.max(0, left - own - 14)}px`;
  }

  valuesAt(x) {
    const reach = (this.uplot.scales.x.max - this.uplot.scales.x.min) / 50, found = [];
    for (const one of this.drawn) {
      const { curve } = one;
      if (this.isHidden(curve) || !(one.x.length || curve.bad.length)) continue;
      const bad = curve.bad.length ? positions(curve.run, curve.bad) : [];
      const index = one.x.length ? nearest(one.x, x) : -1;
      const miss = bad.find((each) => Math.abs(each - x) < reach / 8);
      if (miss !== undefined) found.push({ curve, x: miss, text: "NaN or infinite" });
      else if (index >= 0 && (curve.reference || Math.abs(one.x[index] - x) <= reach)) {
        const range = curve.low && curve.low[index] !== curve.high[index] ? ` (${short(curve.low[index])} to ${short(curve.high[index])})` : "";
        const raw = one.isSmooth ? `, raw ${short(curve.y[index])}` : "";
        found.push({ curve, x: curve.reference ? x : one.x[index], text: `${short(one.y[index])}${raw}${range}` });
      }
    }
    return found;
  }

  resize() {
    const width = this.plot.clientWidth;
    if (width && width !== this.uplot.width) this.uplot.setSize({ width, height: this.plot.clientHeight || 220 });
  }
}

function triangle(ctx, x, y, half, height) {
  ctx.beginPath();
  ctx.moveTo(x - half, y);
  ctx.lineTo(x + half, y);
  ctx.lineTo(x, y + height);
  ctx.fill();
}

const padded = (low, high) => (low === high ? [low - 1, high + 1] : [low, high]);
const wholeSteps = () => Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((by) => by * 10 ** power)).flat();

/* Range of the x axis over all charts. */
function extent() {
  if (!extent.known) {
    const ends = data.charts.filter(shared).flatMap((chart) => chart.curves.flatMap((curve) =>
      curve.x.length ? positions(curve.run, [curve.x[0], curve.x[curve.x.length - 1]]) : positions(curve.run, curve.bad)));
    extent.known = padded(ends.reduce((a, b) => Math.min(a, b), Infinity), ends.reduce((a, b) => Math.max(a, b), -Infinity));
  }
  return extent.known;
}

function setRange(range) {
  state.range = range;
  $("all").disabled = !range;
  for (const each of charts.filter((one) => shared(one.chart))) {
    each.uplot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    each.uplot.setData(each.uplot.data);
  }
  showRange();
}

function showRange() {
  if (!overview) return;
  const [from, to] = state.range ?? [0, 0], left = overview.valToPos(from, "x"), right = overview.valToPos(to, "x");
  overview.setSelect(state.range ? { left, width: right - left, top: 0, height: overview.over.clientHeight } : { left: 0, width: 0, top: 0, height: 0 }, false);
}

/* A small chart of the first curve of each run, in which a range of all charts is chosen. */
function buildOverview() {
  overview?.destroy();
  overview = null;
  const first = data.charts.find(shared);
  if (!first) return;
  const curves = first.curves.filter((curve) => !curve.dots && !curve.reference && curve.x.length > 1);
  const xs = curves.map((curve) => positions(curve.run, curve.x));
  const all = [...new Set(xs.flat())].sort((a, b) => a - b), place = new Map(all.map((x, index) => [x, index]));
  const columns = curves.map((curve, number) => {
    const column = new Array(all.length).fill(null);
    curve.y.forEach((value, index) => { column[place.get(xs[number][index])] = value; });
    return column;
  });
  if (!all.length) return;
  overview = new uPlot({
    width: $("overview").clientWidth, height: 44, padding: [2, 0, 2, 0], legend: { show: false },
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
    scales: { x: { time: false, range: () => extent() } },
    axes: [{ show: false }, { show: false }],
    series: [{}, ...curves.map((curve) => ({ stroke: css(`--c${curve.colour % 8}`), width: 1, spanGaps: true, points: { show: false } }))],
    hooks: { setSelect: [(plot) => {
      const { left, width } = plot.select;
      if (width >= 3) setRange([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
    }] },
  }, [all, ...columns], $("overview"));
  overview.over.addEventListener("dblclick", () => setRange(null));
  overview.over.addEventListener("click", () => { if (overview.select.width < 3) setRange(null); });
  showRange();
}

function tools() {
  const bar = document.querySelector(".tools");
  bar.hidden = !data.charts.length;
  const options = Object.keys(AXES).filter((axis) => data.runs.every((run) => run.axes[axis]));
  if (!options.includes(state.axis)) state.axis = "step";
  $("axis").replaceChildren(...options.map((axis) => {
    const option = element("option", AXES[axis]);
    option.value = axis;
    option.selected = axis === state.axis;
    return option;
  }));
  const marks = bar.querySelector("fieldset"), kinds = new Set(data.marks.map((mark) => mark.kind));
  marks.hidden = !kinds.size;
  marks.querySelectorAll("label").forEach((label) => label.remove());
  for (const [kind, name] of Object.entries(MARKS).filter(([kind]) => kinds.has(kind))) {
    const label = element("label", undefined, `m-${kind}`), box = document.createElement("input");
    box.type = "checkbox";
    box.checked = state.marks.has(kind);
    box.addEventListener("change", () => {
      if (box.checked) state.marks.add(kind); else state.marks.delete(kind);
      for (const each of charts) each.uplot.redraw(false);
    });
    label.append(box, ` ${name}`);
    marks.append(label);
  }
}

function build() {
  extent.known = null;
  for (const each of charts) each.uplot.destroy();
  tools();
  const figures = [...document.querySelectorAll("figure.chart")];
  charts = figures.map((figure, index) => new ChartView(figure, data.charts[index]));
  buildOverview();
}

function rebuild() {
  extent.known = null;
  for (const each of charts) each.build();
  buildOverview();
}

$("smoothing").addEventListener("input", (event) => {
  state.smoothing = Number(event.target.value);
  event.target.parentElement.querySelector("output").textContent = state.smoothing.toFixed(2).replace(/\.?0+$/, "") || "0";
  for (const each of charts) if (shared(each.chart)) each.uplot.setData(each.columns());
});
$("axis").addEventListener("change", (event) => {
  state.axis = event.target.value;
  state.range = null;
  $("all").disabled = true;
  rebuild();
});
$("outliers").addEventListener("change", (event) => {
  state.outliers = event.target.checked;
  for (const each of charts) each.uplot.setData(each.uplot.data);
});
$("all").addEventListener("click", () => setRange(null));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rebuild);

/* A page of `report --serve` reads the state of the run at intervals, and keeps range, smoothing and axis. */
async function follow(address) {
  let before = "";
  for (;;) {
    await new Promise((done) => { setTimeout(done, 3000); });
    try {
      const answer = await fetch(address, { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      document.body.classList.remove("lost");
      if (text === before || hovered) continue;
      before = text;
      const parts = JSON.parse(text);
      data = parts.data;
      document.title = document.querySelector("h1").textContent = parts.title;
      $("subtitle").textContent = parts.subtitle;
      $("above").innerHTML = parts.above;
      $("charts").innerHTML = parts.charts;
      $("below").innerHTML = parts.below;
      build();
    } catch {
      document.body.classList.add("lost");
    }
  }
}

let waiting = 0;
new ResizeObserver(() => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => {
    for (const each of charts) each.resize();
    if (overview && $("overview").clientWidth !== overview.width) buildOverview();
  });
}).observe(document.querySelector("main"));
const live = data.live;
build();
if (live) follow(live);
})();
