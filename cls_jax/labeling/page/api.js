// Requests to the server. Every answer is JSON.

// Tells the windows of one person apart: each one undoes its own steps.
const WINDOW = crypto.randomUUID();

/** An answer other than success; `status` is the HTTP status, `body` what the server said. */
export class RequestError extends Error {
  constructor(status, body) {
    super(body.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.body = body;
  }
}

export function get(name) {
  return send(`/api/${name}`, {});
}

export function post(verb, content = {}) {
  const headers = { "Content-Type": "application/json" };
  return send(`/api/${verb}`, { method: "POST", headers, body: JSON.stringify(content) });
}

async function send(path, options) {
  const headers = { ...options.headers, "X-Window": WINDOW };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new RequestError(0, { message: "cls-jax label has ended. Start it again to go on." });
  }
  const isJson = response.headers.get("Content-Type") === "application/json";
  const body = isJson ? await response.json() : { message: (await response.text()).trim() };
  if (!response.ok) throw new RequestError(response.status, body);
  return body;
}
