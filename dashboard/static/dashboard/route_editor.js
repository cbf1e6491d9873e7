// The route editor: a list of routes, a form of one, and the whole table as YAML, each true to the others. The text is
// what is saved. Whoever edits the text gets the form anew, whoever edits the form the text; the server, which has the
// one reader and writer of YAML, makes either of the other and says what is wrong with it and where.
import { newRow, prepareRule, RouteForm, Rows, rulesRead, rulesShown, showRemarks } from "./route_form.js";

const AFTER_TYPING_MS = 300;
const RULES = "fallback_rules";

const page = document.querySelector("[data-editor]");
const find = selector => page.querySelector(selector);
const given = id => JSON.parse(document.getElementById(id).textContent);
const words = find("[data-words]").dataset;
const text = find("#id_text"), picks = find("[data-picks]"), state = find("[data-checked]");
const routeForm = new RouteForm(find("[data-route-form]"), given("suggestions"));
const rulesForm = find("[data-rules-form]");
const tableRules = new Rows(rulesForm.querySelector("[data-rows]"), document.getElementById("row-rules"), prepareRule);

let found = given("found");      // what the server said last
let table = found.document;      // the table as the form has it; null while the text cannot be read
let chosen = null;               // index of the route that the form shows; RULES; null
let waiting = null, running = null, asked = 0, answered = 0, changed = false;

// --- Asking the server -----------------------------------------------------------------------------------------------

async function check(body) {
  const number = ++asked;
  state.textContent = state.dataset.checking;
  const base_revision = find("[name=base_revision]").value;
  try {
    const answer = await fetch(page.dataset.check, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRFToken": find("[name=csrfmiddlewaretoken]").value },
      body: JSON.stringify({ ...body, base_revision }),
    });
    if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
    const told = await answer.json();
    if (number === asked) take(told, "text" in body);
  } catch {
    if (number === asked) state.textContent = state.dataset.lost;
  }
  answered = Math.max(answered, number);
}

function later(body) {
  changed = true;
  clearTimeout(waiting?.timer);
  const ask = () => {
    waiting = null;
    return (running = check(body()));
  };
  waiting = { ask, timer: setTimeout(ask, AFTER_TYPING_MS) };
}

/** Everything that was typed has been looked at. */
async function settled() {
  if (waiting) {
    clearTimeout(waiting.timer);
    waiting.ask();
  }
  await running;
}

function take(told, fromText) {
  found = told;
  if (!fromText) text.value = told.text;
  else if (told.document) {
    const id = idOf(chosen);
    table = told.document;
    chosen = indexOf(id);
    showForm();
  }
  const unreadable = told.document === null;
  find("[data-unreadable]").hidden = !unreadable;
  for (const form of [routeForm.root, rulesForm]) form.disabled = unreadable;
  showPicks();
  showMistakes();
}

// --- What is shown ---------------------------------------------------------------------------------------------------

const routes = () => table?.routes ?? [];
const idOf = index => (index === RULES ? RULES : routes()[index]?.id);
const indexOf = id => (id === RULES ? RULES : id === undefined ? null : orNull(routes().findIndex(route => route?.id === id)));
const orNull = index => (index < 0 ? null : index);

function showPicks() {
  const ranks = new Map(found.order.map((id, rank) => [id, rank]));
  const order = routes().map((route, index) => ({ route, index, rank: ranks.get(route?.id) ?? Infinity }));
  order.sort((a, b) => a.rank - b.rank || a.index - b.index);
  const wrong = new Set(found.mistakes.map(one => Number(/^\/routes\/(\d+)/.exec(one.path)?.[1] ?? NaN)));
  const items = order.map(({ route, index }) => pick(index, route?.id || words.unnamed, route?.priority ?? 0,
    [found.edits[route?.id], wrong.has(index) && "mistake"]));
  items.push(pick(RULES, words.rules, null, [found.mistakes.some(one => one.path.startsWith(`/${RULES}`)) && "mistake"]));
  if (!routes().length) items.unshift(Object.assign(document.createElement("li"), { className: "reach-soft", textContent: words.none }));
  picks.replaceChildren(...items);
  filter();
}

function pick(index, name, priority, marks) {
  const item = document.getElementById("pick").content.firstElementChild.cloneNode(true);
  const button = item.firstElementChild;
  button.dataset.index = index;
  item.querySelector(".reach-pick-id").textContent = name;
  item.querySelector(".reach-pick-priority").textContent = priority ?? "";
  for (const mark of marks.filter(Boolean)) {
    const badge = Object.assign(document.createElement("span"), {
      className: `reach-badge reach-${{ added: "good", changed: "warn", mistake: "bad" }[mark]}`, textContent: words[mark],
    });
    item.querySelector(".reach-pick-marks").append(badge);
  }
  if (String(index) === String(chosen)) button.setAttribute("aria-current", "true");
  return item;
}

function filter() {
  const wanted = find("[data-filter]").value.trim().toLowerCase();
  for (const item of picks.children) {
    const index = item.firstElementChild?.dataset?.index;
    item.hidden = wanted !== "" && !JSON.stringify(routes()[index] ?? item.textContent).toLowerCase().includes(wanted);
  }
}

function showForm() {
  const route = typeof chosen === "number" ? routes()[chosen] : null;
  const usable = route !== null && typeof route === "object" && !Array.isArray(route);
  routeForm.root.hidden = !usable;
  rulesForm.hidden = chosen !== RULES;
  if (usable) routeForm.show(route);
  if (chosen === RULES) {
    tableRules.show(rulesShown(table?.[RULES]));
    rulesRead(tableRules.all, RULES);
  }
}

