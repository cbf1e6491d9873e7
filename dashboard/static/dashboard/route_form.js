// One route as a form: `show` fills the fields from it, `read` makes it anew of them. What the form has no field for
// stays as it is, and so does the order of what it has. Every field knows its place in the route, for mistakes.
import { escaped, listOf, listText, numberOf, scalarOf, textOf } from "./route_values.js";

const FREE = new Set(["input", "labels"]);
const COMPARING = ["ne", "gt", "gte", "lt", "lte", "exists", "prefix", "pattern"];

const isObject = value => value !== null && typeof value === "object" && !Array.isArray(value);

function at(route, path) {
  return path.split(".").reduce((value, name) => (isObject(value) ? value[name] : undefined), route);
}

function put(route, path, value) {
  const [first, ...rest] = path.split(".");
  if (!rest.length) {
    if (value === undefined) delete route[first];
    else route[first] = value;
    return;
  }
  if (value === undefined && !isObject(route[first])) return;
  const inner = isObject(route[first]) ? route[first] : {};
  put(inner, rest.join("."), value);
  if (Object.keys(inner).length) route[first] = inner;
  else delete route[first];
}

export class Rows {
  /** Repeated rows of fields within `box`, each made of `template`. */
  constructor(box, template, prepare = () => {}) {
    Object.assign(this, { box, template, prepare });
  }

  get all() {
    return [...this.box.children];
  }

  add(values = {}) {
    const row = this.template.content.firstElementChild.cloneNode(true);
    for (const field of row.querySelectorAll("[data-row]")) {
      const value = values[field.dataset.row];
      if (value !== undefined) choose(field, value);
    }
    this.box.append(row);
    this.prepare(row);
    return row;
  }

  show(list) {
    this.box.replaceChildren();
    for (const values of list) this.add(values);
  }
}

/** Set a field; a select that has no such option gets it, so that nothing is lost. */
function choose(field, value) {
  if (field.tagName === "SELECT" && ![...field.options].some(option => option.value === String(value))) {
    field.add(new Option(String(value), String(value)));
  }
  field.value = value;
}

const cell = (row, name) => row.querySelector(`[data-row="${name}"]`);
const held = (row, name) => cell(row, name).value.trim();

// --- Conditions ------------------------------------------------------------------------------------------------------

function conditionsOf(match) {
  const found = [];
  for (const [key, wanted] of Object.entries(match)) {
    if (key === "capability") continue;
    const dot = key.indexOf(".");
    const source = dot < 0 ? key : key.slice(0, dot), path = dot < 0 ? "" : key.slice(dot + 1);
    if (source === "tags") found.push({ source, operator: "include", value: listText(wanted) });
    else if (Array.isArray(wanted)) found.push({ source, path, operator: "in", value: listText(wanted) });
    else if (isObject(wanted)) {
      for (const [operator, operand] of Object.entries(wanted)) {
        found.push({ source, path, operator, value: operator === "in" ? listText(operand) : textOf(operand) });
      }
    } else found.push({ source, path, operator: "eq", value: textOf(wanted) });
  }
  return found;
}

function prepareCondition(row) {
  const source = held(row, "source"), operator = cell(row, "operator");
  cell(row, "path").hidden = !FREE.has(source);
  for (const option of operator.options) {
    option.hidden = option.disabled = source === "tags" ? option.value !== "include"
      : option.value === "include" || (source !== "input" && COMPARING.includes(option.value));
  }
  if (operator.selectedOptions[0]?.disabled) operator.value = source === "tags" ? "include" : "eq";
  if (operator.value === "exists" && held(row, "value") === "") cell(row, "value").value = "true";
}

/** The rows as a match, and the place of each: rows of one key are one condition. */
function matchOf(rows, capability) {
  const match = capability === undefined ? {} : { capability }, checks = new Map();
  for (const row of rows) {
    const source = held(row, "source");
    const key = FREE.has(source) ? `${source}.${held(row, "path")}` : source;
    checks.set(key, [...(checks.get(key) ?? []), row]);
  }
  for (const [key, group] of checks) {
    const place = `match/${escaped(key)}`;
    const single = group.length === 1 && ["eq", "in", "include"].includes(held(group[0], "operator"));
    if (single) match[key] = operandOf(group[0]);
    else match[key] = Object.fromEntries(group.map(row => [held(row, "operator"), operandOf(row)]));
    for (const row of group) row.dataset.place = single ? place : `${place}/${held(row, "operator")}`;
  }
  return match;
}

