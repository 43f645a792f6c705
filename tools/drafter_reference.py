#!/usr/bin/env python3
"""Small drafters with random weights, and what they compute, in float64: tests/goldens/dflash/.

Two files are written, each in a format of its own: a DFlash2 drafter (safetensors beside config.json) and a DSpark
drafter (GGUF, a head of few tokens, a confidence head). Weights are drawn from a grid that bfloat16 holds exactly, so
that the files have the numbers that are computed with. expected.json has the features that a model's layers would
give, logits of the rows that predict, their candidates, the scores of all pairs, and the greedy walk over them.

Usage: tools/drafter_reference.py FOLDER
"""
import json
import math
import os
import random
import struct
import sys

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 32, 2, 2, 1, 16, 48
VOCABULARY, FEW, TARGET_LAYERS, TAPS = 64, 40, 4, [1, 2]
BLOCK, MASK, CONTEXT, NEXT = 5, 63, 14, 7
ROPE_BASE, EPS = 10000.0, 1e-6
CONV_TAPS, GROUP, RANK, TOP = 2, 8, 8, 6
MARKOV_TOP = 16  # candidates of a row of DSpark


class Drawn:
    """Tensors by name: a list of rows, or one row."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.shape, self.values = {}, {}

    def number(self, scale):
        return self.random.randint(-31, 31) / 32 * scale

    def add(self, name, shape, scale, offset=0.0):
        count = math.prod(shape)
        self.shape[name] = shape
        self.values[name] = [offset + self.number(scale) for _ in range(count)]

    def rows(self, name):
        width = self.shape[name][-1]
        flat = self.values[name]
        return [flat[i:i + width] for i in range(0, len(flat), width)]

    def row(self, name):
        return self.values[name]


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b))


def times(matrix, x):
    return [dot(row, x) for row in matrix]


def added(a, b):
    return [x + y for x, y in zip(a, b)]


def normed(x, weight):
    scale = 1 / math.sqrt(dot(x, x) / len(x) + EPS)
    return [v * scale * w for v, w in zip(x, weight)]


def turned(x, position):
    half = len(x) // 2
    out = list(x)
    for i in range(half):
        angle = position * ROPE_BASE ** (-2 * i / len(x))
        c, s = math.cos(angle), math.sin(angle)
        out[i], out[i + half] = x[i] * c - x[i + half] * s, x[i + half] * c + x[i] * s
    return out


def heads_of(x):
    return [x[i:i + HEAD_DIM] for i in range(0, len(x), HEAD_DIM)]


def soft(scores):
    most = max(scores)
    weights = [math.exp(s - most) for s in scores]
    total = math.fsum(weights)
    return [w / total for w in weights]


def convolved(base, mix, side, rows):
    """base [2 sides * taps rows][E], mix [rows][group + groups * (tap + taps * side)]."""
    groups = WIDTH // GROUP
    out = []
    for j in range(len(rows)):
        row = [0.0] * WIDTH
        for tap in range(min(CONV_TAPS, j + 1)):
            index = tap + CONV_TAPS * side
            for c in range(WIDTH):
                row[c] += (base[index][c] + mix[j][c // GROUP + groups * index]) * rows[j - tap][c]
        out.append(row)
    return out


def attended(w, layer, context, hidden, start):
    """What the block's rows take from the context and from each other. hidden: what queries and keys are made of."""
    name = f'layers.{layer}.self_attn.'
    wq, wk, wv = (w.rows(f'{name}{p}_proj.weight') for p in 'qkv')
    q_norm, k_norm = w.row(f'{name}q_norm.weight'), w.row(f'{name}k_norm.weight')
    keys, values = [], []
    for position, x in enumerate(context + hidden):
        keys.append([turned(normed(h, k_norm), position) for h in heads_of(times(wk, x))])
        values.append(heads_of(times(wv, x)))
    out = []
    for j, x in enumerate(hidden):
        row = []
        for h, query in enumerate(heads_of(times(wq, x))):
            q = turned(normed(query, q_norm), start + j)
            kv = h * KV_HEADS // HEADS
            p = soft([dot(q, k[kv]) / math.sqrt(HEAD_DIM) for k in keys])
            row += [math.fsum(p[i] * values[i][kv][c] for i in range(len(p))) for c in range(HEAD_DIM)]
        out.append(row)
    return out