function showMistakes() {
  const remarks = [...found.mistakes.map(one => ({ ...one, bad: true })), ...found.warnings];
  state.textContent = found.mistakes.length ? "" : state.dataset.fine;
  text.setAttribute("aria-invalid", String(found.mistakes.length > 0));
  find("[data-remarks]").replaceChildren(...remarks.map(one => {
    const item = document.createElement("li"), jump = document.createElement("button");
    jump.type = "button";
    jump.className = `reach-jump${one.bad ? " reach-bad-text" : ""}`;
    jump.textContent = [`${find("[data-remarks]").dataset.line} ${one.line}`, one.route, one.path].filter(Boolean).join(" · ");
    jump.addEventListener("click", () => {
      const index = /^\/routes\/(\d+)/.exec(one.path)?.[1];
      if (index !== undefined && found.document) choose(Number(index), false);
      toLine(one.line, true);
    });
    item.append(jump, ` ${one.message}`);
    return item;
  }));
  const prefix = chosen === RULES ? `/${RULES}` : `/routes/${chosen}`;
  const here = remarks.filter(one => one.path === prefix || one.path.startsWith(`${prefix}/`)).map(one => ({
    ...one, inside: chosen === RULES ? one.path.slice(1) : one.path.slice(prefix.length + 1),
  }));
  showRemarks(chosen === RULES ? rulesForm : routeForm.root, here);
}

function choose(index, scroll = true) {
  chosen = index;
  showForm();
  showPicks();
  showMistakes();
  const line = found.lines[index];
  if (scroll && line) toLine(line, false);
}

/** Bring a line of the text into view; with `focus` the cursor goes there, too. */
function toLine(line, focus) {
  const start = text.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  const height = parseFloat(getComputedStyle(text).lineHeight) || 20;
  text.scrollTop = Math.max(0, (line - 2) * height);
  if (focus) {
    text.focus();
    const end = text.value.indexOf("\n", start);
    text.setSelectionRange(start, end < 0 ? text.value.length : end);
  }
}

// --- What people do --------------------------------------------------------------------------------------------------

function edited() {
  if (!table) return;
  if (chosen === RULES) {
    for (const row of tableRules.all) prepareRule(row);
    table[RULES] = rulesRead(tableRules.all, RULES);
  } else if (typeof chosen === "number") {
    routeForm.arrange();
    table.routes[chosen] = routeForm.read();
  } else return;
  later(() => ({ document: table }));
}

function freeId(like) {
  const taken = new Set(routes().map(route => route?.id));
  for (let number = 2; ; number++) if (!taken.has(`${like}_${number}`)) return `${like}_${number}`;
}

function addRoute(route) {
  table ??= { routes: [] };
  table.routes.push(route);
  choose(table.routes.length - 1, false);
  later(() => ({ document: table }));
  const id = routeForm.root.querySelector('[data-at="id"]');
  id.focus();
  id.select();
}

const doing = {
  new: () => addRoute({ id: freeId("route"), match: { capability: "" }, strategy: { type: "least_loaded" }, priority: 0 }),
  copy: () => addRoute({ ...structuredClone(routes()[chosen]), id: freeId(idOf(chosen) || "route") }),
  remove: () => {
    table.routes.splice(chosen, 1);
    choose(null);
    later(() => ({ document: table }));
    picks.querySelector("button")?.focus();
  },
};

page.addEventListener("click", event => {
  const button = event.target.closest("button[type=button]");
  if (!button) return;
  if (button.dataset.index !== undefined) choose(button.dataset.index === RULES ? RULES : Number(button.dataset.index));
  else if (button.dataset.do) doing[button.dataset.do]();
  else if (button.dataset.add) {
    const rows = button.dataset.add === "table-rules" ? tableRules : routeForm.rows[button.dataset.add];
    const row = rows.add(newRow(button.dataset.add));
    edited();
    row.querySelector("input:not([hidden]), select")?.focus();
  } else if (button.dataset.drop !== undefined) {
    const row = button.closest(".reach-row"), next = row.nextElementSibling ?? row.previousElementSibling;
    const back = next?.querySelector("[data-drop]") ?? row.parentElement.parentElement.querySelector("[data-add]");
    row.remove();
    edited();
    back?.focus();
  }
});
for (const form of [routeForm.root, rulesForm]) form.addEventListener("input", edited);
text.addEventListener("input", () => later(() => ({ text: text.value })));
find("[data-filter]").addEventListener("input", filter);
find("[data-filter]").addEventListener("keydown", event => event.key === "Enter" && event.preventDefault());
routeForm.root.addEventListener("keydown", event => event.key === "Enter" && event.target.tagName === "INPUT" && event.preventDefault());
rulesForm.addEventListener("keydown", event => event.key === "Enter" && event.target.tagName === "INPUT" && event.preventDefault());

let leaving = false;
page.addEventListener("input", () => (changed = true));
page.addEventListener("submit", async event => {
  if (!waiting && answered === asked) {
    leaving = true;
    return;
  }
  event.preventDefault();
  await settled();
  setTimeout(() => page.requestSubmit(event.submitter)); // a form that is being submitted cannot be submitted
});
addEventListener("beforeunload", event => {
  if (changed && !leaving) event.preventDefault();
});

find("[data-form-side]").hidden = false;
page.dataset.ready = "";
take(found, true);
const wrong = found.mistakes.map(one => /^\/routes\/(\d+)/.exec(one.path)?.[1]).find(Boolean);
const telling = found.order.find(id => found.edits[id]) ?? found.order[0];
choose(wrong !== undefined && table ? Number(wrong) : indexOf(telling));
changed = find("[aria-invalid=true]") !== null;
