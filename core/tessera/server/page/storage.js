// What the page remembers, in this tab only: the browser deletes it when the tab is closed.

const memory = new Map(); // stands in where the storage is full or switched off

export function load(name, otherwise) {
  if (memory.has(name)) return JSON.parse(memory.get(name));
  try {
    return JSON.parse(sessionStorage.getItem(`tessera.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function save(name, value) {
  const text = JSON.stringify(value);
  try {
    sessionStorage.setItem(`tessera.${name}`, text);
    memory.delete(name);
  } catch {
    memory.set(name, text);
  }
}

export function forget(name) {
  memory.delete(name);
  try {
    sessionStorage.removeItem(`tessera.${name}`);
  } catch {
    // There is no storage, so nothing is in it.
  }
}
