"""ChaCha8 on a GPU: the same words as `reference.words`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from bartizan._util.types import Array

COUNTERS = 256  # ChaCha blocks that one program of `_fill` draws
KEY = ("key0", "key1", "key2", "key3")


def key_words(key: Array) -> list[int]:
    """The 256 bits of the key as four integers of 64 bits, the arguments KEY of a kernel."""
    return key.view("int64").tolist()


def words(key: Array, stream: int, first: int, count: int, device: torch.device) -> torch.Tensor:
    """Return words `first` to `first + count` of the stream, both multiples of 16, as int32."""
    out = torch.empty(count, dtype=torch.int32, device=device)
    _fill[(triton.cdiv(count, 16 * COUNTERS),)](out, first // 16, count // 16, stream, *key_words(key), COUNTERS)
    return out


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def draw(counter, stream, key0, key1, key2, key3):
    """The 16 words of each 64-bit counter, as 16 uint32 tensors of its shape."""
    zero = tl.zeros_like(counter).to(tl.uint32)
    i0, i1, i2, i3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    i4, i5 = zero + key0.to(tl.uint32), zero + (key0 >> 32).to(tl.uint32)
    i6, i7 = zero + key1.to(tl.uint32), zero + (key1 >> 32).to(tl.uint32)
    i8, i9 = zero + key2.to(tl.uint32), zero + (key2 >> 32).to(tl.uint32)
    ia, ib = zero + key3.to(tl.uint32), zero + (key3 >> 32).to(tl.uint32)
    ic, id = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    ie, ig = zero + stream.to(tl.uint32), zero
    x0, x1, x2, x3, x4, x5, x6, x7 = i0, i1, i2, i3, i4, i5, i6, i7
    x8, x9, xa, xb, xc, xd, xe, xf = i8, i9, ia, ib, ic, id, ie, ig
    for _ in tl.static_range(4):
        x0, x4, x8, xc = _quarter(x0, x4, x8, xc)
        x1, x5, x9, xd = _quarter(x1, x5, x9, xd)
        x2, x6, xa, xe = _quarter(x2, x6, xa, xe)
        x3, x7, xb, xf = _quarter(x3, x7, xb, xf)
        x0, x5, xa, xf = _quarter(x0, x5, xa, xf)
        x1, x6, xb, xc = _quarter(x1, x6, xb, xc)
        x2, x7, x8, xd = _quarter(x2, x7, x8, xd)
        x3, x4, x9, xe = _quarter(x3, x4, x9, xe)
    low = (x0 + i0, x1 + i1, x2 + i2, x3 + i3, x4 + i4, x5 + i5, x6 + i6, x7 + i7)
    return low + (x8 + i8, x9 + i9, xa + ia, xb + ib, xc + ic, xd + id, xe + ie, xf + ig)


@triton.jit(do_not_specialize=["first", "count", "stream", *KEY])
def _fill(
    out,
    first: tl.int64,
    count: tl.int64,
    stream: tl.int32,
    key0: tl.int64,
    key1: tl.int64,
    key2: tl.int64,
    key3: tl.int64,
    N: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    drawn = draw(first + at, stream, key0, key1, key2, key3)
    for i in tl.static_range(16):
        tl.store(out + 16 * at + i, drawn[i].to(tl.int32, bitcast=True), mask=at < count)
