// Text of tokens. All of it comes from a model or an environment and is shown as text only.

import type { Numbers, Piece } from "./data";

/** Characters that are invisible or change the direction of what follows; tabs and newlines are shown as such. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\u202f\p{Cf}\p{Default_Ignorable_Code_Point}]/gu;

/** The text with hidden characters spelled out, such as ⟨U+202E⟩. */
export function visible(text: string): string {
  return text.replace(HIDDEN, (c) => `⟨U+${c.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

function bytesOf(hex: string): number[] {
  const bytes = [];
  for (let i = 0; i < hex.length; i += 2) bytes.push(parseInt(hex.slice(i, i + 2), 16));
  return bytes;
}

/** A sampled token as it is shown: newlines are marked, bytes that are no character alone are hexadecimal. */
export function tokenText(piece: Pick<Piece, "text" | "kind">): string {
  if (piece.kind === "bytes") return `⟨${piece.text.toUpperCase().replace(/(..)(?=.)/g, "$1 ")}⟩`;
  return visible(piece.text).replace(/\n/g, "↵\n");
}

export interface Part {
  text: string;
  special: boolean;
}

/** Tokens as text, in which the bytes of one character are joined; special tokens are parts alone. */
export function parts(tokens: Numbers, pieces: Piece[]): Part[] {
  const found: Part[] = [];
  let text = "";
  let bytes: number[] = [];
  const flushBytes = () => {
    if (bytes.length) text += new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes));
    bytes = [];
  };
  const flush = () => {
    flushBytes();
    if (text) found.push({ text, special: false });
    text = "";
  };
  for (const token of tokens) {
    const piece = pieces[token];
    if (piece.kind === "bytes") {
      bytes.push(...bytesOf(piece.text));
    } else if (piece.kind === "text") {
      flushBytes();
      text += piece.text;
    } else {
      flush();
      found.push({ text: piece.text, special: true });
    }
  }
  flush();
  return found;
}

/** Tokens as one text, for searches. */
export function joined(tokens: Numbers, pieces: Piece[]): string {
  return parts(tokens, pieces)
    .map((part) => part.text)
    .join("");
}

/** Tokens as one text without the special ones. */
export function plain(tokens: Numbers, pieces: Piece[]): string {
  return parts(tokens, pieces)
    .filter((part) => !part.special)
    .map((part) => part.text)
    .join("");
}

/** A number with the digits after the point that are shown. */
export function rounded(value: number, digits = 3): number {
  return Number(value.toFixed(digits));
}

/** A number with at most this many digits after the point; a dash where it is unknown. */
export function number(value: number, digits = 3): string {
  if (!Number.isFinite(value)) return "–";
  return String(rounded(value, digits) || 0).replace("-", "−");
}

/** The same, but with an exponent for numbers that would otherwise be shown as 0. */
export function precise(value: number, digits = 3): string {
  const small = value !== 0 && Math.abs(value) < 10 ** -digits;
  return small ? value.toExponential(1).replaceAll("-", "−") : number(value, digits);
}

/** The text with its first letter in upper case. */
export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A count with its noun. */
export function counted(count: number, noun: string, plural = `${noun}s`): string {
  return `${count.toLocaleString("en")} ${count === 1 ? noun : plural}`;
}
