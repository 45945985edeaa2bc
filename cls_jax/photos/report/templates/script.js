// Values under the pointer. Without scripts the page only lacks these.
for (const chart of document.querySelectorAll("svg[data-traces]")) {
  const traces = JSON.parse(chart.dataset.traces).map(({ name, points }, i) => ({
    name,
    points,
    dot: addShape(chart, "circle", { r: 3.5, class: `dot s${(i % 6) + 1}`, stroke: "currentColor" }),
  }));
  const rule = addShape(chart, "path", { class: "rule" });
  const readout = chart.parentElement.querySelector(".readout");

  function show(event) {
    const box = chart.getBoundingClientRect();
    const pointer = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    const nearest = traces.map(({ name, points, dot }) => {
      const distance = ([x]) => Math.abs(x - pointer);
      const [x, y, place, value] = points.reduce((a, b) => (distance(b) < distance(a) ? b : a));
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
      return { x, place, text: `${name} ${value}` };
    });
    rule.setAttribute("d", `M${nearest[0].x} 10V224`);
    readout.textContent = `${nearest[0].place}: ${nearest.map(({ text }) => text).join(", ")}`;
    chart.classList.add("active");
  }

  function hide() {
    readout.textContent = "";
    chart.classList.remove("active");
  }

  chart.addEventListener("pointermove", show);
  chart.addEventListener("pointerdown", show);
  chart.addEventListener("pointerleave", hide);
}

function addShape(chart, name, attributes) {
  const shape = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
  return chart.appendChild(shape);
}
