import { useRef, useState } from "preact/hooks";

import { readAddress, writeAddress } from "./address";
import { COLORINGS, LEVELS, QUANTITIES } from "./colors";
import { Compare } from "./Compare";
import type { Index, Quantity, Run } from "./data";
import { Help } from "./Help";
import { useAddress, useNews, useTheme } from "./hooks";
import { useKept } from "./kept";
import { Log } from "./log";
import { LogView } from "./LogView";
import { Single } from "./Single";

const PANES = ["Episodes", "Conversation", "Board"];

export function App({ index, runs }: { index: Index; runs: (Run | Log)[] }) {
  const [view, setView] = useState(() => addressedView(runs.length));
  const [quantity, setQuantity] = useState(() => addressedQuantity() ?? "logprob");
  useAddress(() => {
    setView(addressedView(runs.length));
    setQuantity(addressedQuantity() ?? quantity);
  });
  const [theme, shown, nextTheme] = useTheme();
  const [pane, setPane] = useKept("pane", "Conversation");
  const help = useRef<HTMLDialogElement>(null);
  const news = useNews(index.live);
  const run = runs[view === "compare" ? 0 : view];
  const all = view === "compare" ? runs : [run];
  const tokens = all.some((each) => !(each instanceof Log) || each.entry.logprobs);
  const colored = all.some((each) => !(each instanceof Log) && !each.entry.policy);
  const scored = all.some((each) => each instanceof Log && each.entry.logprobs);
  const tokensShown = pane === "Conversation" || (view === "compare" && pane === "Board");
  const compare = () => {
    writeAddress({});
    setView("compare");
  };
  return (
    <>
      <header class={tokensShown ? "top" : "top uncolored"}>
        <h1>{runs.length > 1 ? "agentrl view" : run.entry.name}</h1>
        {runs.length > 1 && (
          <nav class="switch" aria-label="View">
            <button type="button" aria-pressed={view === "compare"} onClick={compare}>
              Compare
            </button>
            {runs.map((each, i) => (
              <button key={i} type="button" aria-pressed={view === i} onClick={() => setView(i)}>
                {each.entry.name}
              </button>
            ))}
          </nav>
        )}
        {index.live && (
          <span role="status">
            {news ? (
              <button type="button" class="news" onClick={() => location.reload()}>
                New records: load
              </button>
            ) : (
              <span class="live">live</span>
            )}
          </span>
        )}
        <span class="space" />
        {colored ? <Colors quantity={quantity} onQuantity={setQuantity} /> : scored ? <Legend quantity="logprob" /> : <span class="muted">{withoutColors(run)}</span>}
        <button type="button" onClick={nextTheme} aria-label={`Theme: ${theme}; change`} title={`Theme: ${theme}`}>
          {{ system: "◐", light: "☀", dark: "☾" }[theme]}
        </button>
        <button type="button" onClick={() => help.current!.showModal()}>
          Help
        </button>
      </header>
      <nav class="pane-switch switch" aria-label="Part of the page">
        {PANES.map((name) => (
          <button key={name} type="button" aria-pressed={pane === name} onClick={() => setPane(name)}>
            {view === "compare" && name !== "Episodes" ? { Conversation: runs[0].entry.name, Board: runs[1].entry.name }[name] : run instanceof Log && !run.entry.drawn && name === "Board" ? "Metadata" : name}
          </button>
        ))}
      </nav>
      {view === "compare" ? (
        <Compare runs={runs as [Run | Log, Run | Log]} quantity={quantity} pane={pane} />
      ) : run instanceof Log ? (
        <LogView key={view} log={run} index={view} pane={pane} />
      ) : (
        <Single key={view} run={run} index={view} quantity={quantity} theme={shown} pane={pane} />
      )}
      <Help dialog={help} index={index} log={run instanceof Log ? run.entry.source : ""} compared={view === "compare"} tokens={tokens} />
    </>
  );
}

/** What the address shows: two runs beside each other, or one of them. */
function addressedView(count: number): "compare" | number {
  const address = readAddress();
  if (count > 1 && !address.has("i") && !address.has("e")) return "compare";
  const chosen = Number(address.get("run"));
  return Number.isInteger(chosen) && chosen >= 0 && chosen < count ? chosen : 0;
}

function addressedQuantity(): Quantity | undefined {
  const named = readAddress().get("c");
  return QUANTITIES.find((known) => known === named);
}

/** Why the tokens of a run or log have no numbers to color them by. */
function withoutColors(run: Run | Log): string {
  if (!(run instanceof Log)) return "A scripted policy has no log-probabilities to color.";
  return run.entry.source === "api" ? "The server gave no log-probabilities to color." : "This log has no tokens to color.";
}

/** The switch of what colors the sampled tokens. */
function Colors({ quantity, onQuantity }: { quantity: Quantity; onQuantity: (quantity: Quantity) => void }) {
  return (
    <>
      <Legend quantity={quantity} />
      <div class="switch" role="radiogroup" aria-label="Color of sampled tokens" onKeyDown={moveRadio}>
        {QUANTITIES.map((each) => (
          <button
            key={each}
            type="button"
            role="radio"
            aria-checked={each === quantity}
            tabIndex={each === quantity ? 0 : -1}
            title={COLORINGS[each].about}
            onClick={() => onQuantity(each)}
          >
            {COLORINGS[each].name}
          </button>
        ))}
      </div>
    </>
  );
}

/** Arrow keys move within a group of radio buttons. */
function moveRadio(event: KeyboardEvent & { currentTarget: HTMLElement }) {
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  event.stopPropagation();
  const all = [...event.currentTarget.querySelectorAll<HTMLElement>("[role=radio]")];
  const next = all[(all.indexOf(event.target as HTMLElement) + by + all.length) % all.length];
  next.click();
  next.focus();
}

function Legend({ quantity }: { quantity: Quantity }) {
  const levels = Array.from({ length: LEVELS }, (_, i) => i + 1);
  const classes = quantity === "advantage" ? [...levels.map((n) => `n${n}`).reverse(), ...levels.map((n) => `p${n}`)] : levels.map((n) => `s${n}`);
  const [low, high] = COLORINGS[quantity].ends;
  return (
    <span class="legend" title={COLORINGS[quantity].about}>
      {low}
      <span class="swatches" aria-hidden="true">
        {classes.map((name) => (
          <span key={name} class={name} />
        ))}
      </span>
      {high}
    </span>
  );
}
