// One run: trend and episodes on the left, the conversation in the middle, the board on the right.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { readAddress, writeAddress } from "./address";
import { Conversation } from "./Conversation";
import type { Quantity, Run } from "./data";
import { filterRows, type Filters, NO_FILTERS } from "./filters";
import { useBlock, useKeys, useSearch } from "./hooks";
import { OutcomeMark, Rows } from "./Rows";
import { Side } from "./Side";
import { stepBefore, stepsOf, turnOf } from "./Stage";
import { capital, counted, number } from "./text";
import { Trend } from "./Trend";

interface Props {
  run: Run;
  /** Number of the run in the page. */
  index: number;
  quantity: Quantity;
  theme: string;
  pane: string;
}

export function startRow(run: Run): number {
  const address = readAddress();
  const [iteration, within] = [Number(address.get("i")), Number(address.get("r"))];
  for (let row = 0; row < run.count; row++) {
    if (run.rows.iteration[row] === iteration && run.rows.row[row] === within) return row;
  }
  const newest = run.entry.iterations.at(-1)!.iteration;
  return Math.max(0, run.rows.iteration.indexOf(newest));
}

export function Single({ run, index, quantity, theme, pane }: Props) {
  const [filters, setFilters] = useState<Filters>(NO_FILTERS);
  const [row, setRow] = useState(() => startRow(run));
  // A turn begins with the step that the last one ended with, so that the step alone does not say the turn.
  const [{ turn, step }, setPlace] = useState({ turn: 0, step: 0 });
  const [matches, searched] = useSearch(run, filters);
  const searchBox = useRef<HTMLInputElement>(null);
  const rows = useMemo(() => filterRows(run, filters, matches), [run, filters, matches]);
  const block = useBlock(run, row);
  const within = run.rows.row[row];
  const select = (chosen: number) => {
    setRow(chosen);
    setPlace({ turn: 0, step: 0 });
  };
  useEffect(() => {
    if (rows.length && !rows.includes(row)) select(rows[0]);
  }, [rows]);
  useEffect(() => writeAddress({ run: index || "", i: run.rows.iteration[row], r: within, c: quantity }), [index, row, quantity]);
  const showTurn = (to: number) => block && setPlace({ turn: to, step: stepBefore(block, within, to) });
  const goTo = (to: number) => {
    if (!block) return;
    const last = block.columns.turns[within] - 1;
    if (to > last) setPlace({ turn: last, step: stepsOf(block, within).count - 1 });
    else showTurn(Math.max(0, to));
  };
  useKeys((event) => {
    const vertical = event.key === "ArrowUp" || event.key === "ArrowDown";
    // Up and down scroll a conversation that has the focus.
    if (vertical && (event.target as Element).closest(".conversation")) return;
    const at = rows.indexOf(row);
    const next = () => at < rows.length - 1 && select(rows[at + 1]);
    const previous = () => at > 0 && select(rows[at - 1]);
    const keys: Record<string, () => void> = {
      j: next,
      ArrowDown: next,
      k: previous,
      ArrowUp: previous,
      ArrowRight: () => goTo(turn + 1),
      ArrowLeft: () => goTo(turn - 1),
      "/": () => searchBox.current?.focus(),
    };
    const run = keys[event.key];
    if (!run) return;
    event.preventDefault();
    run();
  });
  const title = `${capital(run.part(row))}, row ${within}`;
  return (
    <main class="panes" data-pane={pane}>
      <aside class="left" aria-label="Trend and episodes">
        <Trend run={run} theme={theme} iteration={filters.iteration} onIteration={(iteration) => setFilters({ ...filters, iteration })} />
        <Alarms run={run} onAlarm={(alarm) => setFilters({ ...filters, alarm })} />
        <Rows run={run} filters={filters} onFilters={setFilters} rows={rows} row={row} onRow={select} searched={searched} searchBox={searchBox} />
      </aside>
      <article class="middle" aria-label="Conversation">
        <header class="episode">
          <h2>{title}</h2>
          <OutcomeMark outcome={run.outcome(row)} />
          <span>
            return <b>{number(run.rows.return[row])}</b>
          </span>
          <span>{counted(run.rows.turns[row], "turn")}</span>
          <span>{counted(run.rows.tokens[row], "sampled token")}</span>
          {block && !run.evaluated && !block.trained(within) && <span class="muted">not trained on</span>}
          <span class="muted">{run.task(row)}</span>
        </header>
        {block ? (
          <Conversation
            key={row}
            run={run}
            row={row}
            block={block}
            quantity={quantity}
            turn={turn}
            onTurn={showTurn}
            label={`Conversation of ${title}`}
          />
        ) : (
          <p class="muted pad">Decoding.</p>
        )}
      </article>
      <aside class="right" aria-label="Board and group">
        {block && <Side run={run} row={row} block={block} step={step} onStep={(to) => setPlace({ turn: turnOf(block, within, to), step: to })} onRow={select} />}
      </aside>
    </main>
  );
}

function Alarms({ run, onAlarm }: { run: Run; onAlarm: (name: string) => void }) {
  return (
    <>
      {run.entry.alarms.map((alarm) => (
        <button key={alarm.name} type="button" class={`alarm ${alarm.collapse ? "collapse" : ""}`} onClick={() => onAlarm(alarm.name)}>
          <b>{alarm.collapse ? "Collapse alarm" : "Warning"}</b>, {counted(alarm.iterations.length, "iteration")} from {alarm.iterations[0]} on: {alarm.about}
        </button>
      ))}
    </>
  );
}
