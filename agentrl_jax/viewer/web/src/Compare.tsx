// Two runs, or evaluations, on the levels that both have episodes of.

import { useEffect, useMemo, useState } from "preact/hooks";

import { readAddress, writeAddress } from "./address";
import { Conversation } from "./Conversation";
import { Block, type Quantity, type Run } from "./data";
import { useAddress, useBlock, useKeys } from "./hooks";
import { useKept } from "./kept";
import { List } from "./List";
import { Log, LogBlock } from "./log";
import { Messages } from "./LogView";
import { firstDifference, gap, type Shared, sharedLevels, type Shown } from "./pairs";
import { OutcomeMark } from "./Rows";
import type { Drawn } from "./scenes";
import { Notes } from "./Single";
import { RunStage, Stage, stepBefore, stepsOf, turnOf } from "./Stage";
import { number } from "./text";

type Played = Run | Log;

/** Where episodes are from, and what they are called. */
const stageOf = (run: Played) => (run instanceof Log ? "evaluation" : run.entry.stage);
const partOf = (run: Played, row: number) => (run instanceof Log ? run.label(row) : `${run.part(row)}, row ${run.rows.row[row]}`);

const percent = (share: number) => (Number.isNaN(share) ? "–" : `${Math.round(100 * share)} %`);

export function Compare({ runs, quantity, pane }: { runs: [Played, Played]; quantity: Quantity; pane: string }) {
  const all = useMemo(() => sharedLevels(...runs), [runs]);
  const [only, setOnly] = useKept("only levels that differ", false);
  const shown = useMemo(() => (only ? all.filter((entry) => gap(entry.success) > 0) : all), [all, only]);
  const [chosen, choose] = useState(() => addressed(all) ?? "");
  useAddress(() => choose(addressed(all) ?? chosen));
  const at = Math.max(0, shown.findIndex((entry) => keyOf(entry) === chosen));
  const stages = [...new Set(runs.map(stageOf))];
  const counts = (run: Played) => `${run.count.toLocaleString("en")} ${stages.length > 1 ? `episodes of ${stageOf(run)} ` : ""}in ${run.entry.name}`;
  const entry: Shared | undefined = shown[at];
  const select = (position: number) => choose(keyOf(shown[position]));
  useKeys((event) => {
    const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (!entry || !by || (event.key.startsWith("Arrow") && (event.target as Element).closest(".conversation"))) return;
    event.preventDefault();
    select(Math.min(shown.length - 1, Math.max(0, at + by)));
  });
  return (
    <main class="panes compare" data-pane={pane}>
      <aside class="left" aria-label="Shared levels">
        <div class="note">
          <p>
            Matched are task and level; a level is known by the hash of its first state. {all.length.toLocaleString("en")} levels have recorded{" "}
            {stages.length === 1 && stages[0]} episodes in both runs ({runs.map(counts).join(", ")}).{" "}
            {stages.includes("training") && "The episodes may be of different iterations. "}
            {stages.includes("evaluation") && "Success and return on a level are means of its greedy episode and its samples, or of the plays of a scripted policy. "}
            {runs.some((run) => run instanceof Log) && "An episode with a reply that was cut or withheld is not in these means. "}
            Levels on which success differs most come first, then those on which the return does.
          </p>
          {runs.map((run, side) => !(run instanceof Log) && <Notes key={side} run={run} />)}
          <label>
            <input type="checkbox" checked={only} onChange={(e) => setOnly(e.currentTarget.checked)} /> only levels on which success differs
          </label>
        </div>
        <div class="listhead">
          <span role="status">{shown.length.toLocaleString("en")} levels</span>
          <span>
            <span class="run1">{runs[0].entry.name}</span> · <span class="run2">{runs[1].entry.name}</span>
          </span>
        </div>
        {!shown.length && <p class="muted pad">{all.length ? "Success is the same on every shared level." : nothingShared(runs)}</p>}
        <List label="Shared levels" count={shown.length} selected={entry ? at : -1} onSelect={select}>
          {(position) => <Level entry={shown[position]} />}
        </List>
      </aside>
      {entry && <Pair key={keyOf(entry)} runs={runs} entry={entry} quantity={quantity} />}
    </main>
  );
}

/** What names a level, also where the list changes. */
const keyOf = (entry: Shared) => `${entry.level} ${entry.task}`;

/** The level that the address names, if it is one of these. */
function addressed(entries: Shared[]): string | undefined {
  const address = readAddress();
  const key = `${address.get("level")} ${address.get("task")}`;
  return entries.some((entry) => keyOf(entry) === key) ? key : undefined;
}

/** The turn that the address names of a level; the first one if it names none. */
function addressedTurn(entry: Shared, last: number): number {
  return addressed([entry]) ? Math.max(0, Math.min(last, Number(readAddress().get("turn")) - 1)) || 0 : 0;
}

function nothingShared(runs: Played[]): string {
  const unnamed = runs.find((run) => run instanceof Log && !run.level(0));
  if (unnamed) return `The replies in ${unnamed.entry.name} are of an earlier version, which names no levels; evaluate again into another folder.`;
  return "No recorded level is in both runs, so nothing can be compared. Runs with the same seed and tasks play the same levels.";
}

function Level({ entry }: { entry: Shared }) {
  return (
    <>
      <span class="entry-top">
        <code>{entry.level}</code>
        <span>
          <b class="run1">{percent(entry.success[0])}</b> · <b class="run2">{percent(entry.success[1])}</b>
        </span>
      </span>
      <span class="entry-bottom">
        <span>
          {entry.task} · {entry.rows[0].length} and {entry.rows[1].length} episodes
        </span>
        <span>
          {number(entry.returns[0], 2)} · {number(entry.returns[1], 2)}
        </span>
      </span>
    </>
  );
}

