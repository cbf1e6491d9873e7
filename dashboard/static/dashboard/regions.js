// Parts of a page (`data-region`, each with an id) that are fetched again and replaced where the server says otherwise.
const source = new Map([...document.querySelectorAll("[data-region]")].map(region => [region.id, region.innerHTML]));
const trouble = document.getElementById("refresh-trouble");

function replace(region, other) {
  if (source.get(region.id) === other.innerHTML) return;
  if (region.contains(document.activeElement) && document.activeElement.matches("button, input, a, summary, [tabindex]")) return;
  const opened = [...region.querySelectorAll("details")].map(details => details.open);
  source.set(region.id, other.innerHTML);
  region.replaceChildren(...other.childNodes);
  region.className = other.className;
  region.toggleAttribute("data-open", other.hasAttribute("data-open"));
  const details = region.querySelectorAll("details");
  if (details.length === opened.length) details.forEach((one, n) => { one.open = opened[n]; });
  for (const button of region.querySelectorAll("[data-copy]")) button.hidden = false;
}

/** Fetch the page again and take over what has changed; the new page, or null where there is none to be had. */
export async function refresh(away) {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const regions = [...document.querySelectorAll("[data-region]")];
    if (fresh.querySelectorAll("[data-region], [data-chart]").length !== document.querySelectorAll("[data-region], [data-chart]").length) {
      location.reload(); // it has other parts now
      return null;
    }
    for (const region of regions) {
      const other = fresh.getElementById(region.id);
      if (other) replace(region, other);
    }
    trouble.textContent = "";
    return fresh;
  } catch {
    trouble.textContent = away;
    return null;
  }
}