function operandOf(row) {
  const operator = held(row, "operator"), text = cell(row, "value").value;
  return operator === "in" || operator === "include" ? listOf(text) : scalarOf(text);
}

// --- Fallback rules --------------------------------------------------------------------------------------------------

const NEW_RULE = { condition: "no_available_node", action: "next_route" };

export function rulesShown(rules) {
  return (Array.isArray(rules) ? rules : []).filter(isObject).map(rule => ({
    condition: rule.condition ?? "", action: rule.action ?? "", wait_before_retry_ms: textOf(rule.wait_before_retry_ms),
    target: "capability" in rule ? "capability" : "service", name: rule.service ?? rule.capability ?? "",
  }));
}

export function prepareRule(row) {
  const action = held(row, "action"), hands = action === "route_to";
  cell(row, "target").hidden = cell(row, "name").hidden = !hands;
  cell(row, "wait_before_retry_ms").hidden = !["return_503", "retry"].includes(action);
  cell(row, "name").setAttribute("list", held(row, "target") === "capability" ? "known-capabilities" : "known-services");
}

export function rulesRead(rows, place) {
  return rows.map((row, index) => {
    row.dataset.place = `${place}/${index}`;
    const rule = { condition: held(row, "condition"), action: held(row, "action") };
    const wait = held(row, "wait_before_retry_ms");
    if (wait !== "" && !cell(row, "wait_before_retry_ms").hidden) rule.wait_before_retry_ms = numberOf(wait);
    if (rule.action === "route_to") rule[held(row, "target")] = held(row, "name");
    return rule;
  });
}

// --- The form --------------------------------------------------------------------------------------------------------

export class RouteForm {
  constructor(root, suggestions) {
    this.root = root;
    this.fields = suggestions.fields;
    const template = name => document.getElementById(`row-${name}`);
    const box = name => root.querySelector(`[data-rows="${name}"]`);
    this.rows = {
      conditions: new Rows(box("conditions"), template("conditions"), prepareCondition),
      services: new Rows(box("services"), template("services")),
      rules: new Rows(box("rules"), template("rules"), prepareRule),
    };
    this.plain = [...root.querySelectorAll("[data-at]")];
    for (const field of this.plain) field.closest("label").dataset.place = field.dataset.at.replaceAll(".", "/");
    this.capability = Object.fromEntries([...root.querySelectorAll("[data-capability]")].map(f => [f.dataset.capability, f]));
    this.capability.text.closest("label").dataset.place = "match/capability";
    this.capability.min_score.closest("label").dataset.place = "match/capability/min_score";
    this.own = root.querySelector("[data-own-rules]");
  }

