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

for (const figure of document.querySelectorAll(".figures figure")) {
  const chart = figure.querySelector(".chart");
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
