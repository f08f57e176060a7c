import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import type { Episodes } from "./data";
import { ALL, type Filters, filterRows, NO_FILTERS, search } from "./filters";
import { keep, keptValue } from "./kept";

interface Blocks<B> {
  block(n: number): Promise<B>;
  blockOf(row: number): number;
}

/** The block of a row, or null while it is decoded. */
export function useBlock<B>(run: Blocks<B>, row: number): B | null {
  const [known, setKnown] = useState<{ run: Blocks<B>; n: number; block: B } | null>(null);
  const n = row < 0 ? -1 : run.blockOf(row);
  useEffect(() => {
    let here = true;
    if (n >= 0) void run.block(n).then((block) => here && setKnown({ run, n, block }));
    return () => {
      here = false;
    };
  }, [run, n]);
  return known && known.run === run && known.n === n ? known.block : null;
}

/** The rows that hold the text of the filters, null while none is searched, and the share of the blocks searched. */
function useSearch(run: Episodes, filters: Filters): [Set<number> | null, number] {
  const [state, setState] = useState<{ found: Set<number> | null; done: number }>({ found: null, done: 1 });
  useEffect(() => {
    let stopped = false;
    if (!filters.text) {
      setState({ found: null, done: 1 });
      return;
    }
    const timer = setTimeout(() => {
      setState({ found: new Set(), done: 0 });
      void search(run, filters.text, (found, done) => !stopped && setState({ found, done }), () => stopped);
    }, 200);
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [run, filters.text]);
  return [state.found, state.done];
}

interface Moves {
  /** Another episode was chosen. */
  onSelect: () => void;
  /** Go on or back by this many turns. */
  onTurn: (by: number) => void;
}

/** The filters and the chosen row; on a live page, a reader of what was the newest iteration goes to the newest again. */
function useStart(run: Episodes, start: () => number) {
  const { name, iterations } = run.entry;
  const newest = iterations.at(-1)?.iteration;
  const [follows] = useState(() => {
    const seen = keptValue<number>(`newest ${name}`);
    return (iteration: number) => newest !== undefined && newest !== seen && iteration === seen;
  });
  const [filters, setFilters] = useState<Filters>(() => {
    const known = { ...NO_FILTERS, ...keptValue<Filters>(`filters ${name}`) };
    if (follows(known.iteration)) return { ...known, iteration: newest! };
    const here = iterations.some((info) => info.iteration === known.iteration); // a run deletes its oldest records
    return here ? known : { ...known, iteration: ALL };
  });
  const [row, setRow] = useState(() => {
    const known = start();
    return follows(run.rows.iteration?.[known] ?? NaN) ? run.rows.iteration.indexOf(newest!) : known;
  });
  useEffect(() => keep(`newest ${name}`, newest), []);
  useEffect(() => keep(`filters ${name}`, filters), [filters]);
  return { filters, setFilters, row, setRow };
}

/** The filters, the rows that pass them and the chosen one; keys move within the list and between turns. */
export function useEpisodes(run: Episodes, start: () => number, { onSelect, onTurn }: Moves) {
  const { filters, setFilters, row, setRow } = useStart(run, start);
  const [matches, searched] = useSearch(run, filters);
  const searchBox = useRef<HTMLInputElement>(null);
  const rows = useMemo(() => filterRows(run, filters, matches), [run, filters, matches]);
  const select = (chosen: number) => {
    setRow(chosen);
    onSelect();
  };
  useEffect(() => {
    // Until all blocks are searched, the chosen row may be one that will be found.
    if (searched === 1 && rows.length && !rows.includes(row)) select(rows[0]);
  }, [rows, searched]);
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
      ArrowRight: () => onTurn(1),
      ArrowLeft: () => onTurn(-1),
      "/": () => searchBox.current?.focus(),
    };
    const move = keys[event.key];
    if (!move) return;
    event.preventDefault();
    move();
  });
  const none = !rows.length && searched === 1;
  return { filters, setFilters, row, select, rows, none, searched, searchBox };
}

/** Scrolls a conversation to its current turn, and to its top at the first one. */
export function useScrollToTurn(box: RefObject<HTMLElement | null>, turn: number, episode: unknown): void {
  useEffect(() => {
    const element = box.current!.querySelector(`[data-turn="${turn}"]`);
    if (element && turn > 0) element.scrollIntoView({ block: "nearest" });
    else box.current!.scrollTop = 0;
  }, [turn, episode]);
}

const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

/** The chosen theme, the one that is shown, and a function that goes on to the next. */
export function useTheme(): [Theme, string, () => void] {
  const [theme, setTheme] = useState<Theme>(() => {
    try {
      const stored = localStorage.getItem("agentrl-theme") as Theme;
      return THEMES.includes(stored) ? stored : "system";
    } catch {
      return "system"; // storage is refused to some pages from disk
    }
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const [system, setSystem] = useState(dark.matches);
  useEffect(() => {
    const changed = () => setSystem(dark.matches);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  const shown = theme === "system" ? (system ? "dark" : "light") : theme;
  document.documentElement.dataset.theme = shown;
  const next = () => {
    const chosen = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    setTheme(chosen);
    try {
      localStorage.setItem("agentrl-theme", chosen);
    } catch {
      // see above
    }
  };
  return [theme, shown, next];
}

/** Whether the server that the page came from has new records; always false for a page from disk. */
export function useNews(live: string): boolean {
  const [news, setNews] = useState(false);
  useEffect(() => {
    if (!live) return;
    const timer = setInterval(async () => {
      try {
        const answer = await fetch("/version");
        if (answer.ok) setNews((await answer.text()) !== live);
      } catch {
        // the server has ended; the page stays readable
      }
    }, 2000);
    return () => clearInterval(timer);
  }, [live]);
  return news;
}

/** Calls the newest handler for every event of the window; effects alone would lag behind fast keys. */
function useWindowEvent<K extends keyof WindowEventMap>(name: K, handler: (event: WindowEventMap[K]) => void): void {
  const newest = useRef(handler);
  newest.current = handler;
  useLayoutEffect(() => {
    const listener = (event: WindowEventMap[K]) => newest.current(event);
    addEventListener(name, listener);
    return () => removeEventListener(name, listener);
  }, [name]);
}

/** Whether what has the focus needs a key itself: a field for its text, a slider for its arrows. */
function needs(target: Element, key: string): boolean {
  if (target.matches("input[type=range]")) return key.startsWith("Arrow");
  return target.matches("select, textarea, input:not([type=checkbox])");
}

/** Calls a handler for every key that is pressed outside of fields and not while the help is open. */
export function useKeys(handler: (event: KeyboardEvent) => void): void {
  useWindowEvent("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (!needs(event.target as Element, event.key)) handler(event);
  });
}

/** Calls a handler when the reader gives the open page another address, which the page itself never does. */
export function useAddress(handler: () => void): void {
  useWindowEvent("hashchange", handler);
}
