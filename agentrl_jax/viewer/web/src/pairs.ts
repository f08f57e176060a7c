// The levels that two runs, or evaluations, share, and how their episodes on them differ.

import { Block, type Episodes, Run, UNANSWERED } from "./data";
import { Log, LogBlock } from "./log";

export interface Shared {
  task: string;
  level: string;
  /** Rows of the first and of the second run on this level. */
  rows: [number[], number[]];
  /** NaN where no episode was answered. */
  success: [number, number];
  returns: [number, number];
}

/** The mean of the values that are known; NaN if none is. */
function mean(rows: number[], value: (row: number) => number): number {
  const known = rows.map(value).filter((found) => !Number.isNaN(found));
  return known.reduce((sum, found) => sum + found, 0) / known.length;
}

/** The size of a difference; an unknown value differs from nothing. */
export const gap = ([a, b]: [number, number]) => Math.abs(a - b) || 0;

function byLevel(run: Episodes): Map<string, number[]> {
  const found = new Map<string, number[]>();
  for (let row = 0; row < run.count; row++) {
    if (!run.level(row) || !run.finished(row)) continue;
    const key = `${run.level(row)} ${run.task(row)}`;
    const rows = found.get(key);
    if (rows) rows.push(row);
    else found.set(key, [row]);
  }
  return found;
}

/** The shared levels, those first on which success differs most, then those on which the return does. */
export function sharedLevels(one: Episodes, two: Episodes): Shared[] {
  const others = byLevel(two);
  const found: Shared[] = [];
  const solved = (run: Episodes) => (row: number) => (UNANSWERED.includes(run.outcome(row)) ? NaN : Number(run.outcome(row) === "solved"));
  for (const [key, rows] of byLevel(one)) {
    const other = others.get(key);
    if (!other) continue;
    found.push({
      level: key.slice(0, 16),
      task: key.slice(17),
      rows: [rows, other],
      success: [mean(rows, solved(one)), mean(other, solved(two))],
      returns: [mean(rows, (row) => one.rows.return[row]), mean(other, (row) => two.rows.return[row])],
    });
  }
  return found.sort((a, b) => gap(b.success) - gap(a.success) || gap(b.returns) - gap(a.returns));
}

/** An episode with its decoded block. */
export type Shown = [Run, Block, number] | [Log, LogBlock, number];

type Kind = "replies of an API model" | "replies" | "actions";

/** What an agent did in each turn: the names of its actions, or its replies to a service or of a model behind an API. */
function acts(shown: Shown): { kind: Kind; turns: string[] } {
  const [run, block, row] = shown;
  if (block instanceof LogBlock) {
    const replies = block.messages((run as Log).within(row)).filter((message) => message.role === "assistant");
    return { kind: "replies of an API model", turns: replies.map((message) => message.text) };
  }
  const { pieces } = run as Run;
  const turns = block.turns(run.rows.row[row]);
  if ((run as Run).freeText(row)) return { kind: "replies", turns: turns.map((turn) => block.reply(turn, pieces)) };
  return { kind: "actions", turns: turns.map((turn) => [...turn.actions].map((action) => (run as Run).actionName(row, action)).join("\n")) };
}

/** The first turn in which two episodes differ, -1 if there is none, and in what; null for one of each kind. */
export function firstDifference(one: Shown, two: Shown): { turn: number; what: "replies" | "actions" } | null {
  const [a, b] = [acts(one), acts(two)];
  if (a.kind !== b.kind) return null;
  const most = Math.max(a.turns.length, b.turns.length);
  const turn = Array.from({ length: most }, (_, i) => i).find((i) => a.turns[i] !== b.turns[i]) ?? -1;
  return { turn, what: a.kind === "actions" ? "actions" : "replies" };
}
