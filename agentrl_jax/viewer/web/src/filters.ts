// Which rows the list shows, and in which order.

import { type Episodes, OUTCOMES, type Outcome } from "./data";

export interface Filters {
  /** 0 shows all. */
  iteration: number;
  outcomes: Outcome[];
  minReturn: string;
  maxReturn: string;
  minTurns: string;
  maxTurns: string;
  format: "any" | "broken" | "kept";
  /** Name of an alarm: only iterations in which it was raised. */
  alarm: string;
  text: string;
  order: "recorded" | "best" | "worst" | "longest";
}

export const NO_FILTERS: Filters = {
  iteration: 0,
  outcomes: OUTCOMES,
  minReturn: "",
  maxReturn: "",
  minTurns: "",
  maxTurns: "",
  format: "any",
  alarm: "",
  text: "",
  order: "recorded",
};

const bound = (text: string, otherwise: number) => (text.trim() === "" || Number.isNaN(Number(text)) ? otherwise : Number(text));

/** The rows that pass, of which `matches` are those that hold the text; null while no text is searched. */
export function filterRows(run: Episodes, filters: Filters, matches: Set<number> | null): number[] {
  const { iteration, turns, format_errors: errors } = run.rows;
  const returns = run.rows.return;
  const alarm = run.entry.alarms.find((entry) => entry.name === filters.alarm);
  const alarmed = alarm && new Set(alarm.iterations);
  const [low, high] = [bound(filters.minReturn, -Infinity), bound(filters.maxReturn, Infinity)];
  const bounded = low > -Infinity || high < Infinity;
  const [fewest, most] = [bound(filters.minTurns, -Infinity), bound(filters.maxTurns, Infinity)];
  const found = [];
  for (let row = 0; row < run.count; row++) {
    if (filters.iteration && iteration[row] !== filters.iteration) continue;
    if (returns[row] < low || returns[row] > high || turns[row] < fewest || turns[row] > most) continue;
    if (bounded && Number.isNaN(returns[row])) continue;
    if (filters.format !== "any" && errors[row] > 0 !== (filters.format === "broken")) continue;
    if (alarmed && !alarmed.has(iteration[row])) continue;
    if (matches && !matches.has(row)) continue;
    if (!filters.outcomes.includes(run.outcome(row))) continue;
    found.push(row);
  }
  const size = run.rows.tokens ?? run.rows.characters;
  const by = { best: (row: number) => -returns[row], worst: (row: number) => returns[row], longest: (row: number) => -size[row] };
  if (filters.order !== "recorded") {
    const order = by[filters.order];
    const key = (row: number) => (Number.isNaN(order(row)) ? Infinity : order(row)); // unknown returns come last
    found.sort((a, b) => key(a) - key(b) || a - b);
  }
  return found;
}

/** Searches all rows for a text, block by block, and reports after each; ends early once `stopped`. */
export async function search(run: Episodes, text: string, report: (found: Set<number>, done: number) => void, stopped: () => boolean) {
  const wanted = text.toLowerCase();
  const found = new Set<number>();
  let first = 0;
  const sizes = run.blockSizes;
  for (let n = 0; n < sizes.length; n++) {
    const texts = await run.searchTexts(n);
    if (stopped()) return;
    texts.forEach((known, row) => {
      if (known.includes(wanted)) found.add(first + row);
    });
    first += sizes[n];
    report(new Set(found), (n + 1) / sizes.length);
    await new Promise((resolve) => setTimeout(resolve));
  }
}
