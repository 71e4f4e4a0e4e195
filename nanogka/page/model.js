/* The network of nanogka/model in plain JavaScript, for one text at a time.

   Arrays are flat and hold one row per position. C: width, H: heads, D = C / H, V: vocabulary. A state keeps what every
   layer computed at every position, so a new position, or a change in a late layer, costs only what it changes. */

const NORM_EPS = 2 ** -23;
const SMEAR_FEATURES = 24;
const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** {name: Float32Array} of packed tensors: float32, float16, or int8 with one scale per row. */
function unpack(tensors, buffer) {
  const half = Float32Array.from({ length: 1 << 16 }, (_, bits) => {
    const exponent = (bits >> 10) & 31, fraction = bits & 1023;
    return (bits >> 15 ? -1 : 1) * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
  });
  return Object.fromEntries(tensors.map(({ name, kind, rows, columns, offset, scales }) => {
    const size = rows * columns;
    if (kind === "float32") return [name, new Float32Array(buffer, offset, size)];
    if (kind === "float16") {
      return [name, new Float32Array(new Uint16Array(buffer, offset, size)).map((bits) => half[bits])];
    }
    const whole = new Int8Array(buffer, offset, size), scale = new Float32Array(buffer, scales, rows);
    const values = new Float32Array(size);
    for (let i = 0; i < size; i++) values[i] = whole[i] * scale[Math.floor(i / columns)];
    return [name, values];
  }));
}

/** x Wᵀ of x (n, columns) and W (rows, columns). */
function multiply(weight, x, columns) {
  const n = x.length / columns, rows = weight.length / columns, y = new Float32Array(n * rows);
  let i = 0;
  for (; i + 4 <= n; i += 4) { // four positions share each weight that is read
    const a = i * columns, b = a + columns, c = b + columns, d = c + columns;
    for (let r = 0, w = 0; r < rows; r++) {
      let first = 0, second = 0, third = 0, fourth = 0;
      for (let k = 0; k < columns; k++, w++) {
        const value = weight[w];
        first += value * x[a + k];
        second += value * x[b + k];
        third += value * x[c + k];
        fourth += value * x[d + k];
      }
      const place = i * rows + r;
      y[place] = first;
      y[place + rows] = second;
      y[place + 2 * rows] = third;
      y[place + 3 * rows] = fourth;
    }
  }
  for (; i < n; i++) for (let r = 0, w = 0; r < rows; r++) {
    let even = 0, odd = 0, k = i * columns; // two sums, so that an addition need not wait for the one before
    const end = k + columns;
    for (; k + 2 <= end; k += 2, w += 2) {
      even += weight[w] * x[k];
      odd += weight[w + 1] * x[k + 1];
    }
    if (k < end) even += weight[w++] * x[k];
    y[i * rows + r] = even + odd;
  }
  return y;
}

/** Each run of `width` numbers divided by its root mean square, as a copy. */
function norm(x, width) {
  const y = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += width) {
    let sum = 0;
    for (let i = start; i < start + width; i++) sum += x[i] * x[i];
    const factor = 1 / Math.sqrt(sum / width + NORM_EPS);
    for (let i = start; i < start + width; i++) y[i] = x[i] * factor;
  }
  return y;
}

class Network {
  constructor(spec, buffer) {
    Object.assign(this, { spec, C: spec.hidden_size, H: spec.num_attention_heads, L: spec.num_hidden_layers });
    this.D = this.C / this.H;
    this.context = spec.max_position_embeddings;
    this.weights = unpack(spec.tensors, buffer);
  }

  /** What a visitor may change, as trained: σ and a cut of every head, and whether a layer has successor keys. */
  trained() {
    return this.spec.mixers.map((mixer, layer) => {
      const learned = this.weights[`blocks.${layer}.mixer.log_bandwidth`];
      // softmax(scale · q·k) has the temperature τ = 1 / scale, and a Gaussian kernel τ = σ².
      const fixed = this.D ** 0.25 / this.spec.qk_scale;
      const sigma = Array.from({ length: this.H }, (_, head) => (learned ? Math.exp(learned[head]) : fixed));
      return { sigma, cut: sigma.map(() => false), successor: Boolean(mixer.successor_keys) };
    });
  }

  newState(capacity) {
    const array = () => new Float32Array(capacity * this.C);
    const inputs = () => ({ q: array(), k: array(), v: array() }); // of the convolutions
    const layers = this.spec.mixers.map(() => ({ keys: array(), values: array(), inputs: inputs() }));
    // streams[0]: the embedding, streams[l + 1]: the residual stream after layer l
    return { ids: [], embedded: array(), streams: Array.from({ length: this.L + 1 }, array), layers, attention: null };
  }

  /** Pass positions from `start` on of state.ids through the layers from `first` on; returns their last stream. */
  forward(state, start, changes, first = 0) {
    const { C, L, weights } = this, end = state.ids.length;
    const part = (array) => array.subarray(start * C, end * C);
    if (first === 0) this.embed(state, start);
    const x0 = part(state.streams[0]);
    for (let layer = first; layer < L; layer++) {
      const before = part(state.streams[layer]), x = part(state.streams[layer + 1]);
      const scale = weights.resid_lambdas[layer], skip = weights.x0_lambdas[layer];
      for (let i = 0; i < x.length; i++) x[i] = scale * before[i] + skip * x0[i];
      const add = (y) => { for (let i = 0; i < x.length; i++) x[i] += y[i]; };
      add(this.mix(layer, norm(x, C), state, start, changes[layer]));
      const hidden = multiply(weights[`blocks.${layer}.mlp.c_fc.weight`], norm(x, C), C);
      for (let i = 0; i < hidden.length; i++) hidden[i] = Math.max(0, hidden[i]) ** 2;
      add(multiply(weights[`blocks.${layer}.mlp.c_proj.weight`], hidden, 4 * C));
    }
    const last = part(state.streams[L]), middle = part(state.streams[Math.min(L - 1, L >> 1) + 1]);
    return this.spec.backout ? last.map((value, i) => value - weights.backout_lambda[0] * middle[i]) : last;
  }