function Pair({ runs, entry, quantity }: { runs: [Played, Played]; entry: Shared; quantity: Quantity }) {
  const same = useMemo(() => startPair(runs, entry), [runs, entry]);
  const [rows, setRows] = useState(same);
  const last = Math.max(...runs.map((run, side) => run.rows.turns[rows[side]])) - 1;
  const [turn, setTurn] = useState(() => addressedTurn(entry, last));
  useAddress(() => addressed([entry]) && setTurn(addressedTurn(entry, last)));
  useEffect(() => writeAddress({ level: entry.level, task: entry.task, turn: turn + 1, c: quantity }), [entry, turn, quantity]);
  const blocks = [useBlock<Block | LogBlock>(runs[0], rows[0]), useBlock<Block | LogBlock>(runs[1], rows[1])];
  const [one, two] = blocks;
  useKeys((event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) setTurn(Math.min(last, Math.max(0, turn + by)));
  });
  const differs = one && two ? firstDifference([runs[0], one, rows[0]] as Shown, [runs[1], two, rows[1]] as Shown) : null;
  return (
    <>
      {runs.map((run, side) => {
        const block = blocks[side];
        const row = rows[side];
        return (
          <article key={side} class={`middle side${side}`} aria-label={run.entry.name}>
            <header class="episode">
              <h2 class={`run${side + 1}`}>{run.entry.name}</h2>
              <select
                aria-label={`Episode of ${run.entry.name}`}
                value={row}
                onChange={(e) => setRows(rows.map((known, i) => (i === side ? Number(e.currentTarget.value) : known)) as [number, number])}
              >
                {entry.rows[side].map((known) => (
                  <option key={known} value={known}>
                    {partOf(run, known)}: {run.outcome(known)}
                  </option>
                ))}
              </select>
              <OutcomeMark outcome={run.outcome(row)} />
              <span>
                return <b>{number(run.rows.return[row])}</b>
              </span>
              {differs !== null && (
                <button type="button" class="link" disabled={differs.turn < 0} onClick={() => setTurn(differs.turn)}>
                  {differs.turn < 0 ? `same ${differs.what}` : `${differs.what} differ from turn ${differs.turn + 1} on`}
                </button>
              )}
            </header>
            {run instanceof Log
              ? block instanceof LogBlock && <LogHalf key={row} log={run} row={row} block={block} turn={turn} onTurn={setTurn} />
              : block instanceof Block && <Half key={row} run={run} row={row} block={block} quantity={quantity} turn={turn} onTurn={setTurn} />}
          </article>
        );
      })}
    </>
  );
}

/**
 * Two episodes of a level, of the same iteration and member where there are such; of evaluations also of the same number of
 * the level, and of the same sample of it.
 */
function startPair(runs: [Played, Played], entry: Shared): [number, number] {
  const key = (run: Played, row: number) =>
    run instanceof Log ? run.label(row) : `${run.rows.iteration[row]} ${run.rows.member[row]} ${run.evaluated ? run.rows.group[row] : ""}`;
  const known = new Map(entry.rows[1].map((row) => [key(runs[1], row), row]));
  const alike = entry.rows[0].filter((row) => known.has(key(runs[0], row)));
  const other = (row: number) => known.get(key(runs[0], row))!;
  const best = alike.find((row) => runs[0].outcome(row) !== runs[1].outcome(other(row))) ?? alike[0];
  return best === undefined ? [entry.rows[0].at(-1)!, entry.rows[1].at(-1)!] : [best, other(best)];
}

interface HalfProps {
  run: Run;
  row: number;
  block: Block;
  quantity: Quantity;
  turn: number;
  onTurn: (turn: number) => void;
}

/** The step of one side, which moves within a turn; the turn is common to both sides. */
function useStep(block: Drawn, within: number, turn: number, onTurn: (turn: number) => void): [number, (step: number) => void] {
  const last = stepsOf(block, within).count - 1;
  const [step, setStep] = useState(() => stepBefore(block, within, turn));
  useEffect(() => {
    if (turnOf(block, within, Math.min(step, last)) !== turn) setStep(stepBefore(block, within, turn));
  }, [turn]);
  const move = (to: number) => {
    setStep(to);
    onTurn(turnOf(block, within, to));
  };
  return [step, move];
}

/** The turn, or the last one of an episode that has fewer. */
const clamped = (block: Drawn, within: number, turn: number) => Math.min(turn, Math.max(0, block.turnCount(within) - 1));

function Half({ run, row, block, quantity, turn, onTurn }: HalfProps) {
  const within = run.rows.row[row];
  const [step, move] = useStep(block, within, turn, onTurn);
  return (
    <>
      <RunStage run={run} row={row} block={block} step={step} onStep={move} />
      <Conversation run={run} row={row} block={block} quantity={quantity} turn={clamped(block, within, turn)} onTurn={onTurn} label={`Conversation of ${run.entry.name}`} />
    </>
  );
}

/** The side of an API model: its messages. */
function LogHalf({ log, row, block, turn, onTurn }: { log: Log; row: number; block: LogBlock; turn: number; onTurn: (turn: number) => void }) {
  const within = log.within(row);
  const at = clamped(block, within, turn);
  const [step, move] = useStep(block, within, at, onTurn);
  return (
    <>
      <Stage block={block} within={within} sprites={log.entry.sprites} step={step} onStep={move} without={() => null} />
      <Messages log={log} row={row} block={block} turn={at} label={`Conversation of ${log.entry.name}`} />
    </>
  );
}
