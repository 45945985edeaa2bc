// A rectangle that a mouse or pen draws over a grid. A finger scrolls instead.

const DRAG_PIXELS = 5; // From which a press becomes a rectangle.
const EDGE = 50; // Pixels from the window's edge where it scrolls.

/** Follows a press on `element`. `onStretch` gets the rectangle in the element's pixels. */
export function drawBand(press, element, band, getMargins, onStretch) {
  const closing = new AbortController();
  const start = locate(press);
  let last = press;
  let isDrawn = false;
  let scrolling = 0;

  function locate({ clientX, clientY }) {
    const { left, top } = element.getBoundingClientRect();
    return { x: clientX - left, y: clientY - top };
  }

  function onMove(event) {
    last = event;
    if (!isDrawn && Math.hypot(event.clientX - press.clientX, event.clientY - press.clientY) < DRAG_PIXELS) return;
    if (!isDrawn) element.setPointerCapture(press.pointerId);
    isDrawn = true;
    stretch();
    scrolling ||= requestAnimationFrame(scroll);
  }

  function scroll() {
    const { above, below } = getMargins();
    const over = Math.max(0, last.clientY - (innerHeight - below - EDGE));
    const distance = over + Math.min(0, last.clientY - (above + EDGE));
    if (distance) {
      scrollBy(0, distance / 3);
      stretch();
    }
    scrolling = requestAnimationFrame(scroll);
  }

  function stretch() {
    const end = locate(last);
    const [left, right] = [Math.min(start.x, end.x), Math.max(start.x, end.x)];
    const [top, bottom] = [Math.min(start.y, end.y), Math.max(start.y, end.y)];
    band.hidden = false;
    band.style.transform = `translate(${left}px, ${top}px)`;
    band.style.width = `${right - left}px`;
    band.style.height = `${bottom - top}px`;
    onStretch({ left, right, top, bottom });
  }

  function stop() {
    closing.abort();
    cancelAnimationFrame(scrolling);
    band.hidden = true;
  }

  element.addEventListener("pointermove", onMove, { signal: closing.signal });
  for (const type of ["pointerup", "pointercancel"]) element.addEventListener(type, stop, { signal: closing.signal });
}
