// A request as a shell command.

import { load } from "./storage.js";

export function curl(route, body) {
  const url = new URL(route, location.href).href;
  const data = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const key = load("key", null) === null ? "" : ' -H "Authorization: Bearer $TESSERA_API_KEY"';
  return `curl -N ${url}${key} -H 'Content-Type: application/json' -d '${data}'`;
}
