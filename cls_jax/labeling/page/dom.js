// Builds elements. Names of files and classes become text, never markup.

/**
 * Creates an element.
 * Properties that are functions become listeners, as in { click: confirm }; the others attributes.
 */
export function create(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A button that gives the focus back after a click with the mouse, so that keys go to the page. */
export function createButton(properties, ...children) {
  const { click, ...others } = properties;
  const onClick = (event) => {
    if (event.detail > 0) event.currentTarget.blur(); // 0 if the keyboard pressed it.
    click(event);
  };
  return create("button", { type: "button", click: onClick, ...others }, ...children);
}

export function createPhotograph({ image, name }, size) {
  return create("img", { src: `/photographs/${image}/${size}`, alt: name, draggable: "false" });
}

export function formatPercent(share) {
  return `${Math.round(100 * share)}%`;
}

export function formatCount(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}
