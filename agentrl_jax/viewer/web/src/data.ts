// The data that the Python side embeds: an index as JSON, and packed blocks (see viewer/columns.py).

import type { LogEntry } from "./log";
import { type Drawn, Scenes, type Sprite } from "./scenes";
import { joined, plain } from "./text";

export interface Piece {
  id: number;
  /** The text of the token; of a special token its name; of bytes that are no text alone, their hexadecimal digits. */
  text: string;
  kind: "text" | "special" | "bytes" | "none";
}

export interface IterationInfo {
  iteration: number;
  /** Such as "iteration 3", of an evaluation "greedy" or "sample 1", of a log "step 3". */
  label: string;
  recorded: number;
  episodes: number;
  /** Of a run: what the replay of its episodes does before them; empty if it starts at once. */
  replay_note?: string;
}

export interface Metric {
  metric: string;
  name: string;
  values: (number | null)[];
}

export interface Baseline {
  name: string;
  about: string;
  mean: number;
  low: number | null;
  high: number | null;
}

export interface AlarmInfo {
  name: string;
  about: string;
  collapse: boolean;
  iterations: number[];
}

interface RunEntry {
  kind: "run";
  name: string;
  /** What the episodes are of: "training" or "evaluation". */
  stage: string;
  /** What is recorded, such as "4 recorded iterations". */
  recorded: string;
  /** Where the episodes are from; empty if `trend` says it. */
  about: string;
  /** The scripted policy that played, which has no numbers of tokens; empty for the agent of a run. */
  policy: string;
  /** Start of the command that replays an episode; empty if there is none. */
  replay: string;
  tasks: string[];
  actions: Record<string, string[]>;
  truncations: string[];
  iterations: IterationInfo[];
  trend: { iteration: number[]; metrics: Metric[] };
  lines: Baseline[];
  /** What could not be read and is left out. */
  notes: string[];
  alarms: AlarmInfo[];
  pieces: [number, null | string | { special: string } | { bytes: string }][];
  sprites: Record<string, Sprite>;
  first_block: number;
}

/** How exactly numbers are stored, see viewer/columns.py: off by at most `share` of their size and of the scale, up to the size `most`. */
interface Precision {
  levels: number;
  scale: number;
  share: number;
  most: number;
}

export interface Index {
  version: number;
  live: string;
  precision: Record<Quantity, Precision>;
  runs: (RunEntry | LogEntry)[];
}

type Numbers = Uint8Array | Uint16Array | Int32Array | Uint32Array | Float32Array;
export type Columns = Record<string, Numbers>;

export interface Packed {
  header: Record<string, any>;
  columns: Columns;
}

