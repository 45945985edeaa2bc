// A photo from near: by the wheel, the keys + and -, and over the whole screen.

const STEP = 1.5; // By which a key enlarges.
const WHEEL = 0.002; // The same for a pixel of the wheel, as a logarithm.
const MOST = 12;
const PAN = 0.15; // Of the frame, by an arrow key.

/**
 * The view after a change: { scale, x, y }, where the photo's center is moved by (x, y), in widths and
 * heights of the frame. The point `at` of the frame, from -0.5 to 0.5, stays where it is.
 */
export function zoomBy({ scale, x, y }, factor, at = { x: 0, y: 0 }) {
  const to = Math.max(1, Math.min(MOST, scale * factor));
  const ratio = to / scale;
  return panBy({ scale: to, x: at.x - (at.x - x) * ratio, y: at.y - (at.y - y) * ratio }, 0, 0);
}

/** The view after a move, which ends at the photo's edges. */
export function panBy({ scale, x, y }, right, down) {
  const most = (scale - 1) / 2;
  const limit = (value) => Math.max(-most, Math.min(most, value));
  return { scale, x: limit(x + right), y: limit(y + down) };
}

/** Enlarges what `frame` shows. */
export function createZoom(frame) {
  const whole = { scale: 1, x: 0, y: 0 };
  let view = whole;

  function show(next) {
    view = next;
    const { scale, x, y } = view;
    frame.classList.toggle("zoomed", scale > 1);
    if (frame.firstChild) frame.firstChild.style.transform = scale > 1 ? `translate(${100 * x}%, ${100 * y}%) scale(${scale})` : "";
  }

  frame.addEventListener("wheel", (event) => {
    const { left, top, width, height } = frame.getBoundingClientRect();
    const at = { x: (event.clientX - left) / width - 0.5, y: (event.clientY - top) / height - 0.5 };
    show(zoomBy(view, Math.exp(-WHEEL * event.deltaY), at));
    event.preventDefault();
  });
  frame.addEventListener("pointermove", ({ buttons, movementX, movementY }) => {
    if (buttons) show(panBy(view, movementX / frame.clientWidth, movementY / frame.clientHeight));
  });

  // All of the page, so that what the keys do stays in sight.
  const toggleScreen = () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen());
  frame.addEventListener("dblclick", toggleScreen);

  return {
    reset: () => show(whole),
    /** Handles a key; returns whether it did. Arrows move a photo that is enlarged. */
    onKey({ key }) {
      const moves = { ArrowLeft: [PAN, 0], ArrowRight: [-PAN, 0], ArrowUp: [0, PAN], ArrowDown: [0, -PAN] };
      if (key === "+") show(zoomBy(view, STEP));
      else if (key === "-") show(zoomBy(view, 1 / STEP));
      else if (key === "*") toggleScreen();
      else if (view.scale === 1) return false;
      else if (moves[key]) show(panBy(view, ...moves[key]));
      else if (key === "Escape") show(whole);
      else return false;
      return true;
    },
  };
}
