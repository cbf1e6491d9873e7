// The two ways to write a payload: fields or JSON. Without this module both are on the page, and the tick says which counts.
const tick = document.querySelector("[data-raw]");

function show() {
  document.querySelector("[data-fields]").hidden = tick.checked;
  document.querySelector("[data-json]").hidden = !tick.checked;
}

if (tick) {
  tick.addEventListener("change", show);
  show();
}
document.querySelector(".reach-mistaken :is(input, select, textarea):not([hidden])")?.focus();