async function inflate(id: string): Promise<Uint8Array> {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no part ${id}; write it again with agentrl view`);
  const text = atob(element.textContent ?? "");
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export async function readIndex(): Promise<Index> {
  return JSON.parse(new TextDecoder().decode(await inflate("index")));
}

export async function readBlock(number: number): Promise<Packed> {
  const bytes = await inflate(`block-${number}`);
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
  const columns: Columns = {};
  let at = 4 + size + ((4 - ((4 + size) % 4)) % 4);
  for (const [name, kind, count] of header.columns as [string, string, number][]) {
    const length = count * Number(kind[1]);
    columns[name] = column(bytes, at, kind, count);
    at += length + ((4 - (length % 4)) % 4);
  }
  return { header, columns };
}

function column(bytes: Uint8Array, at: number, kind: string, count: number): Numbers {
  if (kind === "u1") return bytes.subarray(at, at + count);
  if (kind === "i4") return new Int32Array(bytes.buffer, at, count);
  if (kind === "u4") return new Uint32Array(bytes.buffer, at, count);
  if (kind === "f4") return new Float32Array(bytes.buffer, at, count);
  const joined = new Uint16Array(count); // u2: all low bytes, then all high bytes
  for (let i = 0; i < count; i++) joined[i] = bytes[at + i] | (bytes[at + count + i] << 8);
  return joined;
}

/** Start of each of consecutive parts of the given lengths, and the end of the last. */
export function starts(lengths: Numbers): Int32Array {
  const sums = new Int32Array(lengths.length + 1);
  for (let i = 0; i < lengths.length; i++) sums[i + 1] = sums[i] + lengths[i];
  return sums;
}

export interface Turn {
  number: number;
  observation: Numbers;
  /** Position of the first sampled token in the columns of the block. */
  from: number;
  to: number;
  actions: Numbers;
  reward: number;
  valid: boolean;
  formatError: number;
  /** Number of the attempt at the level, from 0. */
  attempt: number;
}

export type Quantity = "logprob" | "entropy" | "advantage" | "gap";

/** The episodes of one iteration. */
export class Block implements Drawn {
  readonly columns: Columns;
  readonly maxAdvantage: number;
  readonly scenes: Scenes;
  private readonly firstTurn: Int32Array;
  private readonly at: Record<string, Int32Array> = {};
  private texts: string[] = [];

  constructor(packed: Packed) {
    this.columns = packed.columns;
    this.scenes = new Scenes(packed);
    this.firstTurn = starts(this.columns.turns);
    const lengths = {
      prompt_tokens: "prompt_length",
      observation_tokens: "observation_length",
      final_tokens: "final_length",
      tokens: "length",
      actions: "action_count",
    };
    for (const [name, length] of Object.entries(lengths)) {
      if (this.columns[length]) this.at[name] = starts(this.columns[length]);
    }
    let most = 0;
    for (const value of this.columns.advantage_table) if (Math.abs(value) > most) most = Math.abs(value);
    this.maxAdvantage = most;
  }

  private part(name: string, index: number): Numbers {
    return this.columns[name].subarray(this.at[name][index], this.at[name][index + 1]);
  }

  prompt(row: number): Numbers {
    return this.part("prompt_tokens", this.columns.prompt[row]);
  }

  final(row: number): Numbers {
    return this.part("final_tokens", row);
  }

  turns(row: number): Turn[] {
    const turns = [];
    for (let i = this.firstTurn[row]; i < this.firstTurn[row + 1]; i++) {
      turns.push({
        number: i - this.firstTurn[row],
        observation: this.part("observation_tokens", i),
        from: this.at.tokens[i],
        to: this.at.tokens[i + 1],
        actions: this.part("actions", i),
        reward: this.columns.reward[i],
        valid: this.columns.valid[i] > 0,
        formatError: this.columns.format_error[i],
        attempt: this.columns.attempt[i],
      });
    }
    return turns;
  }

  /** What was sampled in a turn, as text without special tokens. */
  reply(turn: Turn, pieces: Piece[]): string {
    return plain(this.columns.tokens.subarray(turn.from, turn.to), pieces);
  }

  value(quantity: Quantity, token: number): number {
    return this.columns[`${quantity}_table`][this.columns[quantity][token]];
  }

  /** Whether any token of an episode was trained on. */
  trained(row: number): boolean {
    const [from, to] = [this.firstTurn[row], this.firstTurn[row + 1]].map((turn) => this.at.tokens[turn]);
    return this.columns.trained.subarray(from, to).some((flag) => flag > 0);
  }

  turnCount(within: number): number {
    return this.columns.turns[within];
  }

  /** The lower-case text of every episode, for searches. */
  searchTexts(pieces: Piece[]): string[] {
    if (!this.texts.length) {
      for (let row = 0; row < this.columns.turns.length; row++) {
        const parts = [joined(this.prompt(row), pieces)];
        for (const turn of this.turns(row)) {
          parts.push(joined(turn.observation, pieces), joined(this.columns.tokens.subarray(turn.from, turn.to), pieces));
        }
        parts.push(joined(this.final(row), pieces));
        this.texts.push(parts.join("\n").toLowerCase());
      }
    }
    return this.texts;
  }
}

/** Episodes as the list and the filters see them: those of a run, or of another program's log. */
export interface Episodes {
  readonly entry: { name: string; iterations: IterationInfo[]; alarms: AlarmInfo[]; recorded?: string };
  readonly rows: Columns;
  readonly count: number;
  readonly outcomes: Outcome[];
  outcome(row: number): Outcome;
  /** What the list calls an episode. */
  label(row: number): string;
  /** The hash of the first state as hexadecimal digits; empty if it is not known. */
  level(row: number): string;
  /** The name of the environment; empty if it is not known. */
  task(row: number): string;
  /** Whether the episode has ended, so that it counts. */
  finished(row: number): boolean;
  /** Number of episodes in each block. */
  readonly blockSizes: number[];
  /** The lower-case texts of the episodes of a block, for searches. */
  searchTexts(n: number): Promise<string[]>;
}

/** A run, with the columns of all of its rows. */
export class Run implements Episodes {
  readonly outcomes: Outcome[] = ["solved", "unsolved", "truncated", "failed"];
  readonly pieces: Piece[];
  private readonly blocks = new Map<number, Promise<Block>>();

  private constructor(
    readonly entry: RunEntry,
    readonly rows: Columns,
  ) {
    this.pieces = entry.pieces.map(([id, entry]) => {
      if (entry === null) return { id, text: `token ${id}`, kind: "none" };
      if (typeof entry === "string") return { id, text: entry, kind: "text" };
      if ("special" in entry) return { id, text: entry.special, kind: "special" };
      return { id, text: entry.bytes, kind: "bytes" };
    });
  }

  static async open(entry: RunEntry): Promise<Run> {
    return new Run(entry, (await readBlock(entry.first_block)).columns);
  }

  get count(): number {
    return this.rows.row.length;
  }

  /** The block of the n-th recorded iteration; it is decoded once. */
  block(n: number): Promise<Block> {
    let block = this.blocks.get(n);
    if (!block) {
      block = readBlock(this.entry.first_block + 1 + n).then((packed) => new Block(packed));
      this.blocks.set(n, block);
    }
    return block;
  }

  blockOf(row: number): number {
    return this.entry.iterations.findIndex((info) => info.iteration === this.rows.iteration[row]);
  }

  get blockSizes(): number[] {
    return this.entry.iterations.map((info) => info.recorded);
  }

  async searchTexts(n: number): Promise<string[]> {
    return (await this.block(n)).searchTexts(this.pieces);
  }

  level(row: number): string {
    const hex = (value: number) => value.toString(16).padStart(8, "0");
    const { level_high: high, level_low: low } = this.rows;
    return high[row] || low[row] ? hex(high[row]) + hex(low[row]) : "";
  }

  task(row: number): string {
    return this.entry.tasks[this.rows.task[row]] ?? "";
  }

  finished(row: number): boolean {
    return !this.rows.failed[row];
  }

  outcome(row: number): Outcome {
    return this.rows.failed[row] ? "failed" : this.rows.success[row] ? "solved" : this.rows.truncation[row] ? "truncated" : "unsolved";
  }

  /** Whether responses are free text, as those to a service are: each is one action without a name. */
  freeText(row: number): boolean {
    const names = this.entry.actions[this.task(row)];
    return names?.length === 1 && names[0] === "action";
  }

  actionName(row: number, action: number): string {
    return this.entry.actions[this.task(row)]?.[action] ?? `action ${action}`;
  }

  /** What recorded the episode, such as "iteration 3", or of an evaluation "sample 1". */
  part(row: number): string {
    return this.entry.iterations[this.blockOf(row)].label;
  }

  label(row: number): string {
    const task = this.entry.tasks.length > 1 ? ` · ${this.task(row)}` : "";
    return `${this.part(row)} · row ${this.rows.row[row]}${task}`;
  }

  get evaluated(): boolean {
    return this.entry.stage === "evaluation";
  }

  /** The episodes of the same group; of an evaluation, the greedy one and all samples of the same level. */
  siblings(row: number): number[] {
    const { iteration, group, task } = this.rows;
    const found = [];
    for (let i = 0; i < this.count; i++) {
      const together = this.evaluated || iteration[i] === iteration[row];
      if (together && group[i] === group[row] && task[i] === task[row]) found.push(i);
    }
    return found;
  }

  replayNote(row: number): string {
    return this.entry.iterations[this.blockOf(row)].replay_note ?? "";
  }

  replayCommand(row: number): string {
    return `${this.entry.replay} --iteration ${this.rows.iteration[row]} --row ${this.rows.row[row]}`;
  }
}

export type Outcome = "solved" | "unsolved" | "truncated" | "failed" | "unknown" | "cut" | "refused" | "unfinished";
export const OUTCOMES: Outcome[] = ["solved", "unsolved", "truncated", "failed", "unknown", "cut", "refused", "unfinished"];
/** A reply was cut or withheld, so that nothing is known of what the model can do: the episode is no failure. */
export const UNANSWERED: Outcome[] = ["cut", "refused"];
export type { Numbers };