  /** The normed embeddings, each with a share of the one before it if the network has a smear. */
  embed(state, start) {
    const { C, weights } = this, table = weights["embedding.weight"], gate = weights["smear_gate.weight"];
    for (let i = start; i < state.ids.length; i++) {
      const x = norm(table.subarray(state.ids[i] * C, (state.ids[i] + 1) * C), C), before = (i - 1) * C;
      state.embedded.set(x, i * C);
      if (i > 0 && gate) {
        const [logit] = multiply(gate, x.subarray(0, SMEAR_FEATURES), SMEAR_FEATURES);
        const share = weights.smear_lambda[0] * sigmoid(logit);
        for (let c = 0; c < C; c++) x[c] += share * state.embedded[before + c];
      } else if (i > 0 && weights.smear) {
        for (let c = 0; c < C; c++) x[c] += weights.smear[c] * state.embedded[before + c];
      }
      state.streams[0].set(x, i * C);
    }
  }

  /** Attention of layer `layer` on normed activations x: (n, C) to (n, C). */
  mix(layer, x, state, start, change) {
    const { C, H, D } = this, memory = state.layers[layer];
    const weight = (name) => this.weights[`blocks.${layer}.mixer.${name}`];
    const [q, k, v] = ["q", "k", "v"].map((name) => {
      const matrix = weight(`c_${name}.weight`), taps = weight(`conv_${name}.weight`);
      const scale = weight(`affine_${name}.scale`), shift = weight(`affine_${name}.shift`);
      const y = matrix ? multiply(matrix, x, C) : x.slice();
      if (taps) this.convolve(taps, y, memory.inputs[name], start);
      if (scale) for (let i = 0; i < y.length; i++) y[i] = y[i] * scale[i % C] + shift[i % C];
      return name === "v" ? y : this.rotate(norm(y, D), start);
    });
    const table = weight("value_embedding.table.weight");
    if (table) {
      const [features, range] = this.spec.value_gate, gate = weight("value_embedding.gate.weight");
      for (let i = 0; i < v.length / C; i++) {
        const gates = multiply(gate, x.subarray(i * C, i * C + features), features), row = state.ids[start + i] * C;
        for (let c = 0; c < C; c++) v[i * C + c] += range * sigmoid(gates[Math.floor(c / D)]) * table[row + c];
      }
    }
    memory.keys.set(k, start * C);
    memory.values.set(v, start * C);
    return multiply(weight("c_proj.weight"), this.attend(layer, q, memory, state, start, change), C);
  }

  /** y_i = Σ_t w_t ∘ y_{i − t}, in place. */
  convolve(taps, y, inputs, start) {
    const { C } = this;
    inputs.set(y, start * C);
    for (let i = 0; i < y.length; i++) {
      let sum = 0;
      for (let tap = i % C, at = start * C + i; tap < taps.length && at >= 0; tap += C, at -= C) {
        sum += taps[tap] * inputs[at];
      }
      y[i] = sum;
    }
  }

  /** Rotary positions: channels c and c + D/2 of a head turn by −position · frequency, in place. */
  rotate(x, start) {
    const { C, D } = this, half = D / 2, frequencies = this.weights.frequencies;
    for (let i = 0; i < x.length / C; i++) for (let c = 0; c < half; c++) {
      const angle = Math.fround((start + i) * frequencies[c]), cos = Math.cos(angle), sin = Math.sin(angle);
      for (let at = i * C + c; at < (i + 1) * C; at += D) {
        const first = x[at], second = x[at + half];
        x[at] = first * cos + second * sin;
        x[at + half] = second * cos - first * sin;
      }
    }
    return x;
  }

  /** Σ_j A_ij v_j with A_ij ∝ exp(q_i·k_j / σ²): the Gaussian kernel, since all keys have the same norm. */
  attend(layer, q, { keys, values }, state, start, { sigma, cut, successor }) {
    const { C, H, D } = this, n = q.length / C, y = new Float32Array(q.length), total = start + n;
    const window = this.spec.mixers[layer].window ?? Infinity, row = new Float64Array(total);
    for (let head = 0; head < H; head++) for (let i = start; i < total; i++) {
      const low = Math.max(0, i - window), from = (i - start) * C + head * D;
      let largest = -Infinity, sum = 0;
      for (let j = low; j <= i; j++) {
        // A successor key is that of the position before; position 0 keeps its own.
        let key = (successor ? Math.max(0, j - 1) : j) * C + head * D, dot = 0;
        for (let d = 0; d < D; d++) dot += q[from + d] * keys[key + d];
        row[j] = dot / sigma[head] ** 2;
        if (row[j] > largest) largest = row[j];
      }
      for (let j = low; j <= i; j++) sum += row[j] = Math.exp(row[j] - largest);
      for (let j = low; j <= i; j++) {
        const share = row[j] / sum, value = j * C + head * D;
        if (state.attention) state.attention[((layer * H + head) * total + i) * total + j] = share;
        if (!cut[head]) for (let d = 0; d < D; d++) y[from + d] += share * values[value + d];
      }
    }
    return y;
  }

  /** Logits (n, V) of streams (n, C), softly capped. */
  unembed(stream) {
    const cap = this.spec.final_logit_softcapping;
    const logits = multiply(this.weights["lm_head.weight"], norm(stream, this.C), this.C);
    return logits.map((logit) => cap * Math.tanh(logit / cap));
  }
}
