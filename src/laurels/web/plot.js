// The score distribution, with the user's own score marked.

import { h, svg } from "./dom.js";
import { count, number, say } from "./texts.js";

const WIDTH = 480;
const HEIGHT = 160;
const FOOT = 22;

export function plot(distribution, mine) {
  const buckets = distribution.buckets;
  const most = Math.max(...buckets.map((bucket) => bucket.count));
  const width = WIDTH / buckets.length;
  const own = mine === null ? -1 : buckets.findIndex((bucket, index) => mine < bucket.to || index === buckets.length - 1);
  const bars = buckets.map((bucket, index) => {
    const height = bucket.count ? Math.max(2, ((HEIGHT - FOOT - 18) * bucket.count) / most) : 0;
    const bar = svg("rect", { x: index * width + 1, y: HEIGHT - FOOT - height, width: Math.max(1, width - 2), height, rx: 2, class: index === own ? "bar own" : "bar" });
    bar.append(svg("title", {}, told(bucket)));
    return bar;
  });
  const marker = own < 0 ? [] : [
    svg("text", { x: Math.min(WIDTH - 4, Math.max(4, (own + 0.5) * width)), y: 12, class: "own-text", "text-anchor": own < buckets.length / 4 ? "start" : own > (buckets.length * 3) / 4 ? "end" : "middle" }, `▾ ${say("distribution.you")}`),
  ];
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": summary(buckets, own), class: "plot" },
    ...bars, ...marker,
    svg("text", { x: 0, y: HEIGHT - 6, class: "axis" }, number(buckets[0].from)),
    svg("text", { x: WIDTH, y: HEIGHT - 6, class: "axis", "text-anchor": "end" }, number(buckets.at(-1).to)));
  const table = h("details", {}, h("summary", {}, say("distribution.table")), h("ul", { class: "plain" }, ...buckets.map((bucket) => h("li", {}, told(bucket)))));
  return h("div", {}, picture, table);
}

function told(bucket) {
  return count("distribution.bar", bucket.count, { from: number(bucket.from), to: number(bucket.to) });
}

function summary(buckets, own) {
  const largest = buckets.reduce((most, bucket) => (bucket.count > most.count ? bucket : most));
  const here = own < 0 ? "" : ` ${say("distribution.you")}: ${told(buckets[own])}.`;
  return `${say("distribution")}. ${told(largest)}.${here}`;
}