def fed_forward(w, layer, x):
    gate, up, down = (w.rows(f'layers.{layer}.mlp.{p}_proj.weight') for p in ('gate', 'up', 'down'))
    hidden = [g / (1 + math.exp(-g)) * u for g, u in zip(times(gate, x), times(up, x))]
    return times(down, hidden)


def hidden_rows(w, features):
    """The normed rows of the block after the context."""
    fc, context_norm = w.rows('fc.weight'), w.row('hidden_norm.weight')
    context = [normed(times(fc, f), context_norm) for f in features]
    embedding = w.rows('embed_tokens.weight')
    x = [embedding[t] for t in [NEXT] + [MASK] * (BLOCK - 1)]
    has_convolutions = 'layers.0.attention_conv.base_kernel' in w.values
    for layer in range(LAYERS):
        for part, norm in (('attention', 'input_layernorm'), ('mlp', 'post_attention_layernorm')):
            h = [normed(row, w.row(f'layers.{layer}.{norm}.weight')) for row in x]
            base = mix = None
            if has_convolutions:
                base = w.rows(f'layers.{layer}.{part}_conv.base_kernel')
                projection = w.rows(f'layers.{layer}.{part}_conv.kernel_projection.weight')
                mix = [times(projection, row) for row in h]
                h = convolved(base, mix, 0, h)
            if part == 'attention':
                output = w.rows(f'layers.{layer}.self_attn.o_proj.weight')
                given = [times(output, row) for row in attended(w, layer, context, h, len(context))]
            else:
                given = [fed_forward(w, layer, row) for row in h]
            if has_convolutions:
                given = convolved(base, mix, 1, given)
            x = [added(a, b) for a, b in zip(x, given)]
    return [normed(row, w.row('norm.weight')) for row in x]


def walked(w, hidden, first, count, tables, gate, token_of, confidence):
    """Rows `first` on predict. tables: names of predecessors' and successors' rows."""
    before, after = w.rows(tables[0]), w.rows(tables[1])
    rows, path, log_q = [], [], []
    previous, chosen = None, None
    for hf in hidden[first:]:
        logits = times(w.rows('lm_head.weight'), hf)
        ids = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:count]
        factors = times(gate, hf) if gate else [1.0] * RANK
        parents = [NEXT] if previous is None else [token_of[i] for i in previous]
        scores = [[logits[c] + math.fsum(a * g * b for a, g, b in zip(before[p], factors, after[c])) for c in ids]
                  for p in parents]
        row = {'logits': logits, 'ids': ids, 'scores': scores}
        if confidence:
            weight, bias = confidence
            row['confidence'] = [1 / (1 + math.exp(-dot(weight, hf + before[p]) - bias)) for p in parents]
        own = scores[0 if previous is None else chosen]
        chosen = max(range(count), key=lambda c: (own[c], -c))
        path.append(token_of[ids[chosen]])
        log_q.append(math.log(soft(own)[chosen]))
        previous = ids
        rows.append(row)
    return {'first_row': first, 'rows': rows, 'greedy': path, 'log_q': log_q}


def drawn_backbone(seed, head_tokens):
    w = Drawn(seed)
    w.add('fc.weight', [WIDTH, len(TAPS) * WIDTH], 0.25)
    w.add('hidden_norm.weight', [WIDTH], 0.25, 1.0)
    w.add('norm.weight', [WIDTH], 0.25, 1.0)
    w.add('embed_tokens.weight', [VOCABULARY, WIDTH], 1.0)
    w.add('lm_head.weight', [head_tokens, WIDTH], 0.5)
    for i in range(LAYERS):
        name = f'layers.{i}.'
        w.add(name + 'input_layernorm.weight', [WIDTH], 0.25, 1.0)
        w.add(name + 'post_attention_layernorm.weight', [WIDTH], 0.25, 1.0)
        for part, rows in (('q', HEADS), ('k', KV_HEADS), ('v', KV_HEADS)):
            w.add(f'{name}self_attn.{part}_proj.weight', [rows * HEAD_DIM, WIDTH], 0.25)
        w.add(name + 'self_attn.o_proj.weight', [WIDTH, HEADS * HEAD_DIM], 0.5)
        for part in 'qk':
            w.add(f'{name}self_attn.{part}_norm.weight', [HEAD_DIM], 0.25, 1.0)
        for part in ('gate', 'up'):
            w.add(f'{name}mlp.{part}_proj.weight', [FFN, WIDTH], 0.25)
        w.add(name + 'mlp.down_proj.weight', [WIDTH, FFN], 0.25)
    return w


