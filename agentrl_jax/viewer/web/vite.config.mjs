// Builds page.html: the page's program and style inside one HTML file, allowed by their hashes alone.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { defineConfig } from "vite";

const policyHash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

// The page is a copy of these libraries, whose licenses ask for their notice in every copy.
const notices = ["preact", "uplot"]
  .map((name) => `${name}:\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}`)
  .join("\n\n")
  .replaceAll("--", "- -");

function onePage() {
  return {
    name: "one-page",
    enforce: "post",
    generateBundle(_, bundle) {
      const files = Object.values(bundle);
      // Inside a script element only these two texts have a meaning for the HTML parser.
      const script = files
        .find((file) => file.type === "chunk")
        .code.replaceAll("</script", "<\\/script")
        .replaceAll("<!--", "<\\!--");
      const style = files.find((file) => file.type === "asset" && file.fileName.endsWith(".css")).source.toString();
      for (const name of Object.keys(bundle)) delete bundle[name];
      const policy = [
        "default-src 'none'",
        `script-src ${policyHash(script)}`,
        `style-src ${policyHash(style)}`,
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
      ].join("; ");
      const html = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>agentrl view</title>
<link rel="icon" href="data:,">
<!--
Parts of this page are from these libraries.

${notices}
-->
<style>${style}</style>
</head>
<body>
<div id="app"><p class="loading">Loading the recorded rollouts.</p></div>
<noscript>This page draws the rollouts with JavaScript, which is switched off here.</noscript>
<!--data-->
<script>${script}</script>
</body>
</html>
`;
      this.emitFile({ type: "asset", fileName: "page.html", source: html });
    },
  };
}

export default defineConfig({
  logLevel: "warn",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  plugins: [onePage()],
  build: {
    outDir: "dist",
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
    rollupOptions: {
      input: "src/main.tsx",
      output: { format: "iife", inlineDynamicImports: true },
    },
  },
});
