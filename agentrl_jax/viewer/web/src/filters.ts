// Which rows the list shows, and in which order.

import { type Episodes, OUTCOMES, type Outcome } from "./data";
import { rounded } from "./text";

/** In place of the number of an iteration, which may be 0: all of them. */
export const ALL = -1;

export interface Filters {
  /** An iteration of a run, or a training step of a log; or `ALL`. */
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
  iteration: ALL,
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

/** The number in a field, which may have the minus sign that the page writes; NaN if it is none, undefined if it is empty. */
function numberIn(text: string): number | undefined {
  return text.trim() === "" ? undefined : Number(text.trim().replace("−", "-"));
}

const bound = (text: string, otherwise: number) => {
  const known = numberIn(text);
  return known === undefined || Number.isNaN(known) ? otherwise : known;
};

/** What is wrong with the two fields of a range: which of them, and a word; both are right if the word is empty. */
export function rangeFlaw(low: string, high: string): { low: boolean; high: boolean; word: string } {
  const [from, to] = [numberIn(low), numberIn(high)];
  const wrong = { low: Number.isNaN(from), high: Number.isNaN(to) };
  if (wrong.low || wrong.high) return { ...wrong, word: "no number, ignored" };
  const crossed = from !== undefined && to !== undefined && from > to;
  return { low: crossed, high: crossed, word: crossed ? "lowest is above highest" : "" };
}

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
    if (filters.iteration !== ALL && iteration[row] !== filters.iteration) continue;
    const shown = rounded(returns[row]); // a reader types what the list says, which is not quite the stored number
    if (shown < low || shown > high || turns[row] < fewest || turns[row] > most) continue;
    if (bounded && Number.isNaN(shown)) continue;
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
