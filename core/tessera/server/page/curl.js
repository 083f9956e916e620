// A request as a shell command.

import { load } from "./storage.js";

const MOST_ARGUMENT = 100_000; // Linux takes 131,071 bytes

export function curl(route, body) {
  const url = new URL(route, location.href).href;
  const data = JSON.stringify(body, null, 2);
  const key = load("key", null) === null ? "" : ' -H "Authorization: Bearer $TESSERA_API_KEY"';
  const head = `curl -N ${url}${key} -H 'Content-Type: application/json'`;
  if (data.length > MOST_ARGUMENT) return `${head} --data-binary @- <<'END'\n${data}\nEND\n`;
  return `${head} -d '${data.replaceAll("'", "'\\''")}'`;
}
