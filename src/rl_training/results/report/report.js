"use strict";

for (const box of document.querySelectorAll(".command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(box.querySelector("code").textContent);
    button.textContent = "Copied";
  });
  box.append(button);
}

for (const chart of document.querySelectorAll(".chart[data-steps]")) {
  const figure = chart.closest("figure");
  const pointer = chart.querySelector(".pointer");
  const readout = figure.querySelector(".readout");
  const [first, last] = chart.dataset.steps.split(" ").map(Number);
  const [left, right, top, bottom] = chart.dataset.plot.split(" ").map(Number);
  const series = [...chart.querySelectorAll(".centre")].map((path) => ({
    label: path.parentNode.dataset.label,
    points: path.dataset.points.split(" ").map((point) => point.split(",").map(Number)),
  }));
  const nearest = (points, step) =>
    points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));

  chart.addEventListener("pointermove", (event) => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    const x = Math.min(Math.max(place.x, left), right);
    const step = first + ((x - left) / (right - left)) * (last - first);
    const values = series.map(({ label, points }) => {
      const [at, value] = nearest(points, step);
      return `${label}: ${value.toLocaleString("en")} at ${at.toLocaleString("en")}`;
    });
    pointer.setAttribute("d", `M${x} ${top}V${bottom}`);
    readout.textContent = values.join(" · ");
  });
  chart.addEventListener("pointerleave", () => {
    pointer.removeAttribute("d");
    readout.textContent = "";
  });
}

const nearestReadout = (node) => {
  while (node !== null && node.querySelector(".readout") === null) node = node.parentElement;
  return node === null ? null : node.querySelector(".readout");
};

const describeTrial = (trial) => {
  const row = document.querySelector(`tr[data-trial="${trial}"]`);
  const names = [...row.closest("table").querySelectorAll("th")].map((head) => head.textContent);
  const cells = [...row.cells].map((cell) => cell.textContent);
  return cells.slice(0, -1).map((text, index) => `${names[index]} ${text}`).join(" · ");
};

let readout = null;
document.addEventListener("pointerover", (event) => {
  const mark = event.target.closest("[data-trial]");
  for (const node of document.querySelectorAll(".picked")) node.classList.remove("picked");
  if (readout !== null) readout.textContent = "";
  readout = null;
  if (mark === null) return;
  const trial = mark.dataset.trial;
  for (const node of document.querySelectorAll(`[data-trial="${trial}"]`)) node.classList.add("picked");
  if (mark.closest("svg") === null) return;
  readout = nearestReadout(mark);
  readout.textContent = describeTrial(trial);
});
