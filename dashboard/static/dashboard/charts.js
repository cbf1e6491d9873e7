// Charts of the console. A page puts the chart's options into `json_script` and names it:
//   <figure class="reach-chart" data-chart="load-options" aria-label="…"></figure>
// The numbers stand in a table beside it for who cannot see the chart; this module only draws.
import * as echarts from "../vendor/echarts/echarts.esm.min.js";

const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function theme() {
  const ink = color("--r-ink"), soft = color("--r-soft"), line = color("--r-line");
  const axis = { axisLabel: { color: soft }, axisLine: { lineStyle: { color: line } }, splitLine: { lineStyle: { color: line } } };
  return {
    color: ["--r-accent", "--r-busy", "--r-warn", "--r-bad", "--r-good", "--r-soft"].map(color),
    backgroundColor: "transparent",
    textStyle: { color: ink, fontFamily: getComputedStyle(document.body).fontFamily },
    categoryAxis: axis, valueAxis: axis, timeAxis: axis, logAxis: axis,
    legend: { textStyle: { color: soft } },
    tooltip: { backgroundColor: color("--r-sheet"), borderColor: line, textStyle: { color: ink } },
    sankey: { label: { color: ink } },
    graph: { label: { color: ink } },
  };
}

/** The options with the names of our CSS variables ("--r-bad") replaced by the colours that they stand for now, and
 *  "--half" by half of the chart's width. */
function painted(value, element) {
  if (value === "--half") return Math.max(60, element.clientWidth / 2 - 28);
  if (typeof value === "string") return value.startsWith("--r-") ? color(value) : value;
  if (Array.isArray(value)) return value.map(part => painted(part, element));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, painted(part, element)]));
}

/** Draw `options` (ECharts') into an element; drawn anew when the theme changes, fitted when the element does. */
export function draw(element, options) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const listening = [];
  let chart;
  const redraw = () => {
    chart?.dispose();
    chart = echarts.init(element, theme(), { renderer: "svg" });
    chart.setOption({ animation: !still, ...painted(options, element) });
    for (const listen of listening) chart.on(...listen);
  };
  redraw();
  new ResizeObserver(() => {
    chart.resize();
    chart.setOption(painted(options, element));
  }).observe(element);
  new MutationObserver(redraw).observe(document.documentElement, { attributes: true, attributeFilter: ["class"] });
  return {
    set: more => { options = { ...options, ...more }; chart.setOption(painted(more, element)); },
    replace: others => { options = others; chart.setOption({ animation: false, ...painted(options, element) }, true); },
    on: (...listen) => { listening.push(listen); chart.on(...listen); },
  };
}

/** The charts of this page by the id of their options. */
export const drawn = new Map();

/** Draw every chart within `root`. */
export function drawAll(root) {
  for (const element of root.querySelectorAll("[data-chart]")) {
    const id = element.dataset.chart;
    drawn.set(id, draw(element, JSON.parse(document.getElementById(id).textContent)));
  }
}

drawAll(document);