def dflash2():
    w = drawn_backbone(1, VOCABULARY)
    groups = WIDTH // GROUP
    for i in range(LAYERS):
        for part in ('attention', 'mlp'):
            w.add(f'layers.{i}.{part}_conv.base_kernel', [2, CONV_TAPS, WIDTH], 1.0)
            w.add(f'layers.{i}.{part}_conv.kernel_projection.weight', [2 * CONV_TAPS * groups, WIDTH], 0.125)
    for part in ('predecessor', 'successor'):
        w.add(f'candidate_selector.{part}_codebook', [VOCABULARY, RANK], 1.0)
    w.add('candidate_selector.hidden_projection.weight', [RANK, WIDTH], 0.25)
    return w


def dspark():
    w = drawn_backbone(2, FEW)
    w.add('markov_head.markov_w1.weight', [VOCABULARY, RANK], 1.0)
    w.add('markov_head.markov_w2.weight', [FEW, RANK], 1.0)
    w.add('confidence_head.proj.weight', [1, WIDTH + RANK], 0.25)
    w.add('confidence_head.proj.bias', [1], 1.0)
    return w


def bf16(values):
    words = [struct.unpack('<I', struct.pack('<f', v))[0] for v in values]
    assert all(word & 0xffff == 0 for word in words), 'not exact in bfloat16'
    return b''.join(struct.pack('<H', word >> 16) for word in words)


