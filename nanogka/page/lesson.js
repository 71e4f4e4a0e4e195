// The numbers of docs/lesson.md: every change of its exercises, made to the engine of a page. `text` and `copies` come
// from lesson.py. The value is {name: number or list of numbers}.
const trained = network.trained(), layers = trained.keys(), last = trained.length - 1;
const changed = (change) => {
  const changes = JSON.parse(JSON.stringify(trained));
  changes.forEach(change);
  return read({ source: { text }, changes, most: network.context });
};
const plain = changed(() => {}), cost = (change) => changed(change).perByte - plain.perByte;
const cut = (layer) => layer.cut.fill(true), spread = (factor) => (layer) => { layer.sigma = layer.sigma.map((s) => s * factor); };
const only = (index, change) => (layer, l) => { if (l === index) change(layer); };
const keys = (on) => (layer) => { layer.successor = on; };
const followed = (seen) => seen.shares.map((shares) => shares[2]);

// Bits of each copy of the sentence, by the bytes of the tokens.
const bits = Array(copies).fill(0), length = new TextEncoder().encode(text).length;
let at = 0;
plain.ids.forEach((id, i) => {
  bits[Math.min(copies - 1, Math.floor((at * copies) / length))] += plain.bits[i];
  at += tokenizer.bytes(id).length;
});
return {
  bits,
  itself: plain.shares.map((shares) => shares[0]),
  followed: followed(plain),
  cutHeads: trained.flatMap(({ sigma }, l) => sigma.map((_, h) => cost(only(l, (layer) => { layer.cut[h] = true; })))),
  cutLayers: [...layers].map((l) => cost(only(l, cut))),
  cutAll: cost(cut),
  keysOffLast: cost(only(last, keys(false))),
  keysOffAll: cost(keys(false)),
  itselfWithoutKeys: changed(keys(false)).shares.map((shares) => shares[0]),
  keysOnAll: cost(keys(true)),
  followedWithKeys: followed(changed(keys(true))),
  wideLast: cost(only(last, spread(4))),
  narrowLast: cost(only(last, spread(1 / 4))),
  wideAll: cost(spread(2)),
  followedWide: followed(changed(spread(2))),
  narrowAll: cost(spread(1 / 4)),
  widestAll: cost(spread(4)),
};
