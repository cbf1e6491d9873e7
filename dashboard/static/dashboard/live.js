// Live calls: rows that come and change, never more than a browser can show. What is too much is left out and counted.
import { connect } from "./socket.js";

const ROWS_KEPT = 200, ROWS_A_TURN = 20, TURN_MS = 250, WINDOW_MS = 5000, WAITING_KEPT = 500;
const words = JSON.parse(document.getElementById("live-words").textContent);
const texts = words.texts;
const body = document.getElementById("live-rows");
const blank = document.getElementById("live-row").content.firstElementChild;
const gapRow = document.getElementById("live-gap").content.firstElementChild;
const state = document.getElementById("live-state"), share = document.getElementById("live-share");
const pause = document.getElementById("live-pause"), empty = document.getElementById("live-empty");

const rows = new Map([...body.rows].map(row => [row.dataset.call, row]));
const waiting = new Map(); // by id, the newest state of calls that are not shown yet
const lately = []; // [moment, told, shown] of the last seconds
let paused = false, connection = "connecting", missed = 0;

const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
const clock = moment => new Date(moment).toISOString().slice(11, 23);
const fits = call => Object.entries(words.filter).every(([name, value]) => call[name] === value);

function took(call) {
  if (!call.ended_at) return words.open;
  const ms = Math.max(0, new Date(call.ended_at) - new Date(call.accepted_at));
  if (ms < 1000) return fill(words.ms, { n: ms.toFixed(0) });
  if (ms < 60000) return fill(words.s, { n: (ms / 1000).toFixed(1) });
  return fill(words.min, { m: Math.floor(ms / 60000), s: Math.round(ms % 60000 / 1000) });
}

function write(row, call) {
  const [time, status, name, caller, node, attempts, duration, error] = row.cells;
  const [text, tone] = words.status[call.status];
  row.dataset.call = call.call_id;
  row.dataset.seq = call.seq;
  time.textContent = clock(call.accepted_at);
  status.firstElementChild.textContent = text;
  status.firstElementChild.className = `reach-badge reach-${tone}`;
  name.firstElementChild.textContent = call.capability;
  name.firstElementChild.href = words.trace.replace("0".repeat(32), call.trace_id) + `?call=${call.call_id}`;
  caller.textContent = call.caller;
  node.textContent = call.node_id ? `${call.service_id}/${call.node_id}` : "–";
  attempts.textContent = call.attempts;
  duration.textContent = took(call);
  error.replaceChildren();
  if (call.error_code) {
    const tag = error.appendChild(document.createElement("span"));
    tag.className = "reach-tag";
    tag.textContent = call.error_code;
  }
}

function hear(told) {
  let fitting = told.left_out;
  for (const call of told.calls) {
    if (call.mirror_of) continue;
    const row = rows.get(call.call_id);
    if (row) {
      if (!paused && call.seq > row.dataset.seq) fits(call) ? write(row, call) : forget(call.call_id);
      continue;
    }
    if (!fits(call)) continue;
    if (!waiting.has(call.call_id)) fitting += 1;
    const known = waiting.get(call.call_id);
    if (!known || call.seq > known.seq) waiting.set(call.call_id, call);
  }
  while (waiting.size > WAITING_KEPT) {
    waiting.delete(waiting.keys().next().value);
    missed += 1;
  }
  lately.push([Date.now(), fitting, 0]);
}

function forget(id) {
  rows.get(id)?.remove();
  rows.delete(id);
}

/** Show what has come since the last turn: the newest, as many as one can follow. */
function turn() {
  if (!paused) {
    const all = [...waiting.values()].sort((a, b) => (a.call_id < b.call_id ? -1 : 1));
    const chosen = all.slice(-ROWS_A_TURN);
    waiting.clear();
    missed = 0;
    for (const call of chosen) {
      const row = blank.cloneNode(true);
      write(row, call);
      rows.set(call.call_id, row);
      body.prepend(row);
    }
    lately.push([Date.now(), 0, chosen.length]);
    while (body.rows.length > ROWS_KEPT) {
      const last = body.rows[body.rows.length - 1];
      rows.delete(last.dataset.call);
      last.remove();
    }
  }
  tell();
  setTimeout(() => (document.hidden ? turn() : requestAnimationFrame(turn)), TURN_MS);
}

function tell() {
  const since = Date.now() - WINDOW_MS;
  while (lately.length && lately[0][0] < since) lately.shift();
  const told = lately.reduce((sum, one) => sum + one[1], 0), shown = lately.reduce((sum, one) => sum + one[2], 0);
  const oneOf = shown ? Math.round(told / shown) : 1;
  set(share, !paused && oneOf > 1 ? fill(texts.one_of, { n: oneOf }) : "");
  set(state, paused && connection === "live" ? texts.paused : texts[connection]);
  state.className = `reach-badge reach-${paused ? "warn" : connection === "live" ? "good" : connection === "connecting" ? "idle" : "bad"}`;
  const more = waiting.size + missed;
  set(pause, !paused ? texts.pause : more ? `${texts.resume} (${fill(texts.waiting, { n: more })})` : texts.resume);
  empty.hidden = body.rows.length > 0;
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function changed(now, gap) {
  connection = now;
  if (gap) {
    const row = gapRow.cloneNode(true);
    row.querySelector("span").textContent = fill(texts.gap, { from: clock(gap[0]).slice(0, 8), to: clock(gap[1]).slice(0, 8) });
    body.prepend(row);
  }
  tell();
}

pause.addEventListener("click", () => { paused = !paused; tell(); });
document.querySelector("#live-filter select").addEventListener("change", event => event.target.form.submit());
document.getElementById("live-tools").hidden = false;
connect("/ws/calls", { hear, state: changed, beat: words.beat_s });
turn();
