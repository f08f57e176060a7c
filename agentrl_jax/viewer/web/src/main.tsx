import "uplot/dist/uPlot.min.css";
import "./style.css";

import { render } from "preact";

import { App } from "./App";
import { readIndex, Run } from "./data";
import { startKeeping } from "./kept";
import { Log } from "./log";

async function start() {
  const root = document.getElementById("app")!;
  try {
    const index = await readIndex();
    if (index.live) startKeeping(index.runs.map((run) => run.name));
    const runs = await Promise.all(index.runs.map((entry) => (entry.kind === "log" ? Log.open(entry) : Run.open(entry))));
    document.title = `${index.runs.map((run) => run.name).join(" and ")} · agentrl view`;
    root.textContent = "";
    render(<App index={index} runs={runs} />, root);
    performance.mark("rendered");
  } catch (error) {
    root.textContent = `This page cannot be read: ${error instanceof Error ? error.message : error}`;
  }
}

void start();
