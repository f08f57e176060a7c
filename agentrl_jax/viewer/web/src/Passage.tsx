// A text of any length that is not shown token by token.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { type Part, visible } from "./text";

/** Characters that are drawn at first, and further ones each time the reader asks for more. */
const MOST_CHARACTERS = 40000;

export function Passage({ parts, className }: { parts: Part[]; className: string }) {
  const [most, setMost] = useState(MOST_CHARACTERS);
  let left = most;
  const length = parts.reduce((sum, part) => sum + part.text.length, 0);
  const shown: ComponentChildren[] = [];
  for (const [i, part] of parts.entries()) {
    if (left <= 0) break;
    const text = visible(part.text.slice(0, left));
    left -= part.text.length;
    if (parts[i - 1]?.special && !part.special && isBoard(part.text)) shown.push(<br key={`${i} below`} />);
    shown.push(part.special ? <span key={i} class="special">{text}</span> : text);
  }
  return (
    <>
      <div class={`text ${className}`} dir="auto">
        {shown}
      </div>
      <More left={length - most} what="characters" onMore={() => setMost(most + MOST_CHARACTERS)} />
    </>
  );
}

/** Several lines right after a special token, such as a board: the first one stands below the token, in line with the others. */
function isBoard(text: string): boolean {
  return /^(?!(system|user|assistant|model|tool)\n)[^\n]+\n./s.test(text);
}

export function More({ left, what, onMore }: { left: number; what: string; onMore: () => void }) {
  if (left <= 0) return null;
  return (
    <button type="button" class="more" onClick={onMore}>
      Show more: {left.toLocaleString("en")} {what} are left
    </button>
  );
}
