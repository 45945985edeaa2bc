// Requests to the server. Every response is JSON, except for photos.

// Identifies this window, which undoes only its own steps, also after a reload. A duplicated tab gets
// a copy of the storage, so the ID is only there while no page uses it.
const windowId = sessionStorage.getItem("window") ?? crypto.randomUUID();
sessionStorage.removeItem("window");
addEventListener("pagehide", () => sessionStorage.setItem("window", windowId));
addEventListener("pageshow", () => sessionStorage.removeItem("window"));
let question = ""; // The photo that this window asks about.
const MAX_CACHED = 200; // Photos.
const cached = new Map();
// Session storage belongs to this tab and port only, and survives a reload.
let token = sessionStorage.getItem("token") ?? "";

/** An unsuccessful response, with its HTTP `status` and its `body`. */
export class RequestError extends Error {
  constructor(status, body) {
    super(body.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.body = body;
  }
}

/** Exchanges the secret in the address for the token, and removes it from the history. */
export async function open() {
  const secret = location.hash.slice(1);
  history.replaceState(null, "", "/");
  if (!secret) return;
  const headers = { "Content-Type": "application/json", "X-Token": secret };
  const answer = fetch("/api/open", { method: "POST", headers, body: "{}" });
  const response = await answer.catch(() => null);
  if (!response?.ok) return; // The code was used before. The stored token stays valid.
  token = (await response.json()).token;
  sessionStorage.setItem("token", token);
}

/** Opens the page in another tab, which has no access by itself. */
export function openWindow() {
  window.open(`/#${token}`, "_blank", "noopener");
}

/** Tells the server with each request which photo is asked about, or null. It then stays. */
export function setQuestion(image) {
  question = image ?? "";
}

export async function get(name) {
  return (await request(`/api/${name}`)).json();
}

export function post(verb, content = {}) {
  return send(verb, "json", JSON.stringify(content));
}

/** Sends a file, without its name: "try" classifies it, "add" stores it. */
export function upload(verb, file) {
  return send(verb, "octet-stream", file);
}

export async function getFile(path) {
  return (await request(path)).blob();
}

export function getPhoto(image, size) {
  const path = `/photos/${image}/${size}`;
  const photo = cached.get(path) ?? getFile(path);
  cached.delete(path);
  cached.set(path, photo); // It is now the most recently used.
  if (cached.size > MAX_CACHED) cached.delete(cached.keys().next().value);
  photo.catch(() => cached.delete(path));
  return photo;
}

async function send(verb, kind, body) {
  const type = { "Content-Type": `application/${kind}` };
  return (await request(`/api/${verb}`, { method: "POST", body }, type)).json();
}

async function request(path, options, type) {
  const headers = { ...type, "X-Token": token, "X-Window": windowId, "X-Question": question };
  const response = await fetch(path, { ...options, headers }).catch(() => {
    throw new RequestError(0, { message: "The server has stopped. Run `cls-jax label` again." });
  });
  if (response.ok) return response;
  const isJson = response.headers.get("Content-Type") === "application/json";
  const body = isJson ? await response.json() : { message: (await response.text()).trim() };
  throw new RequestError(response.status, body);
}
