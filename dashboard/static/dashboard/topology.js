// Who calls whom, drawn: the page says where everybody stands; a click looks around one of them.
import { draw } from "./charts.js";

const COLUMN = 230, ROW = 34, EDGE = 30, LETTER = 6.8;
/** By how many pixels a curve may leave its straight line, the best first; above it where that is more than 0. */
const BULGES = [14, -14, 24, -24, 34, -34, 48, -48, 64, -64, 82, -82], CLOSE = 11, BELOW = 15;
const compact = text => text.length > 26 ? text.slice(0, 25) + "…" : text;

/** Places are in pixels, and two corners that nobody sees keep them so: stretched, circles would be no circles. */
function options(graph, { width, height, columns, left, right, top }) {
  const most = Math.max(...graph.edges.map(edge => edge.calls), 1);
  const tones = { service: "--r-accent", caller: "--r-busy", lost: "--r-soft" };
  const tone = share => share >= 0.1 ? "--r-bad" : share >= 0.01 ? "--r-warn" : "--r-soft";
  const place = node => ({ x: node.column * (width - left - right) / Math.max(columns - 1, 1), y: top + node.row * ROW });
  const placed = new Map(graph.nodes.map(node => [node.name, place(node)]));
  /** How a line is bent so that it passes the names between its ends, and stays within the frame. */
  const bend = ({ source, target }) => {
    if (source === target) return 0.6;
    const from = placed.get(source), to = placed.get(target), [start, end] = [from.x, to.x].sort((a, b) => a - b);
    const between = graph.nodes.map(node => ({ ...placed.get(node.name), half: LETTER * compact(node.label).length / 2 }))
      .filter(({ x }) => x > start && x < end);
    const heightAt = (x, bulge) => {
      const t = (x - from.x) / (to.x - from.x);
      return from.y + t * (to.y - from.y) - 4 * t * (1 - t) * bulge * Math.sign(to.x - from.x);
    };
    const trouble = bulge => between.filter(({ x, y, half }) => Math.abs(heightAt(x, bulge) - y) < CLOSE
      || [-half, 0, half].some(aside => Math.abs(heightAt(x + aside, bulge) - y - BELOW) < CLOSE)).length
      + ([0.25, 0.5, 0.75].some(part => Math.abs(heightAt(start + part * (end - start), bulge) + EDGE - height / 2) > height / 2 - 4) ? 100 : 0);
    const best = from.x === to.x ? BULGES[0] : BULGES.reduce((best, one) => trouble(one) < trouble(best) ? one : best);
    return 2 * best / Math.hypot(to.x - from.x, to.y - from.y);
  };
  return {
    tooltip: { confine: true },
    series: [{
      type: "graph", layout: "none", roam: false, cursor: "pointer",
      left, right, top: EDGE, bottom: EDGE,
      edgeSymbol: ["none", "arrow"], edgeSymbolSize: 7,
      emphasis: { focus: "adjacency", lineStyle: { opacity: 1 } },
      data: [corner(0, 0), corner(width - left - right, height - 2 * EDGE), ...graph.nodes.map(node => ({
        id: node.name, name: node.name, url: node.url,
        ...place(node),
        symbol: node.kind === "service" ? "roundRect" : node.kind === "caller" ? "circle" : "diamond",
        symbolSize: node.focus ? 20 : 12,
        itemStyle: { color: tones[node.kind] },
        label: {
          show: true, color: "--r-ink", fontSize: 12, fontWeight: node.focus ? "bold" : "normal", formatter: compact(node.label),
          position: node.column === 0 ? "left" : node.column === columns - 1 ? "right" : "bottom", textBorderColor: "--r-sheet", textBorderWidth: 3,
        },
        tooltip: { formatter: () => escaped(node.label) },
      }))],
      links: graph.edges.map(edge => ({
        source: edge.source, target: edge.target,
        lineStyle: {
          color: tone(edge.share), type: edge.share >= 0.01 && edge.share < 0.1 ? "dashed" : "solid",
          opacity: edge.share >= 0.01 ? 0.9 : 0.55, curveness: bend(edge),
          width: 1 + 5 * Math.log1p(edge.calls) / Math.log1p(most),
        },
        tooltip: { formatter: () => `${escaped(edge.source)} → ${escaped(edge.target)}<br>${escaped(edge.told)}` },
      })),
    }],
  };
}

const corner = (x, y) => ({ id: `corner ${x} ${y}`, name: "", x, y, symbolSize: 0, silent: true, label: { show: false } });
const escaped = text => text.replace(/[&<>"']/g, sign => `&#${sign.charCodeAt(0)};`);

for (const element of document.querySelectorAll("[data-graph]")) {
  const graph = JSON.parse(document.getElementById(element.dataset.graph).textContent);
  const columns = Math.max(...graph.nodes.map(node => node.column)) + 1;
  const rows = Math.max(...graph.nodes.map(node => node.row)) + 1;
  const room = nodes => 30 + LETTER * Math.max(...nodes.map(node => compact(node.label).length), 4);
  const left = room(graph.nodes.filter(node => node.column === 0)), right = room(graph.nodes.filter(node => node.column === columns - 1));
  const width = Math.max(element.parentElement.clientWidth, (columns - 1) * COLUMN + left + right);
  const height = Math.max(rows - 1, 2) * ROW + 2 * EDGE;
  element.style.width = `${width}px`;
  element.style.height = `${height}px`;
  const top = (height - 2 * EDGE - (rows - 1) * ROW) / 2;
  draw(element, options(graph, { width, height, columns, left, right, top })).on("click", ({ dataType, data }) => {
    if (dataType === "node" && data.url) location.href = data.url;
  });
  element.dataset.drawn = String(graph.edges.length);
}
