// How many of the other photos are named right, as it has changed with the answers.

import { create } from "./dom.js";

const SIZE = { width: 300, height: 80 }; // As in index.html.

/** A curve over the number of answers. Its element is hidden before there are two points. */
export function createEstimate() {
  const picture = document.getElementById("estimate").content.firstElementChild.cloneNode(true);
  const [band, line] = picture.children;
  const caption = create("p", { class: "hint" });
  const element = create("div", { class: "estimate", hidden: true }, picture, caption);

  /** `points` are numbers of answers, the accuracy in percent, and the ends of its interval. */
  function show(points) {
    element.hidden = points.length < 2;
    if (element.hidden) return;
    const [[first], [last]] = [points[0], points.at(-1)];
    const place = (answers, percent) => {
      const x = ((answers - first) / (last - first || 1)) * SIZE.width;
      return `${x.toFixed(1)},${((1 - percent / 100) * SIZE.height).toFixed(1)}`;
    };
    line.setAttribute("points", points.map(([n, percent]) => place(n, percent)).join(" "));
    const lower = points.map(([n, , low]) => place(n, low));
    const upper = points.map(([n, , , high]) => place(n, high));
    band.setAttribute("points", [...upper, ...lower.reverse()].join(" "));
    const describe = ([n, percent]) => `${Math.round(percent)}% after ${n.toLocaleString("en")} answers`;
    caption.textContent = `Named right: ${describe(points[0])}, ${describe(points.at(-1))}.`;
    picture.setAttribute("aria-label", points.map(describe).join(", "));
  }

  return { element, show };
}
