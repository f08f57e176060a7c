// What a reader has chosen on a live page, kept over its reloads. A page from disk keeps nothing.

import { useState } from "preact/hooks";

let key = "";
let kept: Record<string, unknown> = {};

/** Starts to keep, for a page with these names; called once, before anything is drawn. */
export function startKeeping(names: string[]): void {
  key = `agentrl-view ${names.join(" ")}`;
  try {
    kept = JSON.parse(sessionStorage.getItem(key) ?? "{}");
  } catch {
    kept = {}; // storage may be refused
  }
}

export function keptValue<T>(name: string): T | undefined {
  return kept[name] as T | undefined;
}

export function keep(name: string, value: unknown): void {
  if (!key) return;
  kept[name] = value;
  try {
    sessionStorage.setItem(key, JSON.stringify(kept));
  } catch {
    // see above
  }
}

/** A state that starts with what was kept under a name. */
export function useKept<T>(name: string, start: T): [T, (value: T) => void] {
  const [value, setValue] = useState<T>(() => keptValue<T>(name) ?? start);
  const set = (changed: T) => {
    keep(name, changed);
    setValue(changed);
  };
  return [value, set];
}