  show(route) {
    this.route = route;
    for (const field of this.plain) {
      const value = at(route, field.dataset.at);
      if (field.dataset.kind === "on") field.checked = value !== false;
      else if (field.dataset.kind === "list") field.value = listText(value ?? []);
      else if (field.tagName === "SELECT") choose(field, value ?? "");
      else field.value = value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value);
    }
    const match = isObject(route.match) ? route.match : {}, wanted = match.capability;
    this.capability.kind.value = wanted === undefined ? "any" : isObject(wanted) ? "fuzzy" : "name";
    this.capability.text.value = isObject(wanted) ? wanted.fuzzy ?? "" : wanted ?? "";
    this.capability.min_score.value = isObject(wanted) ? textOf(wanted.min_score) : "";
    this.rows.conditions.show(conditionsOf(match));
    const strategy = isObject(route.strategy) ? route.strategy : {};
    const weights = isObject(strategy.weights) ? strategy.weights : {};
    const services = [...new Set([...(Array.isArray(strategy.services) ? strategy.services : []), ...Object.keys(weights)])];
    this.rows.services.show(services.map(service => ({ service, weight: textOf(weights[service]) })));
    this.own.checked = route.fallback_rules !== undefined;
    this.rows.rules.show(rulesShown(route.fallback_rules));
    this.arrange();
    this.read(); // so that every row knows its place
  }

  /** Show the fields that the choices ask for. */
  arrange() {
    const kind = this.capability.kind.value;
    for (const part of this.root.querySelectorAll("[data-if]")) part.hidden = !part.dataset.if.split(" ").includes(kind);
    const strategy = this.root.querySelector('[data-at="strategy.type"]').value;
    for (const part of this.root.querySelectorAll("[data-for]")) part.hidden = !part.dataset.for.split(" ").includes(strategy);
    for (const row of this.rows.services.all) cell(row, "weight").hidden = strategy !== "weighted_random";
    for (const row of this.rows.conditions.all) prepareCondition(row);
    for (const row of this.rows.rules.all) prepareRule(row);
    this.root.querySelector("[data-own-rules-part]").hidden = !this.own.checked;
    const names = this.fields[this.capability.text.value] ?? [];
    document.getElementById("known-fields").replaceChildren(...names.map(name => new Option(name, name)));
  }

  /** The route as the fields say it. */
  read() {
    const route = structuredClone(this.route);
    for (const field of this.plain) put(route, field.dataset.at, this.valueOf(field));
    route.match = matchOf(this.rows.conditions.all, this.capabilityRead());
    this.readServices(route);
    if (this.own.checked) route.fallback_rules = rulesRead(this.rows.rules.all, "fallback_rules");
    else delete route.fallback_rules;
    return route;
  }

  valueOf(field) {
    const text = field.value.trim();
    if (field.dataset.kind === "on") return field.checked ? undefined : false;
    if (field.closest("[data-for]")?.hidden || text === "") return undefined;
    if (field.dataset.kind === "number") return numberOf(text);
    return field.dataset.kind === "list" ? listOf(text).map(value => (typeof value === "string" ? value : textOf(value))) : text;
  }

  capabilityRead() {
    const text = this.capability.text.value.trim(), score = this.capability.min_score.value.trim();
    switch (this.capability.kind.value) {
      case "any": return undefined;
      case "fuzzy": return score === "" ? { fuzzy: text } : { fuzzy: text, min_score: numberOf(score) };
      default: return text;
    }
  }

  readServices(route) {
    const strategy = isObject(route.strategy) ? route.strategy : (route.strategy = {});
    delete strategy.services;
    delete strategy.weights;
    if (strategy.type === "exact") return;
    const rows = this.rows.services.all.map(row => [row, held(row, "service"), held(row, "weight")]);
    const weighted = strategy.type === "weighted_random" && rows.some(([, , weight]) => weight !== "");
    if (weighted) strategy.weights = Object.fromEntries(rows.map(([, name, weight]) => [name, numberOf(weight)]));
    else if (rows.length) strategy.services = rows.map(([, name]) => name);
    rows.forEach(([row, name], index) => (row.dataset.place = weighted ? `strategy/weights/${escaped(name)}` : `strategy/services/${index}`));
  }
}

export const newRow = name => (name.endsWith("rules") ? NEW_RULE : name === "conditions" ? { source: "input" } : {});

/** Show each mistake at the field that it is about: the one whose place is nearest. `others` gets those without one. */
export function showRemarks(root, remarks) {
  for (const note of root.querySelectorAll(".reach-remark")) note.remove();
  for (const field of root.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  const placed = [...root.querySelectorAll("[data-place]")];
  const homeless = [];
  for (const { inside, message, bad } of remarks) {
    const around = placed.filter(p => inside === p.dataset.place || inside.startsWith(`${p.dataset.place}/`));
    const within = placed.filter(p => p.dataset.place.startsWith(`${inside}/`));
    const home = around.sort((a, b) => b.dataset.place.length - a.dataset.place.length)[0] ?? within.find(p => !p.closest("[hidden]"));
    if (!home || home.closest("[hidden]")) {
      homeless.push(inside ? `${inside}: ${message}` : message);
      continue;
    }
    const note = document.createElement("small");
    note.className = `reach-remark${bad ? " reach-bad-text" : ""}`;
    note.textContent = message;
    home.append(note);
    if (bad) home.querySelector("input, select, textarea")?.setAttribute("aria-invalid", "true");
    home.closest("details")?.setAttribute("open", "");
  }
  root.querySelector("[data-errors]").textContent = homeless.join(" · ");
}
