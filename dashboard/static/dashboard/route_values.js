// Values of a route as people type them, and back. Types are strict: 5 is a number, "5" (with quotes) a text.
const LITERAL = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)$/;

/** One scalar as it was typed → its value. */
export function scalarOf(text) {
  const typed = text.trim();
  if (LITERAL.test(typed)) return JSON.parse(typed);
  if (/^".*"$/s.test(typed)) {
    try {
      return JSON.parse(typed);
    } catch {
      return typed;
    }
  }
  return typed;
}

/** A value → what somebody would type for it. Within a list commas need quotes, too. */
export function textOf(value, within = false) {
  if (value === undefined) return "";
  if (typeof value !== "string") return JSON.stringify(value);
  const bare = value !== "" && value === value.trim() && !LITERAL.test(value) && !value.startsWith('"') && !(within && value.includes(","));
  return bare ? value : JSON.stringify(value);
}

/** A list as it was typed, with commas between its values. */
export function listOf(text) {
  const parts = text.match(/\s*(?:"(?:[^"\\]|\\.)*"|[^,]*)\s*(?:,|$)/gs) ?? [];
  return parts.map(part => part.replace(/,\s*$/s, "").trim()).filter(part => part !== "").map(scalarOf);
}

export const listText = values => (Array.isArray(values) ? values.map(value => textOf(value, true)).join(", ") : textOf(values));

/** What a field of numbers holds: a number where it is one; else the text, which the server will complain of. */
export const numberOf = text => (LITERAL.test(text.trim()) ? JSON.parse(text.trim()) : text.trim());

export const escaped = key => String(key).replaceAll("~", "~0").replaceAll("/", "~1");
