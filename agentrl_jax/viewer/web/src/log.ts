// The rollout log of another program, or the evaluation of an API model: messages with roles (see viewer/log_data.py).

import { type AlarmInfo, type Columns, type Episodes, type IterationInfo, type Outcome, type Packed, readBlock, starts } from "./data";
import { type Drawn, Scenes, type Sprite } from "./scenes";
import { visible } from "./text";

export interface LogEntry {
  kind: "log";
  name: string;
  source: "log" | "api";
  /** What was evaluated; empty for the log of another program. */
  about: string;
  /** Names of the numbers in the column `outcome`. */
  outcomes: Outcome[];
  /** Outcomes that these episodes can have, and what is said at their end. */
  ends: Partial<Record<Outcome, string>>;
  /** Whether some messages have tokens with log-probabilities. */
  logprobs: boolean;
  /** Whether some episodes have scenes. */
  drawn: boolean;
  /** Number of episodes in each block. */
  blocks: number[];
  roles: string[];
  /** The training steps of a log that has them. */
  iterations: IterationInfo[];
  recorded: string;
  alarms: AlarmInfo[];
  sprites: Record<string, Sprite>;
  first_block: number;
}

export interface Message {
  role: string;
  text: string;
  note: string;
  /** The tokens of the text, where their log-probabilities are known. */
  tokens: LogToken[];
  /** Number of the first of them in the block. */
  from: number;
}

export interface LogToken {
  text: string;
  logprob: number;
}

/** Some consecutive episodes of a log. */
export class LogBlock implements Drawn {
  readonly scenes: Scenes;
  private readonly columns: Columns;
  private readonly texts: string[];
  private readonly firstMessage: Int32Array;
  private readonly firstEntry: Int32Array;
  private readonly firstToken: Int32Array;
  private searched: string[] = [];

  constructor(
    packed: Packed,
    private readonly roles: string[],
  ) {
    this.scenes = new Scenes(packed);
    this.columns = packed.columns;
    this.texts = packed.header.texts;
    this.firstMessage = starts(this.columns.message_count);
    this.firstToken = starts(this.columns.token_count);
    this.firstEntry = starts(this.columns.metadata_count);
  }

  messages(within: number): Message[] {
    const messages = [];
    const c = this.columns;
    for (let i = this.firstMessage[within]; i < this.firstMessage[within + 1]; i++) {
      const from = this.firstToken[i];
      const tokens = Array.from({ length: this.firstToken[i + 1] - from }, (_, k) => this.token(from + k));
      messages.push({ role: this.roles[c.message_role[i]], text: this.texts[c.message_text[i]], note: this.texts[c.message_note[i]], tokens, from });
    }
    return messages;
  }

  token(number: number): LogToken {
    const c = this.columns;
    return { text: this.texts[c.token_text[number]], logprob: c.logprob_table[c.logprob[number]] };
  }

  turnCount(within: number): number {
    const roles = this.columns.message_role.subarray(this.firstMessage[within], this.firstMessage[within + 1]);
    return roles.filter((role) => this.roles[role] === "assistant").length;
  }

  /** Names and values. */
  metadata(within: number): [string, string][] {
    const entries: [string, string][] = [];
    for (let i = this.firstEntry[within]; i < this.firstEntry[within + 1]; i++) {
      entries.push([this.texts[this.columns.metadata_key[i]], this.texts[this.columns.metadata_value[i]]]);
    }
    return entries;
  }

  /** The lower-case text of every episode with its metadata, for searches. */
  searchTexts(): string[] {
    if (!this.searched.length) {
      this.searched = Array.from(this.columns.message_count, (_, within) =>
        [...this.messages(within).map((message) => message.text), ...this.metadata(within).flat()].join("\n").toLowerCase(),
      );
    }
    return this.searched;
  }
}

/** A log, with the columns of all of its episodes. */
export class Log implements Episodes {
  readonly outcomes: Outcome[];
  private readonly first: Int32Array;
  private readonly blocks = new Map<number, Promise<LogBlock>>();

  private constructor(
    readonly entry: LogEntry,
    readonly rows: Columns,
    private readonly header: { labels: string[]; names: string[]; levels: string[]; task: string },
  ) {
    this.outcomes = entry.outcomes.filter((outcome) => entry.ends[outcome]);
    this.first = starts(Int32Array.from(entry.blocks));
  }

  static async open(entry: LogEntry): Promise<Log> {
    const { header, columns } = await readBlock(entry.first_block);
    return new Log(entry, columns, header as Log["header"]);
  }

  get count(): number {
    return this.rows.outcome.length;
  }

  get blockSizes(): number[] {
    return this.entry.blocks;
  }

  /** The n-th block; it is decoded once. */
  block(n: number): Promise<LogBlock> {
    let block = this.blocks.get(n);
    if (!block) {
      block = readBlock(this.entry.first_block + 1 + n).then((packed) => new LogBlock(packed, this.entry.roles));
      this.blocks.set(n, block);
    }
    return block;
  }

  blockOf(row: number): number {
    return this.first.findLastIndex((first) => first <= row);
  }

  /** Position of an episode in its block. */
  within(row: number): number {
    return row - this.first[this.blockOf(row)];
  }

  async searchTexts(n: number): Promise<string[]> {
    return (await this.block(n)).searchTexts();
  }

  outcome(row: number): Outcome {
    return this.entry.outcomes[this.rows.outcome[row]];
  }

  label(row: number): string {
    return visible(this.header.labels[row]);
  }

  /** What an address calls an episode, which stays the same when others are added. */
  name(row: number): string {
    return this.header.names[row];
  }

  /** The episode of a name; -1 if there is none. */
  named(name: string): number {
    return this.header.names.indexOf(name);
  }

  level(row: number): string {
    return this.header.levels[row] ?? "";
  }

  task(_row: number): string {
    return this.header.task;
  }

  finished(row: number): boolean {
    return this.outcome(row) !== "unfinished";
  }
}
