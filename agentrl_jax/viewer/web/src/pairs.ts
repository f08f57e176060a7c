// The levels that two runs share, and how their episodes on them differ.

import type { Block, Run } from "./data";

export interface Shared {
  task: string;
  level: string;
  /** Rows of the first and of the second run on this level. */
  rows: [number[], number[]];
  success: [number, number];
  returns: [number, number];
}

const mean = (rows: number[], value: (row: number) => number) => rows.reduce((sum, row) => sum + value(row), 0) / rows.length;

function byLevel(run: Run): Map<string, number[]> {
  const found = new Map<string, number[]>();
  for (let row = 0; row < run.count; row++) {
    if (!run.level(row) || run.rows.failed[row]) continue;
    const key = `${run.level(row)} ${run.task(row)}`;
    const rows = found.get(key);
    if (rows) rows.push(row);
    else found.set(key, [row]);
  }
  return found;
}

/** The shared levels, those first on which success differs most, then those on which the return does. */
export function sharedLevels(one: Run, two: Run): Shared[] {
  const others = byLevel(two);
  const found: Shared[] = [];
  for (const [key, rows] of byLevel(one)) {
    const other = others.get(key);
    if (!other) continue;
    found.push({
      level: key.slice(0, 16),
      task: key.slice(17),
      rows: [rows, other],
      success: [mean(rows, (row) => one.rows.success[row]), mean(other, (row) => two.rows.success[row])],
      returns: [mean(rows, (row) => one.rows.return[row]), mean(other, (row) => two.rows.return[row])],
    });
  }
  const gap = ([a, b]: [number, number]) => Math.abs(a - b);
  return found.sort((a, b) => gap(b.success) - gap(a.success) || gap(b.returns) - gap(a.returns));
}

/** The first turn in which two episodes did not execute the same actions; -1 if there is none. */
export function firstDifference(one: [Run, Block, number], two: [Run, Block, number]): number {
  const [a, b] = [one, two].map(([run, block, row]) =>
    block.turns(run.rows.row[row]).map((turn) => [...turn.actions].map((action) => run.actionName(row, action)).join("\n")),
  );
  for (let turn = 0; turn < Math.max(a.length, b.length); turn++) if (a[turn] !== b[turn]) return turn;
  return -1;
}
