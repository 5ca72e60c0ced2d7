"use strict";
/* Reads values off the charts and switches them to a logarithmic scale. The page is complete without it. */
const WIDTH = 1000, HEIGHT = 300;

function short(value) {
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e15)) return String(value.toExponential(2)).replace(/\.?0*e\+?/, "e");
  for (const [limit, by, unit] of [[1e12, 1e12, " T"], [1e9, 1e9, " G"], [1e6, 1e6, " M"], [1e4, 1e3, " k"]])
    if (size >= limit) return Number((value / by).toPrecision(3)) + unit;
  return String(Number(value.toPrecision(4)));
}

function ticks(low, high, most) {
  const span = high - low, size = 10 ** Math.floor(Math.log10(span / most));
  const step = [1, 2, 5, 10].map((by) => by * size).find((one) => span / one <= most);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) found.push(at * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const by of [1, 2, 5]) found.push(by * 10 ** power);
  const inside = found.filter((one) => one >= low && one <= high);
  const tens = inside.filter((one) => Number.isInteger(Number(Math.log10(one).toFixed(9))));
  if (inside.length < 2) return ticks(low, high, 5);
  return inside.length <= 7 ? inside : tens.length > 1 ? tens : inside.filter((_, at) => at % 2 === 0);
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.data = JSON.parse(figure.querySelector("script").textContent);
    this.plot = figure.querySelector(".plot");
    this.svg = figure.querySelector("svg");
    this.read = figure.querySelector(".read");
    this.note = this.read.textContent;
    this.linear = { note: this.note, svg: this.svg.innerHTML, ys: figure.querySelector(".ys").innerHTML };
    this.at = null;
    this.steps = [...new Set(this.data.curves.flatMap((one) => [...one.points.map((point) => point[0]), ...one.bad]))];
    this.steps.sort((a, b) => a - b);
    if ("log" in figure.dataset && this.positive().length > 1) this.addButton();
    this.plot.tabIndex = 0;
    this.plot.addEventListener("pointermove", (event) => this.pointed(event));
    this.plot.addEventListener("pointerdown", (event) => this.pointed(event));
    this.plot.addEventListener("pointerleave", () => this.show(null));
    this.plot.addEventListener("blur", () => this.show(null));
    this.plot.addEventListener("keydown", (event) => this.moved(event));
  }

  positive() {
    return this.data.curves.flatMap((one) => one.points.flatMap((point) => point.slice(1))).filter((one) => one > 0);
  }

  addButton() {
    const button = document.createElement("button");
    button.className = "log";
    button.type = "button";
    button.textContent = "log";
    button.title = "logarithmic scale";
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      if (on) this.drawLog();
      else this.restore();
    });
    this.figure.querySelector("figcaption").append(button);
  }

  restore() {
    this.svg.innerHTML = this.linear.svg;
    this.read.textContent = this.note = this.linear.note;
    this.figure.querySelector(".ys").innerHTML = this.linear.ys;
  }

  drawLog() {
    const values = this.positive();
    let low = Math.log10(values.reduce((a, b) => Math.min(a, b)));
    let high = Math.log10(values.reduce((a, b) => Math.max(a, b)));
    const margin = (high - low) * 0.05 || 0.1;
    low -= margin;
    high += margin;
    const [left, right] = this.data.frame;
    const x = (step) => ((WIDTH * (step - left)) / (right - left)).toFixed(1);
    const y = (value) => (value > 0 ? HEIGHT * (1 - (Math.log10(value) - low) / (high - low)) : HEIGHT).toFixed(1);
    const levels = logTicks(10 ** low, 10 ** high);
    let drawn = `<path class="grid" d="${levels.map((one) => `M0 ${y(one)}H${WIDTH}`).join("")}"/>`;
    for (const one of this.data.curves) {
      const line = "M" + one.points.map((p) => `${x(p[0])} ${y(p[1])}`).join("L");
      const dots = one.points.map((p) => `M${x(p[0])} ${y(p[1])}h0`).join("");
      const bad = one.bad.map((step) => `M${x(step)} 0v16`).join("");
      if (one.points.length && one.points[0].length > 2) {
        const upper = one.points.map((p) => `${x(p[0])} ${y(p[3])}`);
        const lower = one.points.map((p) => `${x(p[0])} ${y(p[2])}`).reverse();
        drawn += `<path class="band ${one.look}" d="M${upper.concat(lower).join("L")}Z"/>`;
      }
      if (one.points.length > 1) drawn += `<path class="line ${one.dots ? "thin" : ""} ${one.look}" d="${line}"/>`;
      if (one.dots || one.points.length === 1) drawn += `<path class="dots ${one.look}" d="${dots}"/>`;
      if (bad) drawn += `<path class="bad" d="${bad}"/>`;
    }
    this.svg.innerHTML = drawn;
    const below = this.data.curves.some((one) => one.points.some((point) => point.slice(1).some((value) => value <= 0)));
    if (below) this.note = `${this.linear.note} Zero and negative values are shown at the lower edge.`.trim();
    this.read.textContent = this.note;
    this.figure.querySelector(".ys").innerHTML = levels
      .map((one) => `<span style="top:${((100 * y(one)) / HEIGHT).toFixed(2)}%">${short(one)}</span>`).join("");
  }

  pointed(event) {
    const box = this.plot.getBoundingClientRect();
    const [left, right] = this.data.frame;
    const step = left + ((right - left) * (event.clientX - box.left)) / box.width;
    let best = 0;
    this.steps.forEach((one, at) => {
      if (Math.abs(one - step) < Math.abs(this.steps[best] - step)) best = at;
    });
    this.show(best);
  }

  moved(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.show(Math.min(this.steps.length - 1, Math.max(0, (this.at ?? (by > 0 ? -1 : this.steps.length)) + by)));
  }

  show(at) {
    this.at = at;
    this.svg.querySelector(".cursor")?.remove();
    if (at === null) {
      this.read.textContent = this.note;
      return;
    }
    const step = this.steps[at], [left, right] = this.data.frame;
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("d", `M${((WIDTH * (step - left)) / (right - left)).toFixed(1)} 0V${HEIGHT}`);
    this.svg.append(cursor);
    const many = this.data.curves.length > 1;
    const parts = this.data.curves.map((one) => this.value(one, step, many ? `${one.label} ` : "")).filter(Boolean);
    this.read.textContent = `${this.data.x} ${Math.round(step).toLocaleString("en")}: ${parts.join("; ")}`;
  }

  value(curve, step, label) {
    const reach = (this.data.frame[1] - this.data.frame[0]) / 100;
    const near = curve.points.reduce(
      (best, point) => (!best || Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best), null);
    if (curve.bad.includes(step)) return `${label}NaN or infinite`;
    if (!near || Math.abs(near[0] - step) > reach) return "";
    const range = near.length > 2 && near[2] !== near[3] ? ` (${short(near[2])} to ${short(near[3])})` : "";
    return `${label}${short(near[1])}${range}`;
  }
}

for (const figure of document.querySelectorAll("figure.chart")) new Chart(figure);
