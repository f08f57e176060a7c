// Moving from token to token, and the numbers of the one that is pointed at.

import type { RefObject } from "preact";
import { useState } from "preact/hooks";

import { precise } from "./text";

/** Tokens of a text that are drawn at first, and further ones each time the reader asks for more. */
export const MOST_TOKENS = 5000;

/** The number of the token that the reader points at or has moved to, -1 at first, and the handlers of the box with tokens. */
export function useTokens(box: RefObject<HTMLElement | null>) {
  const [token, setToken] = useState(-1);
  const over = (event: Event) => {
    const found = (event.target as Element).closest<HTMLElement>("[data-token]");
    if (found) setToken(Number(found.dataset.token));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const here = (event.target as Element).closest<HTMLElement>("[data-token]");
    if (!here || !["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Escape") {
      box.current!.focus();
      return;
    }
    const all = [...box.current!.querySelectorAll<HTMLElement>("[data-token]")];
    const at = all.indexOf(here);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key]!;
    all[Math.min(all.length - 1, Math.max(0, to))].focus();
  };
  return [token, { onMouseOver: over, onFocusIn: over, onKeyDown }] as const;
}

/** The probability of a log-probability, with its sign. */
export function percent(logprob: number): string {
  return logprob === 0 ? "100 %" : Number.isFinite(logprob) ? `${precise(100 * Math.exp(logprob), 2)} %` : "–";
}

/** The numbers of one token; null while the reader has chosen none. */
export function Inspector({ token }: { token: { text: string; numbers: [string, string][] } | null }) {
  if (!token) return <div class="inspector muted">Point at a token, or move to it with Tab and the arrow keys, to read its numbers.</div>;
  return (
    <div class="inspector" role="status">
      <code class="text">{token.text.replace(/^ +$/, (spaces) => "␣".repeat(spaces.length))}</code>
      <dl>
        {token.numbers.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}
