"""One program of the rotated sketch, in registers.

A block of k coordinates is a table of N sub-blocks x L lanes. G warps work on a row: each of them reads the whole
block (all but the first find it in L1) and makes the NC = N / G mixed sub-blocks that are its own, so that a thread
holds no more than 64 numbers and their 64 sums. A warp holds all lanes of its sub-blocks, REP x 32 threads x VEC
neighbours, so that a rotation never leaves it: neighbours turn by selects, threads by one shuffle per number. Lanes
that are swapped before the mixing are loaded from where they lie; selects put a thread's neighbours in order.

While a block is mixed each warp's own part of the next one is on its way into registers (EARLY), which then hold 64
numbers more and are full. A prefetch of the whole next block into L2 was tried, and cost more than it gave.

Tensors are [W, 32 VEC] or [W, 32] for all W warps of a program, so that Triton has one layout to choose and nothing
goes through shared memory; lists of them are tuples. Keep it so, and look at the machine code after a change: no
barrier belongs into the loop.
"""

import triton
import triton.language as tl

from bartizan.kernels.gpu.device_rows import tile_at, wide


@triton.jit
def flipped(x, word):
    """Flip the sign of x where the top bit of the word is set."""
    return (x.to(tl.uint32, bitcast=True) ^ (word & 0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def neighbours(x, G: tl.constexpr, VEC: tl.constexpr):
    """Split [G, 32 VEC] into VEC tensors [G, 32]: the first of each thread's neighbours, the second, ..."""
    if VEC == 1:
        return (x,)
    elif VEC == 2:
        a, b = tl.split(tl.reshape(x, (G, 32, 2)))
        return a, b
    else:
        a, b = tl.split(tl.reshape(x, (G, 32, 2, 2)))
        a0, a1 = tl.split(a)
        b0, b1 = tl.split(b)
        return a0, b0, a1, b1


@triton.jit
def joined(x, FIRST: tl.constexpr, G: tl.constexpr, VEC: tl.constexpr):
    """The way back, from x[FIRST] on."""
    if VEC == 1:
        return x[FIRST]
    elif VEC == 2:
        return tl.reshape(tl.join(x[FIRST], x[FIRST + 1]), (G, 64))
    else:
        even, odd = tl.join(x[FIRST], x[FIRST + 2]), tl.join(x[FIRST + 1], x[FIRST + 3])
        return tl.reshape(tl.join(even, odd), (G, 128))


@triton.jit
def mixed(x, LOG: tl.constexpr, REP: tl.constexpr):
    """Apply a Walsh-Hadamard transform across 2**LOG sub-blocks of REP tensors, in registers."""
    for stage in tl.static_range(LOG):
        y = ()
        for i in tl.static_range(REP << LOG):
            if i & (REP << stage):
                y = y + (x[i - (REP << stage)] - x[i],)
            else:
                y = y + (x[i] + x[i + (REP << stage)],)
        x = y
    return x


@triton.jit
def rolled(x, r, G: tl.constexpr, VEC: tl.constexpr, REP: tl.constexpr, LOGV: tl.constexpr, LOGR: tl.constexpr):
    """Rotate one sub-block, REP tensors [G, 32 VEC], by r lanes: REP x VEC tensors [G, 32].

    r counts neighbours, then threads, then whole warps; what passes the end of one carries to the next.
    """
    V: tl.constexpr = VEC * REP
    e = ()
    for rep in tl.static_range(REP):
        e = e + neighbours(x[rep], G, VEC)
    for stage in tl.static_range(LOGV):
        bit = ((r >> stage) & 1) != 0
        y = ()
        for i in tl.static_range(V):
            y = y + (tl.where(bit, e[i // VEC * VEC + (i - (1 << stage)) % VEC], e[i]),)
        e = y
    source = tl.arange(0, 32)[None, :] - ((r >> LOGV) & 31)
    sources = ()
    for j in tl.static_range(VEC - 1):
        sources = sources + (source - ((r & (VEC - 1)) > j),)
    sources = sources + (source,)
    y = ()
    for i in tl.static_range(V):
        y = y + (tl.gather(e[i], sources[i % VEC] & 31, 1),)
    e = y
    for stage in tl.static_range(LOGR):
        y = ()
        for i in tl.static_range(V):
            turns = (r >> (LOGV + 5)) + (sources[i % VEC] < 0)
            y = y + (tl.where(((turns >> stage) & 1) != 0, e[(i - (VEC << stage)) % V], e[i]),)
        e = y
    return e


@triton.jit
def swapped(x, s, G: tl.constexpr, VEC: tl.constexpr, LOGV: tl.constexpr):
    """Move each thread's neighbours, [G, 32 VEC], to their places XOR s: the lowest bits of a swap of lanes."""
    if VEC == 1:
        return x
    else:
        e = neighbours(x, G, VEC)
        for stage in tl.static_range(LOGV):
            bit = ((s >> stage) & 1) != 0
            y = ()
            for i in tl.static_range(VEC):
                y = y + (tl.where(bit, e[i ^ (1 << stage)], e[i]),)
            e = y
        return joined(e, 0, G, VEC)


@triton.jit
def _swaps(words, part, L: tl.constexpr, NC: tl.constexpr, PLANES: tl.constexpr):
    """Load the swaps of NC sub-blocks from part * NC on, the lowest bits of their words: sub-block c's in thread c."""
    return tl.load(words + PLANES * L + NC * part + tl.arange(0, 32)[None, :] % NC) & (L - 1)


@triton.jit
def _places(words, row, lane, rep, L: tl.constexpr, VEC: tl.constexpr, PLANES: tl.constexpr):
    """Return where the numbers of the lanes lie in their sub-block, but for the order of each thread's neighbours."""
    places = (lane + rep * 32 * VEC) ^ (tl.load(words + PLANES * L + row) & (L - VEC))
    return tl.max_contiguous(tl.multiple_of(places, (1, VEC)), (1, VEC))


@triton.jit
def _words(words, bit, lane, L: tl.constexpr, VEC: tl.constexpr, REP: tl.constexpr):
    """Load each lane's word, with this bit as its lowest."""
    w = ()
    for rep in tl.static_range(REP):
        word = tl.load(words + bit // 32 * L + (lane + rep * 32 * VEC)).to(tl.uint32, bitcast=True)
        w = w + (word >> (bit % 32).to(tl.uint32),)
    return w


@triton.jit
def _odd(bits):
    """Return the parity of three bits: the sign of an entry of Sylvester's matrix."""
    return (bits ^ (bits >> 1) ^ (bits >> 2)) & 1


@triton.jit
def _read(
    place,
    part,
    words,
    lane,
    L: tl.constexpr,
    NC: tl.constexpr,
    VEC: tl.constexpr,
    REP: tl.constexpr,
    PLANES: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """Load NC sub-blocks with their lanes swapped, but for the order of each thread's neighbours."""
    row = place.to(tl.pointer_type(DTYPE))
    if part.shape[0] == 1:
        row = tl.multiple_of(row, ALIGN)
    else:
        row = tl.multiple_of(row, (ALIGN, ALIGN))
    row += NC * L * part
    x = ()
    for c in tl.static_range(NC):
        for rep in tl.static_range(REP):
            at = _places(words, NC * part + c, lane, rep, L, VEC, PLANES)
            x = x + (tl.load(row + (c * L + at), eviction_policy="evict_first"),)
    return x


@triton.jit
def _signed(
    raw,
    w,
    words,
    g,
    a,
    lane,
    origin_at,
    W: tl.constexpr,
    L: tl.constexpr,
    NC: tl.constexpr,
    VEC: tl.constexpr,
    REP: tl.constexpr,
    LOGV: tl.constexpr,
    PLANES: tl.constexpr,
    ORIGIN: tl.constexpr,
    ORIGIN_ALIGN: tl.constexpr,
):
    """Take part g ^ a of the block about the origin, with its random signs and those in the outputs of part g."""
    part = g ^ a
    negative = (0 - _odd(g & part)).to(tl.uint32)
    swaps = _swaps(words, part, L, NC, PLANES)
    y = ()
    for c in tl.static_range(NC):
        swap = tl.gather(swaps, tl.full((W, 32), c, tl.int32), 1)
        for rep in tl.static_range(REP):
            x = raw[c * REP + rep].to(tl.float32)
            if ORIGIN is not None:
                origin = tl.multiple_of(origin_at.to(tl.pointer_type(ORIGIN)), ORIGIN_ALIGN)
                at = NC * L * part + c * L + _places(words, NC * part + c, lane, rep, L, VEC, PLANES)
                x = (x - tl.load(origin + at)).to(tl.float32)
            x = swapped(x, swap, W, VEC, LOGV)
            y = y + (flipped(x, (w[rep] ^ negative) << (31 - c)),)
    return y


@triton.jit(
    do_not_specialize=["base", "step", "n_tiles", "words_at", "tail_at", "origin_at", "origin_tail_at", "parts_at"]
    + ["norm_parts_at", "row", "n_rows", "first", "n_blocks", "width"]
)
def sketch_kernel(
    table,
    base: tl.int64,
    step: tl.int64,
    n_tiles: tl.int64,
    words_at: tl.int64,
    tail_at: tl.int64,
    origin_at: tl.int64,
    origin_tail_at: tl.int64,
    parts_at: tl.int64,
    norm_parts_at: tl.int64,
    row: tl.int64,
    n_rows: tl.int64,
    first: tl.int64,
    n_blocks: tl.int64,
    width: tl.int64,
    N: tl.constexpr,
    L: tl.constexpr,
    NC: tl.constexpr,
    G: tl.constexpr,
    PLANES: tl.constexpr,
    COUNT: tl.constexpr,
    VEC: tl.constexpr,
    REP: tl.constexpr,
    LOGC: tl.constexpr,
    LOGV: tl.constexpr,
    LOGR: tl.constexpr,
    DTYPE: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
    ALIGN: tl.constexpr,
    ORIGIN: tl.constexpr,
    ORIGIN_BYTES: tl.constexpr,
    ORIGIN_ALIGN: tl.constexpr,
    R: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Sketch rows `row` to `row + n_rows` in groups of R, and this program's run of `n_blocks` blocks from `first` on.

    The runs of program p and group i are part p + i: each group and each program begins a new part. The warps of a
    program read the same blocks of its R rows, so that words and origin come from L1 for all but one of them.
    """
    rows = (table, base, step, n_tiles)
    K: tl.constexpr = N * L
    V: tl.constexpr = VEC * REP
    W: tl.constexpr = R * G
    program = tl.program_id(0).to(tl.int64)
    groups = (n_rows + R - 1) // R
    low = groups * n_blocks * program // tl.num_programs(0)
    high = groups * n_blocks * (program + 1) // tl.num_programs(0)
    whole = width // K
    words = tl.multiple_of(words_at.to(tl.pointer_type(tl.int32)), 16)
    parts = tl.multiple_of(parts_at.to(tl.pointer_type(tl.float32)), 16)
    norm_parts = norm_parts_at.to(tl.pointer_type(tl.float64))
    warp = tl.arange(0, W)[:, None]
    g = warp % G
    for i in range((low // n_blocks).to(tl.int32), tl.cdiv(high, n_blocks).to(tl.int32)):
        m = row + tl.minimum(wide(i) * R, n_rows - 1)
        if W > 1:
            m = row + tl.minimum(wide(i) * R + warp // G, n_rows - 1)
        begin = (first + tl.maximum(low - i * n_blocks, 0)).to(tl.int32)
        end = (first + tl.minimum(high - i * n_blocks, n_blocks)).to(tl.int32)
        sums = ()
        for _ in tl.static_range(NC * V):
            sums = sums + (tl.zeros((W, 32), tl.float32),)
        norm = tl.zeros((W, 32), tl.float64)
        tail = tail_at + m * (K * BYTES)
        place = tile_at(rows, m, wide(begin) * K, TILE, BYTES)
        place = tl.where(wide(begin) < whole, place, tail)
        lane = tl.arange(0, 32 * VEC)[None, :]
        if EARLY:
            now = words + (wide(begin) - first) * COUNT
            own = _read(place, g, now, lane, L, NC, VEC, REP, PLANES, DTYPE, ALIGN)
            own_words = _words(now, NC * g, lane, L, VEC, REP)
        else:
            own, own_words = (place,), (place,)
        for b in range(begin, end):
            block = wide(b)
            from_origin = tl.where(block < whole, origin_at + block * (K * ORIGIN_BYTES), origin_tail_at)
            next = tl.minimum(block + 1, end - 1)
            following = tile_at(rows, m, next * K, TILE, BYTES)
            following = tl.where(next < whole, following, tail)
            now, soon = words + (block - first) * COUNT, words + (next - first) * COUNT
            # A warp adds up the G parts of the block with the signs of its own outputs, its own part first, so that the
            # warps read different lines. A Hadamard step without its scale: squares are G times those of the row.
            if EARLY:
                u = _signed(
                    own, own_words, now, g, 0, lane, from_origin, W, L, NC, VEC, REP, LOGV, PLANES, ORIGIN, ORIGIN_ALIGN
                )
            else:
                w = _words(now, NC * g, lane, L, VEC, REP)
                u = _read(place, g, now, lane, L, NC, VEC, REP, PLANES, DTYPE, ALIGN)
                u = _signed(u, w, now, g, 0, lane, from_origin, W, L, NC, VEC, REP, LOGV, PLANES, ORIGIN, ORIGIN_ALIGN)
            for a in range(1, G):
                w = _words(now, NC * (g ^ a), lane, L, VEC, REP)
                x = _read(place, g ^ a, now, lane, L, NC, VEC, REP, PLANES, DTYPE, ALIGN)
                x = _signed(x, w, now, g, a, lane, from_origin, W, L, NC, VEC, REP, LOGV, PLANES, ORIGIN, ORIGIN_ALIGN)
                y = ()
                for j in tl.static_range(NC * REP):
                    y = y + (u[j] + x[j],)
                u = y
            square = u[0] * u[0]
            for j in tl.static_range(1, NC * REP):
                square += u[j] * u[j]
            square = neighbours(square, W, VEC)
            total = square[0]
            for j in tl.static_range(1, VEC):
                total += square[j]
            norm += total.to(tl.float64)

            if EARLY:
                own_words = _words(soon, NC * g, lane, L, VEC, REP)
                own = _read(following, g, soon, lane, L, NC, VEC, REP, PLANES, DTYPE, ALIGN)
            u = mixed(u, LOGC, REP)
            w = _words(now, N + NC * g, lane, L, VEC, REP)
            offsets = tl.load(now + PLANES * L + NC * g + tl.arange(0, 32)[None, :] % NC)
            offsets = (offsets.to(tl.uint32, bitcast=True) // (2**32 // L)).to(tl.int32)
            added = ()
            for c in tl.static_range(NC):
                x = ()
                for rep in tl.static_range(REP):
                    x = x + (flipped(u[c * REP + rep], w[rep] << (31 - c)),)
                x = rolled(x, tl.gather(offsets, tl.full((W, 32), c, tl.int32), 1), W, VEC, REP, LOGV, LOGR)
                for j in tl.static_range(V):
                    added = added + (sums[c * V + j] + x[j],)
            sums = added
            place = following
        part = (program + i) * R + warp // G
        out = parts + part * K + g * (NC * L) + lane
        for c in tl.static_range(NC):
            for rep in tl.static_range(REP):
                tl.store(out + c * L + rep * 32 * VEC, joined(sums, c * V + rep * VEC, W, VEC))
        squares = tl.sum(tl.reshape(norm, (R, G * 32)), 1) / G
        tl.store(norm_parts + (program + i) * R + tl.arange(0, R), squares)
