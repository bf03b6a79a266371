// Bundles entry.js into ../cornerstone.js, and the licences of all packages within into ../LICENSES.txt.

import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

// Three lines of the tools need what the pages' content security policy forbids: inline styles, and cursors from blob: addresses.
const CHANGES = [
  [/drawTextBox\.js$/, "textElement.setAttribute('style', combinedStyle);", "textElement.style.cssText = combinedStyle;"],
  [/drawLine\.js$/, "style: dropShadowStyle,", ""],
  [/SVGMouseCursor\.js$/, "const descriptor = getDefinedSVGCursorDescriptor(name);", "const descriptor = null;"],
];

const changed = {
  name: "changed",
  setup: ({ onLoad }) => onLoad({ filter: /cornerstonejs\/tools\/.*\/(drawTextBox|drawLine|SVGMouseCursor)\.js$/ }, ({ path }) => {
    const [, from, to] = CHANGES.find(([file]) => file.test(path));
    const text = readFileSync(path, "utf8");
    if (text.split(from).length !== 2) throw new Error(`${path} has changed`);
    return { contents: text.replace(from, to) };
  }),
};

// vtk.js reads and writes XML files with it; nothing here does.
const withoutXml = {
  name: "without-xml",
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /^xmlbuilder2$/ }, () => ({ path: "xmlbuilder2", namespace: "empty" }));
    onLoad({ filter: /.*/, namespace: "empty" }, () => ({ contents: "export const create = null; export const convert = null;" }));
  },
};

const { metafile } = await build({
  entryPoints: ["entry.js"], outfile: "../cornerstone.js", bundle: true, format: "esm", minify: true, target: "es2022",
  legalComments: "none", plugins: [changed, withoutXml], loader: { ".wasm": "empty" }, metafile: true,
});

const read = (path) => readFileSync(path, "utf8").replaceAll("\r", "").trim();
const [{ inputs }] = Object.values(metafile.outputs);
const names = new Set(Object.entries(inputs).filter(([, { bytesInOutput }]) => bytesInOutput)
  .map(([path]) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1]).filter(Boolean));
const licences = [...names].sort().map((name) => {
  const folder = `node_modules/${name}`;
  const { version, license } = JSON.parse(read(`${folder}/package.json`));
  const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  // seedrandom has its licence at the end of its README.
  const text = file ? read(`${folder}/${file}`) : read(`${folder}/README.md`).slice(read(`${folder}/README.md`).lastIndexOf("LICENSE"));
  return `${name} ${version} (${license})\n\n${text}\n`;
});
writeFileSync("../LICENSES.txt", licences.join(`\n${"-".repeat(80)}\n\n`));