def write_safetensors(path, w):
    header, data = {}, b''
    for name, values in w.values.items():
        part = bf16(values)
        header[name] = {'dtype': 'BF16', 'shape': w.shape[name], 'data_offsets': [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as out:
        out.write(struct.pack('<Q', len(text)) + text + data)


GGUF_NAMES = [('layers.', 'blk.'), ('self_attn.q_proj', 'attn_q'), ('self_attn.k_proj', 'attn_k'),
              ('self_attn.v_proj', 'attn_v'), ('self_attn.o_proj', 'attn_output'), ('self_attn.q_norm', 'attn_q_norm'),
              ('self_attn.k_norm', 'attn_k_norm'), ('input_layernorm', 'attn_norm'),
              ('post_attention_layernorm', 'ffn_norm'), ('mlp.gate_proj', 'ffn_gate'), ('mlp.up_proj', 'ffn_up'),
              ('mlp.down_proj', 'ffn_down'), ('hidden_norm', 'enc.output_norm'), ('embed_tokens', 'token_embd'),
              ('lm_head', 'output'), ('markov_head.', ''), ('confidence_head.proj', 'conf_proj')]


def gguf_name(name):
    if name == 'norm.weight':
        return 'output_norm.weight'
    for old, new in GGUF_NAMES:
        name = name.replace(old, new)
    return name


def gguf_text(text):
    return struct.pack('<Q', len(text)) + text.encode()


def write_gguf(path, w, token_of):
    entries = []
    for key, kind, value in (
            ('general.architecture', 8, 'dflash'), ('dflash.embedding_length', 4, WIDTH),
            ('dflash.feed_forward_length', 4, FFN), ('dflash.block_count', 4, LAYERS),
            ('dflash.context_length', 4, 4096), ('dflash.attention.head_count', 4, HEADS),
            ('dflash.attention.head_count_kv', 4, KV_HEADS), ('dflash.attention.key_length', 4, HEAD_DIM),
            ('dflash.attention.layer_norm_rms_epsilon', 6, EPS), ('dflash.rope.freq_base', 6, ROPE_BASE),
            ('dflash.attention.causal', 7, False), ('dflash.block_size', 4, BLOCK),
            ('tokenizer.ggml.mask_token_id', 4, MASK), ('dflash.has_confidence_head', 7, True)):
        form = {4: '<I', 6: '<f', 7: '<?'}.get(kind)
        entries.append(gguf_text(key) + struct.pack('<I', kind) +
                       (gguf_text(value) if kind == 8 else struct.pack(form, value)))
    entries.append(gguf_text('dflash.target_layers') + struct.pack('<IIQ', 9, 5, len(TAPS)) +
                   b''.join(struct.pack('<i', tap + 1) for tap in TAPS))
    tensors = [(gguf_name(name), w.shape[name], 30, bf16(values)) for name, values in w.values.items()]
    tensors.append(('d2t', [len(token_of)], 27, b''.join(struct.pack('<q', t) for t in token_of)))
    infos, data = b'', b''
    for name, shape, kind, part in tensors:
        infos += gguf_text(name) + struct.pack('<I', len(shape))
        infos += b''.join(struct.pack('<Q', n) for n in reversed(shape)) + struct.pack('<IQ', kind, len(data))
        data += part + bytes(-len(part) % 32)
    head = b'GGUF' + struct.pack('<IQQ', 3, len(tensors), len(entries)) + b''.join(entries) + infos
    with open(path, 'wb') as out:
        out.write(head + bytes(-len(head) % 32) + data)


CONFIG = {
    'architectures': ['DFlash2DraftModel'], 'model_type': 'qwen3', 'hidden_size': WIDTH, 'intermediate_size': FFN,
    'num_hidden_layers': LAYERS, 'num_attention_heads': HEADS, 'num_key_value_heads': KV_HEADS, 'head_dim': HEAD_DIM,
    'rms_norm_eps': EPS, 'rope_theta': ROPE_BASE, 'vocab_size': VOCABULARY, 'num_target_layers': TARGET_LAYERS,
    'is_causal': False, 'sliding_window': 2048, 'layer_types': ['sliding_attention'] * LAYERS,
    'dflash_config': {
        'block_size': BLOCK, 'mask_token_id': MASK, 'target_layer_ids': TAPS, 'conv_kernel_size': CONV_TAPS,
        'conv_group_size': GROUP, 'selector_rank': RANK, 'selector_top_k': TOP},
}


def rounded(value):
    if isinstance(value, float):
        return float(f'{value:.8g}')
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def main(folder):
    draw = Drawn(3)
    taps = [[[draw.number(2.0) for _ in range(WIDTH)] for _ in range(CONTEXT)] for _ in TAPS]
    features = [sum((tap[p] for tap in taps), []) for p in range(CONTEXT)]
    os.makedirs(os.path.join(folder, 'dflash2'), exist_ok=True)

    two = dflash2()
    write_safetensors(os.path.join(folder, 'dflash2', 'model.safetensors'), two)
    with open(os.path.join(folder, 'dflash2', 'config.json'), 'w', encoding='utf-8') as out:
        json.dump(CONFIG, out, indent=1)
        out.write('\n')
    hidden = hidden_rows(two, features)
    expected = {'taps': taps, 'next': NEXT}
    expected['dflash2'] = walked(two, hidden, 1, TOP, [f'candidate_selector.{p}_codebook' for p in
                                                      ('predecessor', 'successor')],
                                 two.rows('candidate_selector.hidden_projection.weight'), list(range(VOCABULARY)), None)

    spark = dspark()
    token_of = sorted(random.Random(4).sample(range(VOCABULARY), FEW))
    write_gguf(os.path.join(folder, 'dspark.gguf'), spark, token_of)
    hidden = hidden_rows(spark, features)
    for name, first in (('dspark', 0), ('dspark_behind_the_anchor', 1)):
        expected[name] = walked(spark, hidden, first, MARKOV_TOP,
                                ['markov_head.markov_w1.weight', 'markov_head.markov_w2.weight'], None, token_of,
                                (spark.row('confidence_head.proj.weight'), spark.row('confidence_head.proj.bias')[0]))
    with open(os.path.join(folder, 'expected.json'), 'w', encoding='utf-8') as out:
        json.dump(rounded(expected), out)
        out.write('\n')


if __name__ == '__main__':
    main(sys.argv[1])
