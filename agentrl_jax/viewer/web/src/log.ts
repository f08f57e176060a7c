// The rollout log of another program: messages with roles, and no tokens (see viewer/log_data.py).

import { type AlarmInfo, type Columns, type Episodes, type IterationInfo, type Outcome, type Packed, readBlock, starts } from "./data";

export interface LogEntry {
  kind: "log";
  name: string;
  /** Number of episodes in each block. */
  blocks: number[];
  roles: string[];
  iterations: IterationInfo[];
  alarms: AlarmInfo[];
  first_block: number;
}

export interface Message {
  role: string;
  text: string;
}

/** Some consecutive episodes of a log. */
export class LogBlock {
  private readonly columns: Columns;
  private readonly texts: string[];
  private readonly firstMessage: Int32Array;
  private readonly firstEntry: Int32Array;
  private searched: string[] = [];

  constructor(
    packed: Packed,
    private readonly roles: string[],
  ) {
    this.columns = packed.columns;
    this.texts = packed.header.texts;
    this.firstMessage = starts(this.columns.message_count);
    this.firstEntry = starts(this.columns.metadata_count);
  }

  messages(within: number): Message[] {
    const messages = [];
    for (let i = this.firstMessage[within]; i < this.firstMessage[within + 1]; i++) {
      messages.push({ role: this.roles[this.columns.message_role[i]], text: this.texts[this.columns.message_text[i]] });
    }
    return messages;
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
  readonly outcomes: Outcome[] = ["solved", "unsolved", "unknown"];
  private readonly first: Int32Array;
  private readonly blocks = new Map<number, Promise<LogBlock>>();

  private constructor(
    readonly entry: LogEntry,
    readonly rows: Columns,
  ) {
    this.first = starts(Int32Array.from(entry.blocks));
  }

  static async open(entry: LogEntry): Promise<Log> {
    return new Log(entry, (await readBlock(entry.first_block)).columns);
  }

  get count(): number {
    return this.rows.success.length;
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
    return (["unsolved", "solved", "unknown"] as const)[this.rows.success[row]];
  }

  label(row: number): string {
    return `episode ${row + 1}`;
  }
}
