"""Signs, mixing and rotation of numbers that the threads of a warp hold."""

import triton
import triton.language as tl


@triton.jit
def flipped(x, word):
    """x, its sign flipped where the top bit of the word is set."""
    return (x.to(tl.uint32, bitcast=True) ^ (word & 0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def neighbours(x, G: tl.constexpr, VEC: tl.constexpr):
    """[G, 32 VEC] as VEC tensors [G, 32]: the first of each thread's neighbours, the second, ..."""
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
    """Sylvester's transform of 2^LOG sub-blocks of REP tensors."""
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
    """One sub-block, REP tensors [G, 32 VEC], rotated by r lanes: REP x VEC tensors [G, 32].

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
